// On-CPU samples: from the user stack to a region, from the region to the clock.

// The tables that user space fills are mapped there and written by numpy (causal/engine.py has the same layouts).
struct mapping {
	u64 start, end; // addresses in the process
	u64 offset;     // of `start` in the file
	u32 lo, hi;     // its slice of `ranges`
	u32 region;     // the whole mapping is this region, 0: it is not
	u32 pad;
};
BPF_F_TABLE("array", u32, struct mapping, mappings, MAX_MAPPINGS, BPF_F_MMAPABLE);

struct space {
	u32 first, count; // its slice of `mappings`, sorted
};
BPF_F_TABLE("array", u32, struct space, spaces, MAX_SPACES, BPF_F_MMAPABLE);

struct range {
	u64 start, end; // file offsets
	u32 region;
	u32 pad;
};
BPF_F_TABLE("array", u32, struct range, ranges, MAX_RANGES, BPF_F_MMAPABLE);

// What is kept of a region; number 0 stands for everything outside of regions.
struct region_state {
	u64 samples;
	u64 serial; // the same, each shared among the threads that could run then: in 1/SERIAL_UNIT of a sample
	u64 given;  // per mille: a speedup that it has in all arms, set by user space (--given)
};
BPF_F_TABLE("array", u32, struct region_state, region_states, MAX_REGIONS, BPF_F_MMAPABLE);
#define SERIAL_UNIT 65536
BPF_TABLE("hash", u32, u32, thread_regions, MAX_THREADS); // unit `thread`: given out by user space

struct stack {
	u64 ip[MAX_FRAMES + 1];
	u64 leaf_caller;
	// What searches know so far is kept here: the verifier follows the values of registers along each path through a loop,
	// those of a map not at all, so that all paths are one to it.
	volatile u32 lo, left;
	volatile u32 region;
	volatile u32 mapped;
};
BPF_PERCPU_ARRAY(stacks, struct stack, 1);

// One step of the search for the last element that does not begin behind `value`, of those from `lo` on. Without a branch
// for the comparison: the verifier puts up with some 8,000 branches on a path, and there are many frames in a stack.
static __always_inline void search_step(struct stack *w, u32 half, u64 value, u64 start)
{
	u64 begins_behind = (value - start) >> 63; // both below 2^63

	w->lo += half & ((u32)begins_behind - 1);
	w->left -= half;
}

static __always_inline struct mapping *find_mapping(struct stack *w, u64 ip, struct space *s)
{
	struct mapping *m;
	u32 half, mid;
	int i;

	w->lo = s->first;
	w->left = s->count;
	for (i = 0; i < 12; i++) { // 4,096 mappings
		half = w->left / 2;
		if (!half)
			break;
		mid = w->lo + half;
		m = mappings.lookup(&mid);
		if (!m)
			return NULL;
		search_step(w, half, ip, m->start);
	}
	mid = w->lo;
	m = mappings.lookup(&mid);
	return m && w->left && ip >= m->start && ip < m->end ? m : NULL;
}

static __always_inline u32 find_range(struct stack *w, u64 offset, u32 first, u32 end)
{
	struct range *r;
	u32 half, mid;
	int i;

	w->lo = first;
	w->left = end - first;
	for (i = 0; i < 21; i++) {
		half = w->left / 2;
		if (!half)
			break;
		mid = w->lo + half;
		r = ranges.lookup(&mid);
		if (!r)
			return 0;
		search_step(w, half, offset, r->start);
	}
	mid = w->lo;
	r = ranges.lookup(&mid);
	return r && w->left && offset >= r->start && offset < r->end ? r->region : 0;
}

// The region of an address, 0: none; `mapped` says whether it is in a mapping we know.
static __always_inline u32 region_at(struct stack *w, u64 ip, struct space *s)
{
	struct mapping *m = find_mapping(w, ip, s);

	w->mapped = m != NULL;
	w->region = 0;
	if (m) {
		w->region = m->region;
		if (!w->region)
			w->region = find_range(w, ip - m->start + m->offset, m->lo, m->hi);
	}
	return w->region;
}

// Is the word at the stack pointer a return address, that is, does it follow a call instruction?
static __always_inline bool follows_call(u64 address)
{
	u8 code[8] = {};

	if (bpf_probe_read_user(code, 7, (void *)(address - 7)))
		return false;
	// call rel32; call r/m64 of 2, 3, 4, 6 and 7 bytes
	return code[2] == 0xe8 || (code[5] == 0xff && (code[6] & 0x38) == 0x10) ||
	       (code[4] == 0xff && (code[5] & 0x38) == 0x10) || (code[3] == 0xff && (code[4] & 0x3f) == 0x14) ||
	       (code[1] == 0xff && (code[2] & 0x38) == 0x10) ||
	       (code[0] == 0xff && (code[1] & 0x38) == 0x10);
}

