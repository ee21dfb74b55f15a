// Points that are lines by their time on the CPU: nothing is put into the program, samples find it there.

struct stretch {
	u64 start, end; // file offsets
	u32 point;
	u32 pad;
};
BPF_ARRAY(stretches, struct stretch, MAX_STRETCHES); // those of one file together, sorted

// So much time in the line is a visit: few enough to be counted, and the same whatever the sampling period is.
#define SAMPLED_VISIT_NS 100000

static __always_inline struct stretch *find_stretch(u64 offset, u32 slice)
{
	u32 lo = slice >> 16, hi = lo + (slice & 0xffff);
	struct stretch *s;
	int i;

	for (i = 0; i < 13; i++) {
		u32 mid = (lo + hi) / 2;
		int which = mid;
		if (lo >= hi)
			return NULL;
		s = stretches.lookup(&which);
		if (!s)
			return NULL;
		if (offset < s->start)
			hi = mid;
		else if (offset >= s->end)
			lo = mid + 1;
		else
			return s;
	}
	return NULL;
}

static __always_inline void visit_by_sample(struct bpf_perf_event_data *ctx, struct thread *t, struct clock *c, struct experiment *x, u64 time, u64 now)
{
	u64 ip = ctx->regs.ip, visits;
	struct process *p = processes.lookup(&t->tgid);
	struct stretch *stretch;
	struct mapping *m;
	struct point *point;
	struct space *s;
	u32 which;
	int number;

	if (!p)
		return;
	which = p->space;
	s = spaces.lookup(&which);
	if (!s)
		return;
	which = find_mapping(ip, s);
	m = mappings.lookup(&which);
	if (!m || !m->sampled)
		return;
	stretch = find_stretch(ip - m->start + m->offset, m->sampled);
	if (!stretch)
		return;
	number = stretch->point;
	point = points.lookup(&number);
	if (!point)
		return;
	time += __sync_fetch_and_add(&point->spare_ns, time);
	visits = time / SAMPLED_VISIT_NS;
	if (!visits)
		return;
	__sync_fetch_and_add(&point->spare_ns, -(visits * SAMPLED_VISIT_NS));
	add_visits(point, visits, c, x, now);
}
