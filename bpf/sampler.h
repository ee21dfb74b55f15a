// On-CPU samples: from the user stack to a region, from the region to the clock.

BPF_PERCPU_ARRAY(stacks, struct stack, 1);

// The region of the stack that was unwound last on this core.
static __always_inline u32 region_of_stack(struct experiment *x)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);

	if (!stack)
		return 0;
#if ATTRIBUTION == BY_CALL_SITE
	if (x->waits == WAITS_BY_CLASS)
		return stack->region; // of which a class and it are the site
	return stack->region ? region_of_site(stack->region, stack->caller) : 0;
#else
	return stack->region;
#endif
}

// What the current thread's time belongs to, running or about to wait. `in_kernel`: for the unit `syscall`, whether it is
// in a system call at all.
static __always_inline u32 region_of_current(struct thread *t, struct experiment *x, u32 tid, bool in_kernel)
{
	u32 tgid = t->tgid, *label;
	struct process *p = processes.lookup(&tgid);

	if (!p || p->only_clock)
		return 0;
	if (p->region)
		return p->region;
	if (x->waits == WAITS_BY_CALL)
		return in_kernel ? region_of_call() : 0;
	label = thread_regions.lookup(&tid);
	if (label)
		return *label;
	return region_of_stack(x);
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

#include "sampled.h"

// A signal whose handler never spoke (see void_pause) must not hide a thread that makes no system calls.
#define HANDLER_DEADLINE_NS 2000000

int count_sample(struct bpf_perf_event_data *ctx)
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
#ifdef SAMPLED_POINTS
	if (user)
		visit_by_sample(ctx, t, c, x, time, now);
#endif
	if (user && running(x, c, now))
		spins = look_for_spin(ctx, t, c, now); // before the clock moves: what is granted now is no part of that wait
	region = x->waits == WAITS_BY_CLASS ? 0 : region_of_current(t, x, tid, !user);
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

// A sample is handled by several programs, each called by the one before.
#define STAGE_UNWIND 0
#define STAGE_COUNT 1
#define STAGE_SETTLE 1 // of a switch, see sched.h
BPF_PROG_ARRAY(stages, 2);

int unwind_sample(struct bpf_perf_event_data *ctx)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);

	if (!stack)
		return 0;
	if (unwind_some(stack))
		stages.call(ctx, STAGE_UNWIND);
	stages.call(ctx, STAGE_COUNT);
	return 0;
}

int on_sample(struct bpf_perf_event_data *ctx)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);

	if (!stack)
		return 0;
	if (needs_stack(stack, true)) {
		if (ctx->regs.cs & 3)
			unwind_from(stack, ctx->regs.ip, ctx->regs.sp, ctx->regs.bp);
		else
			unwind_from_entry(stack);
		stages.call(ctx, STAGE_UNWIND);
	}
	stages.call(ctx, STAGE_COUNT);
	return 0;
}