// How many words above the stack pointer the caller of a leaf is looked for; the wrappers of calls that can be cancelled
// make room for two or three.
#define LEAF_WORDS 6

// Code without a frame pointer (the C library's system-call wrappers) hides its caller from the frame-pointer chain,
// which goes on with the caller's caller. The caller's return address lies between the stack pointer and the frame the
// frame pointer still points to; it is the first word there that follows a call and leads into a region.
static __always_inline u32 region_of_hidden_caller(struct stack *w, u64 sp, u64 bp, struct space *s)
{
	u64 word;
	u32 region;
	int i;

	for (i = 0; i < LEAF_WORDS; i++, sp += sizeof(word)) {
		if (i && sp >= bp)
			return 0;
		if (bpf_probe_read_user(&word, sizeof(word), (void *)sp))
			return 0;
		region = region_at(w, word - 1, s);
		if (region && follows_call(word)) {
			count(C_LEAF_CALLERS, 1);
			return region;
		}
	}
	return 0;
}

// A leaf in scope may have no frame either: then the word at the stack pointer is its return address.
static __always_inline u32 region_of_leaf_caller(struct stack *w, u64 sp, struct space *s)
{
	u64 word;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)sp) || word == w->ip[1] || !follows_call(word))
		return 0;
	return region_at(w, word - 1, s);
}

// What a region is besides the innermost frame in scope; as causal/windows.py has it.
#define BY_INNERMOST 0
#define BY_CALL_SITE 1 // ... and the next frame in scope above it
#define BY_ANY_FRAME 2 // any frame in scope

#if ATTRIBUTION == BY_CALL_SITE
// Regions that turn up while the target runs. User space asks for their names.
struct site {
	u32 region, caller;
};
BPF_TABLE("hash", struct site, u32, sites, MAX_SITES);
BPF_ARRAY(site_count, u64, 1);

static __always_inline u32 region_of_site(u32 region, u32 caller)
{
	struct site key = { region, caller };
	u32 *known = sites.lookup(&key), fresh;
	int zero = 0;
	u64 *number;

	if (known)
		return *known;
	number = site_count.lookup(&zero);
	if (!number || *number >= MAX_SITES)
		return 0;
	fresh = FIRST_SITE + __sync_fetch_and_add(number, 1);
	// Another core may have been faster: then its number counts.
	sites.insert(&key, &fresh);
	known = sites.lookup(&key);
	return known ? *known : 0;
}
#endif

#if ATTRIBUTION == BY_ANY_FRAME
// Which look has counted a region last: recursion must not count it twice.
BPF_ARRAY(seen_by, u64, MAX_REGIONS);

static __always_inline void count_frame(u32 region, u64 look)
{
	u64 *seen = seen_by.lookup(&region);
	struct region_state *state;

	if (!seen || *seen == look)
		return;
	*seen = look;
	state = region_states.lookup(&region);
	if (state)
		__sync_fetch_and_add(&state->samples, 1);
}
#endif

// From a stack to its region. `sp` and `bp` are the registers of the innermost frame. The innermost frame in scope decides;
// with BY_ANY_FRAME the selected region does if it is anywhere in the
// stack, and each region in the stack of a sample is counted.
static __always_inline u32 region_of_frames(struct stack *stack, int frames, u64 sp, u64 bp, struct space *s, u32 selected, int most, bool sample)
{
	int i;
	u32 region, other = 0;
#if ATTRIBUTION == BY_ANY_FRAME
	u64 look = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 255);
#endif

	region = region_at(stack, stack->ip[0], s);
	if (!stack->mapped && sample)
		count(C_UNMAPPED, 1);
	if (!region)
		region = region_of_hidden_caller(stack, sp, bp, s);
#if ATTRIBUTION == BY_INNERMOST
	if (region)
		return region;
#endif
#if ATTRIBUTION == BY_ANY_FRAME
	if (region && sample)
		count_frame(region, look);
	other = region ? region_of_leaf_caller(stack, sp, s) : 0;
	if (other && sample)
		count_frame(other, look);
	if (other && other == selected)
		region = other;
#elif ATTRIBUTION == BY_CALL_SITE
	other = region ? region_of_leaf_caller(stack, sp, s) : 0;
	if (other)
		return region_of_site(region, other);
