// Progress points, and windows cut in the kernel: time, G and all counters at one tick.

struct point {
	u64 visits;
	u64 first_ns; // effective time (monotonic clock less what the clock granted) of the first visit since the last cut
	u64 last_ns;
};
BPF_ARRAY(points, struct point, MAX_POINTS);

struct cut {
	u64 generation;
	u64 now_ns;
	u64 granted;
	u64 cost;
	u64 counters[MAX_COUNTERS];
	struct point points[MAX_POINTS];
};
BPF_ARRAY(cuts, struct cut, EDGES);

// In a placebo window pauses have no length, so what has to be taken off is their cost.
static __always_inline u64 effective(struct experiment *x, struct clock *c, u64 now)
{
	return now - (is_placebo(x) ? c->cost : c->granted);
}

static __always_inline void visit(int which)
{
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct point *p = points.lookup(&which);
	u64 now = bpf_ktime_get_ns();

	if (!c || !x || !p || !current_thread(c, x))
		return;
	now = effective(x, c, now);
	__sync_fetch_and_add(&p->visits, 1);
	if (!p->first_ns)
		p->first_ns = now;
	p->last_ns = now;
}

static __always_inline void copy_counters(struct cut *into)
{
	int i;

	for (i = 0; i < MAX_COUNTERS; i++) {
		int which = i;
		u64 *value = counters.lookup(&which);
		if (value)
			into->counters[i] = *value;
	}
}

static __always_inline void copy_points(struct cut *into, bool start)
{
	int i;

	for (i = 0; i < MAX_POINTS; i++) {
		int which = i;
		struct point *p = points.lookup(&which);
		if (!p)
			continue;
		if (start)
			p->first_ns = p->last_ns = 0;
		into->points[i].visits = p->visits;
		into->points[i].first_ns = p->first_ns;
		into->points[i].last_ns = p->last_ns;
	}
}

// Called at each tick of one core, so that no two cut the same edge. At the last edge the clock stops by itself.
static __always_inline void cut_windows(struct experiment *x, struct clock *c, u64 now)
{
	u32 edge;
	struct cut *into;

	if (x->arm == ARM_OFF)
		return;
	if (c->cut != x->generation) {
		c->cut = x->generation;
		c->next_edge = 0;
	}
	edge = c->next_edge;
	if (edge >= EDGES || now < x->edge_ns[edge])
		return;
	into = cuts.lookup(&edge);
	if (!into)
		return;
	into->now_ns = now;
	into->granted = c->granted;
	into->cost = c->cost;
	copy_counters(into);
	copy_points(into, edge == 0);
	into->generation = x->generation;
	c->next_edge = edge + 1;
	if (edge == EDGES - 1)
		c->stopped = x->generation;
}

// Calls of many functions at once, each known by the cookie of its probe.
BPF_ARRAY(calls, u64, MAX_CALLS);

// Helper 174, bpf_get_attach_cookie: bcc 0.26 does not declare it.
static u64 (*attach_cookie)(void *context) = (void *)174;

int on_call(struct pt_regs *ctx)
{
	int which = attach_cookie(ctx);
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	u64 *value = calls.lookup(&which);

	if (c && x && value && current_thread(c, x))
		__sync_fetch_and_add(value, 1);
	return 0;
}
