// Progress points, and windows cut in the kernel: time, G and all counters at one tick.

struct point {
	u64 visits;
	u64 first_ns; // effective time (monotonic clock less what the clock granted) of the first visit since the last cut
	u64 last_ns;
	u64 moments;  // the sum, modulo 2^64, of the virtual times of the visits: what latencies are made of
	u64 spare_ns; // of a sampled point: time that makes no whole visit yet
};
BPF_ARRAY(points, struct point, MAX_POINTS);

// A counter that the program itself adds to (bpf/stub/counters.h has the same layout). The target maps this table and
// claims lines one after the other, so the first free one is the end.
struct macro {
	u64 count;
	u64 backoff;
	u32 state; // 0: free
	u32 kind;
	char name[232];
};
BPF_F_TABLE("array", int, struct macro, macros, MAX_MACROS, BPF_F_MMAPABLE);

// Requests in flight: those that passed the point `begin` and not yet the point `end`.
#define PAIR_OF_POINTS 1
#define PAIR_OF_MACROS 2
struct latency {
	u32 begin, end; // numbers of points, or lines of `macros`
	u32 pair;       // 0: free, and so are all after it
	u32 pad;
	s64 lowest;     // of begins less ends: below 0 when requests were in flight before anybody looked
	u64 integral;   // of macros: requests in flight times effective ns
	u64 seen_ns;    // the effective time up to which that is
	u64 generation; // of seen_ns
};
BPF_ARRAY(latencies, struct latency, MAX_LATENCIES);

struct latency_cut {
	u64 integral;
	s64 lowest;
};

struct cut {
	u64 generation;
	u64 now_ns;
	u64 granted;
	u64 cost;
	u64 counters[MAX_COUNTERS];
	struct point points[MAX_POINTS];
	u64 macros[MAX_MACROS];
	struct latency_cut latencies[MAX_LATENCIES];
};
BPF_ARRAY(cuts, struct cut, EDGES);

// In a placebo window pauses have no length, so what has to be taken off is their cost.
static __always_inline u64 effective(struct experiment *x, struct clock *c, u64 now)
{
	return now - (is_placebo(x) ? c->cost : c->granted);
}

// When something happens in the sped-up world: the thread's own time (clock.h). In a placebo window it is late by what its
// signals cost.
static __always_inline u64 virtual_time(struct thread *t, struct experiment *x, u64 now)
{
	return now - (x->arm == ARM_PLACEBO ? t->cost : t->local);
}

static __always_inline void add_visits(struct point *p, u64 visits, struct clock *c, struct experiment *x, u64 now)
{
	now = effective(x, c, now);
	__sync_fetch_and_add(&p->visits, visits);
	if (!p->first_ns)
		p->first_ns = now;
	p->last_ns = now;
}

static __always_inline void visit(int which)
{
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct point *p = points.lookup(&which);
	u64 now = bpf_ktime_get_ns();
	struct thread *t;

	if (!c || !x || !p)
		return;
	t = current_thread(c, x);
	if (!t)
		return;
	__sync_fetch_and_add(&p->moments, virtual_time(t, x, now));
	add_visits(p, 1, c, x, now);
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
		into->points[i].moments = p->moments;
	}
}

static __always_inline void copy_macros(struct cut *into)
{
	int i;

	for (i = 0; i < MAX_MACROS; i++) {
		int which = i;
		struct macro *m = macros.lookup(&which);
		if (!m || !m->state)
			return;
		into->macros[i] = m->count;
	}
}

static __always_inline void copy_latencies(struct cut *into)
{
	int i;

	for (i = 0; i < MAX_LATENCIES; i++) {
		int which = i;
		struct latency *l = latencies.lookup(&which);
		if (!l || !l->pair)
			return;
		into->latencies[i].integral = l->integral;
		into->latencies[i].lowest = l->lowest;
	}
}

static __always_inline u64 passed(struct latency *l, int which)
{
	struct macro *m;
	struct point *p;

	if (l->pair == PAIR_OF_MACROS) {
		m = macros.lookup(&which);
		return m ? m->count : 0;
	}
	p = points.lookup(&which);
	return p ? p->visits : 0;
}

// Counters in the program have no times, so their requests in flight are looked at at each tick of one core. For points
// the kernel counts, sums of times are exact, and only the offset of what was in flight before has to be found.
static __always_inline void look_at_latency(struct latency *l, struct experiment *x, struct clock *c, u64 now)
{
	// the ends first: a request that ends in between must not look as if it had never begun
	u64 ended = passed(l, l->end), began = passed(l, l->begin);
	s64 in_flight = (s64)(began - ended);

	if (in_flight < l->lowest)
		l->lowest = in_flight;
	if (l->pair != PAIR_OF_MACROS)
		return;
	now = effective(x, c, now);
	in_flight -= l->lowest;
	if (l->generation == x->generation && now > l->seen_ns)
		l->integral += (u64)in_flight * (now - l->seen_ns);
	l->generation = x->generation;
	l->seen_ns = now;
}

static __always_inline void look_at_latencies(struct experiment *x, struct clock *c, u64 now)
{
	int i;

	for (i = 0; i < MAX_LATENCIES; i++) {
		int which = i;
		struct latency *l = latencies.lookup(&which);
		if (!l || !l->pair)
			return;
		look_at_latency(l, x, c, now);
	}
}

// Called at each tick of one core, so that no two cut the same edge. At the last edge the clock stops by itself.
static __always_inline void cut_windows(struct experiment *x, struct clock *c, u64 now)
{
	u32 edge;
	struct cut *into;

	if (x->arm == ARM_OFF)
		return;
	look_at_latencies(x, c, now);
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
	copy_macros(into);
	copy_latencies(into);
	into->generation = x->generation;
	c->next_edge = edge + 1;
	if (edge == EDGES - 1)
		c->stopped = x->generation;
}

// Calls of many functions at once, each known by the cookie of its probe.
BPF_ARRAY(calls, u64, MAX_CALLS);

// Helper 174, bpf_get_attach_cookie: bcc 0.26 does not declare it.
static u64 (*attach_cookie)(void *context) = (void *)174;

// Points by the same cookie: all of them, at however many places, are one program.
int on_visit(struct pt_regs *ctx)
{
	visit(attach_cookie(ctx));
	return 0;
}

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