#endif
	for (i = 1; i < most; i++) {
		if (i >= frames)
			break;
		// a return address points behind the call
		other = region_at(stack, stack->ip[i] - 1, s);
		if (!other)
			continue;
#if ATTRIBUTION == BY_INNERMOST
		return other;
#elif ATTRIBUTION == BY_CALL_SITE
		if (region)
			return region_of_site(region, other);
		region = other;
#else
		if (sample)
			count_frame(other, look);
		if (!region || other == selected)
			region = other;
#endif
	}
	if (i == most && sample)
		count(C_TRUNCATED, 1);
#if ATTRIBUTION == BY_CALL_SITE
	return region ? region_of_site(region, 0) : 0;
#else
	return region;
#endif
}

static __always_inline int walk_stack(void *ctx, struct stack *stack)
{
	int bytes = bpf_get_stack(ctx, stack->ip, MAX_FRAMES * sizeof(u64), BPF_F_USER_STACK);

	return bytes <= 0 ? 0 : bytes / sizeof(u64);
}

static __always_inline u32 region_of_stack(struct bpf_perf_event_data *ctx, struct space *s, u32 selected)
{
	int zero = 0, frames;
	struct stack *stack = stacks.lookup(&zero);
	bool user = ctx->regs.cs & 3;

	if (!stack)
		return 0;
	frames = walk_stack(ctx, stack);
	if (!frames) {
		count(C_NO_STACK, 1);
		return 0;
	}
	return region_of_frames(stack, frames, user ? ctx->regs.sp : saved_register(__builtin_offsetof(struct pt_regs, sp)),
				user ? ctx->regs.bp : saved_register(__builtin_offsetof(struct pt_regs, bp)), s, selected, MAX_FRAMES, true);
}

static __always_inline u32 region_of_sample(struct bpf_perf_event_data *ctx, struct thread *t, struct experiment *x, u32 tid)
{
	struct process *p = processes.lookup(&t->tgid);
	struct space *s;
	u32 which, *label;

	if (!p || p->only_clock)
		return 0;
	if (p->region)
		return p->region;
	if (x->waits == WAITS_BY_CALL)
		return ctx->regs.cs & 3 ? 0 : region_of_call();
	label = thread_regions.lookup(&tid);
	if (label)
		return *label;
	which = p->space;
	s = spaces.lookup(&which);
	return s ? region_of_stack(ctx, s, x->region) : 0;
}

// The time a sample stands for: all that the target ran on this core since the last one. On average that is the period,
// but pauses begin at ticks, and then a tick is no random moment: what comes after a pause of 0.75 ms is found running
// at the next tick although it ran for a quarter of the period. The tick cost it as much as any other, so what is too
// much for its share of the period goes back to thread and core.
#define MOST_PERIODS 64
static __always_inline u64 weigh(struct thread *t, struct core *core, struct experiment *x, u64 period, u64 now)
{
	u64 time;
	s64 excess;

	if (!core || !core->run_ns) {
		if (core)
			core_runs(core, now);
		return period;
	}
	core_stops(core, now);
	core_runs(core, now);
	// A bound, since a tick can come late, but a wide one: where rounds and ticks beat, many ticks in a row miss the thread.
	time = core->ran_ns < MOST_PERIODS * period ? core->ran_ns : MOST_PERIODS * period;
	core->ran_ns = 0;
	if (has_pauses(x)) {
		// BPF has no signed division
		if (time < period) {
			excess = x->sample_cost_ns * (period - time) / period;
		} else {
			excess = x->sample_cost_ns * (time - period) / period;
			excess = -excess;
		}
		t->local += excess;
		core->local += excess;
	}
	return time;
}

// Rule 1. The step is the time of the sample times the virtual speedup; the core is spared like the thread.
static __always_inline void grant(struct thread *t, struct core *core, struct clock *c, u64 time, u64 permille, bool spared)
{
	u64 step = time * permille / 1000;

	if (spared) {
		__sync_fetch_and_add(&t->local, step);
		if (core)
			core->local += step;
	}
	__sync_fetch_and_add(&c->granted, step);
}

// How many threads of the target work side by side: those in a pause would, were it not for us.
static __always_inline u64 parallelism(struct clock *c)
{
	u64 threads = c->runnable < CPUS ? c->runnable : CPUS;

	return threads ? threads : 1;
}

// Loops that wait for a change of memory contain the instruction PAUSE, as the processor manuals ask for.
#define SPIN_REACH 32

static __always_inline bool near_pause_instruction(u64 ip)
{
	u8 code[2 * SPIN_REACH] = {};
	int i;

	if (bpf_probe_read_user(code, sizeof(code), (void *)(ip - SPIN_REACH)))
		return false;
	for (i = 0; i < 2 * SPIN_REACH - 1; i++)
		if (code[i] == 0xf3 && code[i + 1] == 0x90)
			return true;
	return false;
}

// Spins of so many samples are no accident.
#define LONG_SPIN 2

// Rule 4 where no wakeup says when a wait began and ended: a sample either finds the thread spinning or not. It waited
// since the last look when it spins now, and also, after a long spin, when it no longer does: what ended the spin is at
// most a period ago. Whose debt it takes over is not known. Returns whether it spins; then it need not pause.
static __always_inline bool look_for_spin(struct bpf_perf_event_data *ctx, struct thread *t, struct clock *c, u64 now)
{
	s64 debt = debt_of(t, c), left;
	u64 growth = c->granted - t->seen_clock;
	bool spins = near_pause_instruction(ctx->regs.ip);

	if (spins || t->spun >= LONG_SPIN) {
		left = after_wait(debt - growth, now - t->seen_ns, growth);
		if (left < debt)
			t->local = c->granted - left;
	}
	if (spins)
		count(C_SPINS, 1);
	t->spun = spins ? t->spun + 1 : 0;
	see(t, c, now);
	return spins;
}

// A thread that cannot pause does no harm as long as it hands its debts on to those it wakes. One that runs with a debt
// of much of what G grew does: what it did meanwhile was for nothing. User space voids windows with much of that.
#define FAR_AHEAD 20

static __always_inline void note_ahead(struct thread *t, struct clock *c, struct experiment *x, u64 time)
{
	s64 debt = debt_of(t, c);

	if ((t->flags & F_STUCK) && debt > THRESHOLD_NS && (u64)debt > (c->granted - x->base) / FAR_AHEAD)
		count(C_AHEAD_NS, time);
}

// A signal whose handler never spoke (see void_pause) must not hide a thread that makes no system calls.
#define HANDLER_DEADLINE_NS 2000000

int on_sample(struct bpf_perf_event_data *ctx)
{
	u64 now = bpf_ktime_get_ns(), time;
	u32 tid = bpf_get_current_pid_tgid(), region;
	bool user = ctx->regs.cs & 3, spins = false;
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct region_state *state;
	struct thread *t;
	struct core *core;

	if (!c || !x)
		return 0;
	if (bpf_get_smp_processor_id() == CUTTING_CPU) {
		cut_windows(x, c, now);
		grant_waits(x, c, now);
	}
	core = this_core(x);
	if (core)
		count_outside(core, now);
	t = current_thread(c, x);
	if (!t)
		return 0;
	if (user && (t->flags & (F_SENT | F_PAUSED)) == F_SENT && now - t->pause_from > HANDLER_DEADLINE_NS)
		void_pause(t, x, now);
	if (in_pause(t))
		return 0;
	count(C_SAMPLES, 1);
	if (!user)
		count(C_KERNEL_MODE, 1);
	time = weigh(t, core, x, ctx->sample_period, now);
	if (user && running(x, c, now))
		spins = look_for_spin(ctx, t, c, now); // before the clock moves: what is granted now is no part of that wait
	region = region_of_sample(ctx, t, x, tid);
	if (region != x->region || x->arm == ARM_OFF) {
		count(C_OTHERS_NS, time);
		if (t->flags & F_LINKED)
			count(C_LINKED_NS, time);
	}
	state = region_states.lookup(&region);
	if (!state)
		return 0;
	__sync_fetch_and_add(&state->serial, SERIAL_UNIT / parallelism(c));
	if (state->given && x->given && running(x, c, now))
		grant(t, core, c, time, state->given, true);
	if (region) {
		count(C_IN_SCOPE, 1);
#if ATTRIBUTION != BY_ANY_FRAME
		__sync_fetch_and_add(&state->samples, 1);
#endif
		if (region == x->region && x->arm > ARM_OFF) {
			count(C_SELECTED, 1);
			count(C_SELECTED_NS, time);
			if (running(x, c, now) && !tries_nothing(x))
				grant(t, core, c, time, x->permille, x->arm != ARM_DILATION);
			else if (now >= x->deadline_ns)
				count(C_EXPIRED, 1);
		}
	}
	if (user && !spins)
		maybe_pause(t, c, x, now);
	note_ahead(t, c, x, time);
	return 0;
}
