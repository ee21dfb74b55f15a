// The virtual clock: one global clock, one local clock per thread, and the rules that move them.
//
// G is the virtual speedup granted so far, in ns; L what a thread has already paid or been spared. Its debt is G - L.
// v = t - L is the thread's time in the sped-up world. Rule numbers refer to the comments here:
//   1 a sample in the selected region: L += s*P, G += s*P       (sampler.h)
//     time in which n threads wait in it: each L and n times G  (waits.h)
//   2 a pause: L += its length, from the send to rt_sigreturn   (pause.h)
//   3-5 blocking and being woken                                (sched.h)
//   6 new threads, unknown threads, experiment boundaries
//   7 when to pause                                             (pause.h)
//   8 cores carry clocks too                                    (sched.h)
//   9 a pause ends at its wakeup                                (sched.h)
//  10 threads that cannot pause hand their debt on              (sched.h)

enum arm {
	ARM_OFF,
	ARM_PLAIN,    // hooks and samples, no clock
	ARM_PLACEBO,  // the clock and its signals, but pauses of length zero
	ARM_TREATED,  // the virtual speedup
	ARM_DILATION, // the clock grows and nobody is exempt
};

#define EDGES 3 // a window is cut at its start, its middle and its end

// What user space asks for. Two of them, chosen by the parity of the generation, so that no program ever sees half of
// an update.
struct experiment {
	u64 generation;
	u64 base;        // G when the generation began; it stands still between windows
	u64 cost_base;
	u64 began_ns;
	u64 deadline_ns; // past it G stops and nobody is signalled, whatever user space does
	u64 edge_ns[EDGES];
	u64 arm;
	u64 region;
	u64 permille;    // the virtual speedup
	u64 sample_cost_ns; // what a tick costs the thread it interrupts, measured at start-up
	u64 given;       // some regions have a speedup of their own in all arms (struct region_state)
	u64 waits;       // which waits belong to which regions: enum wait_mode
	u64 waited_base; // `waited` of the clock when the generation began
	u64 idle;        // threads in the number of waiting ones of the region that are not granted anything: bpf/waits.h
};
BPF_ARRAY(experiments, struct experiment, 2);
BPF_ARRAY(generation, u64, 1);

// What the kernel side keeps about the clock.
struct clock {
	u64 granted;
	u64 cost;       // the same for the cost of signals in placebo windows: the largest over the threads
	u64 runnable;   // target threads that run, wait for a core, or are in a pause
	u64 stopped;    // generation whose window is over
	u64 cut;        // generation that the edges below belong to
	u64 next_edge;
	u64 sent_generation; // of the two below
	u64 sent_local; // L of the target thread that last sent something (rule 5)
	u64 sent_cost;
	u64 waited;     // what a thread was granted that has waited in the selected regions ever since
	u64 waits_seen; // when it last grew
};
BPF_ARRAY(clocks, struct clock, 1);

#define F_RUNNABLE 1
#define F_SENT 2       // signalled, the handler has not spoken yet
#define F_PAUSED 4     // the handler asked how long to sleep
#define F_STUCK 8      // the last attempt to pause it failed for good reason: rule 10
#define F_LINKED 16    // it has woken another thread of the target, or was woken by one

struct thread {
	u64 generation;
	u64 local;
	u64 flags;
	u64 block_ns;    // when it blocked, 0: it did not
	u64 block_clock; // G then
	u64 queue_ns;    // since when it waits for a core, 0: it does not
	u64 queue_clock;
	u64 pause_from;  // when the signal was sent
	u64 pause_seg;   // from here on the pause has not been added to L yet, 0: nothing to add
	u64 pause_ns;    // how much of the pause has been added to L
	u64 busy_ns;     // since when the pause has kept a core busy, 0: it sleeps
	u64 cost;
	u64 seen_ns;     // when a sample last told whether it spins
	u64 seen_clock;
	u64 spun;        // how many samples in a row found it spinning
	u64 waits_in;    // the region in whose number of waiting threads it is counted, 0: in none
	u64 wait_ns;     // since when it waits for what `wait_class` says
	u64 wait_granted; // `waited` of the clock then
	u32 wait_class;
	u32 wait_place;  // the region of the code that waits
	u32 tgid;        // 0 until it runs for the first time
	u32 parent;      // the process that created it
	u32 answer;      // its line in `answers` while it pauses
	u32 woken;       // the region in which the wait was that ended last, 0: in none that waits are counted for
};
BPF_TABLE("hash", u32, struct thread, threads, MAX_THREADS);

struct process {
	u64 handler;    // the stub's, 0: not registered
	u32 space;      // whose mappings it has
	u32 version;    // grows with each exec, so that user space reads the mappings again
	u32 follow;     // children join the target
	u32 only_clock; // on the clock, never a region
	u32 signal;     // that the handler is for
	u32 region;     // of the unit `process`, 0: none
};
BPF_TABLE("hash", u32, struct process, processes, MAX_PROCESSES);

// One line per pausing thread: how long it still has to sleep. Targets map this table read-only.
struct answer {
	u64 nonce;
	s64 remaining_ns;
	u32 tid;   // as the thread itself sees it: pid namespaces number their own
	u32 owner; // as the host sees it, 0: the line is free
};
BPF_F_TABLE("array", int, struct answer, answers, MAX_ANSWERS, BPF_F_MMAPABLE);

enum counter {
	C_SAMPLES,         // of target threads
	C_IN_SCOPE,        // ... with a region
	C_SELECTED,        // ... in the selected region
	C_SELECTED_NS,     // ... and the time they stand for
	C_OTHERS_NS,       // the time that the samples elsewhere stand for
	C_LINKED_NS,       // ... of threads that hand work to others, or get it from them
	C_AHEAD_NS,        // the time that threads ran which cannot be paused and are far behind with paying (rule 10)
	C_KERNEL_MODE,
	C_TRUNCATED,       // stack ended at the frame limit before a frame in scope
	C_UNMAPPED,        // innermost frame in no mapping we know
	C_STACKS_WHOLE,    // unwound to the outermost frame by call-frame information
	C_STACKS_GUESSED,  // ... by frame pointers where there was none
	C_STACKS_DEEP,     // ended at the limit of frames
	C_STACKS_LOST,     // ended where memory cannot be read or the caller is nowhere
	C_FRAMES_UNMAPPED, // of these, in no mapping we know
	C_SIGNALS,
	C_SIGNALS_LOST,    // the kernel refused: another one was on its way
	C_SIGNALS_VOID,    // sent, but the thread went on without its handler
	C_PAUSES,
	C_PAUSE_NS,
	C_PAUSE_CAPPED,
	C_LATE_NS,         // slept longer than owed
	C_EARLY_NS,        // debt left at the end of a pause
	C_UNREGISTERED,    // pauses that could not be: no handler of ours
	C_BLOCKED_MASK,    // ... our signal is blocked
	C_SMALL_STACK,     // ... alternate stack too small
	C_FORBIDDEN,       // ... seccomp, vfork child, exiting
	C_MOVED_NS,        // debts handed on by threads that cannot pause
	C_WAKES_TARGET,    // rule 4
	C_WAKES_OUTSIDE,   // rule 5
	C_WAKES_HELPER,    // ... of these by kernel threads
	C_WAIT_PAID_NS,    // debts paid by waiting
	C_SPINS,           // samples that found a thread spinning
	C_WAKES_PEER,      // of the wakes from outside: by a process that may have answered the target
	C_ANSWERED_NS,     // ... and the debts not owed because of that
	C_THREADS_LOST,    // no room in the table
	C_PROCESSES_LOST,
	C_CORE_DEBTS,      // rule 8
	C_PLACEBO_NS,      // send to return, summed over threads
	C_IDLE_NS,         // cores without the target, or busy with pauses
	C_IDLE_PAID_NS,    // ... as far as they owed it
	C_OUTSIDE_NS,      // what programs outside ran on all cores
	C_EXPIRED,         // samples that found the deadline passed
	C_ABANDONED,       // the profiler itself was stopped: its window ended
	C_WAITS_LOST,      // no room in the table of waits
	C_LAST
};
#define MAX_COUNTERS 64
BPF_ARRAY(counters, u64, MAX_COUNTERS);

// A core as something that pauses: what oversubscribed threads owe together (rule 8), and whom interrupts borrow (rule 4).
struct core {
	u64 generation;
	u64 local;   // its L
	u64 idle_ns; // since when the target has not run here, 0: it does
	u64 run_ns;  // since when the target has run here, 0: it does not, or pauses
	u64 ran_ns;  // how long it has run since the last sample
	u64 outside_ns; // since when a program outside runs here, not counted yet, 0: none does
	u64 hard;    // serving a hard interrupt
	u64 soft;    // serving softirq `soft - 1`
};
BPF_PERCPU_ARRAY(cores, struct core, 1);

static __always_inline void count(int which, u64 amount)
{
	u64 *value = counters.lookup(&which);
	if (value)
		__sync_fetch_and_add(value, amount);
}

static __always_inline struct clock *the_clock(void)
{
	int zero = 0;
	return clocks.lookup(&zero);
}

static __always_inline struct experiment *the_experiment(void)
{
	int zero = 0;
	u64 *now = generation.lookup(&zero);
	int which = now ? *now & 1 : 0;
	return experiments.lookup(&which);
}

// The baseline of an experiment has pauses of length zero. Not so where speedups are given: then it is a program that has
// them already, and its pauses for them are real.
static __always_inline bool is_placebo(struct experiment *x)
{
	return x->arm == ARM_PLACEBO && !x->given;
}

// Where speedups are given, a baseline is such a program and nothing is tried in it.
static __always_inline bool tries_nothing(struct experiment *x)
{
	return x->arm == ARM_PLACEBO && x->given;
}

static __always_inline bool has_pauses(struct experiment *x)
{
	return x->arm > ARM_PLAIN && !is_placebo(x);
}

static __always_inline bool running(struct experiment *x, struct clock *c, u64 now)
{
	return x->arm > ARM_PLAIN && c->stopped != x->generation && now < x->deadline_ns;
}

// Rule 6: a boundary clears debts, and everything a thread remembers is as if it had begun there.
static __always_inline void sync_thread(struct thread *t, struct experiment *x)
{
	if (t->generation == x->generation)
		return;
	t->generation = x->generation;
	t->local = x->base;
	t->cost = x->cost_base;
	if (t->block_ns) {
		t->block_ns = x->began_ns;
		t->block_clock = x->base;
	}
	if (t->queue_ns) {
		t->queue_ns = x->began_ns;
		t->queue_clock = x->base;
	}
	t->seen_ns = x->began_ns;
	t->seen_clock = x->base;
	t->wait_granted = x->waited_base;
	t->pause_ns = 0;
	if (t->pause_seg)
		t->pause_seg = x->began_ns;
}

static __always_inline struct core *this_core(struct experiment *x)
{
	int zero = 0;
	struct core *core = cores.lookup(&zero);

	if (core && core->generation != x->generation) {
		core->generation = x->generation;
		core->local = x->base;
		if (core->idle_ns)
			core->idle_ns = x->began_ns;
		if (core->run_ns)
			core->run_ns = x->began_ns;
		core->ran_ns = 0;
	}
	return core;
}

static __always_inline void count_outside(struct core *core, u64 now)
{
	if (core->outside_ns && now > core->outside_ns) {
		count(C_OUTSIDE_NS, now - core->outside_ns);
		core->outside_ns = now;
	}
}

static __always_inline void core_runs(struct core *core, u64 now)
{
	core->run_ns = now;
}

static __always_inline void core_stops(struct core *core, u64 now)
{
	if (core->run_ns && now > core->run_ns)
		core->ran_ns += now - core->run_ns;
	core->run_ns = 0;
}

// A core pays, as far as it owes, what it spends on pauses and the time the target does not run on it.
static __always_inline void core_pays(struct core *core, struct clock *c, u64 time)
{
	s64 debt = (s64)(c->granted - core->local);

	if ((s64)time <= 0)
		return;
	count(C_IDLE_NS, time);
	if (debt > 0) {
		core->local += (s64)time < debt ? time : debt;
		count(C_IDLE_PAID_NS, (s64)time < debt ? time : debt);
	}
}

static __always_inline void see(struct thread *t, struct clock *c, u64 now)
{
	t->seen_ns = now;
	t->seen_clock = c->granted;
}

// What remains of a debt after a wait during which G grew: a thread in debt would have paused while it waited anyway.
static __always_inline s64 after_wait(s64 debt, u64 wait, u64 growth)
{
	if (debt > 0 && (s64)(wait - growth) > 0) {
		u64 paid = wait - growth;
		if (paid > debt)
			paid = debt;
		count(C_WAIT_PAID_NS, paid);
		debt -= paid;
	}
	return debt;
}

static __always_inline s64 debt_of(struct thread *t, struct clock *c)
{
	return (s64)(c->granted - t->local);
}

// Flags change on several cores at once (a wakeup here, a switch there); the count of runnable threads follows the
// transition each core saw, so it cannot leak.
static __always_inline void set_runnable(struct thread *t, struct clock *c)
{
	if (!(__sync_fetch_and_or(&t->flags, F_RUNNABLE) & F_RUNNABLE))
		__sync_fetch_and_add(&c->runnable, 1);
}

static __always_inline void clear_runnable(struct thread *t, struct clock *c)
{
	if (__sync_fetch_and_and(&t->flags, ~(u64)F_RUNNABLE) & F_RUNNABLE)
		__sync_fetch_and_add(&c->runnable, -1ULL);
}

static __always_inline struct thread *new_thread(u32 tid, u32 tgid, u64 local, u64 cost, struct experiment *x)
{
	struct thread fresh = {};

	fresh.generation = x->generation;
	fresh.local = local;
	fresh.cost = cost;
	fresh.tgid = tgid;
	if (threads.update(&tid, &fresh))
		count(C_THREADS_LOST, 1);
	return threads.lookup(&tid);
}

// A child process joins with what fork() gave it: the mappings, the handler and the answer table of its parent.
static __always_inline void adopt(struct thread *t, u32 tgid)
{
	struct process child = {}, *parent;

	t->tgid = tgid;
	if (processes.lookup(&tgid))
		return;
	parent = processes.lookup(&t->parent);
	if (!parent || !parent->follow)
		return;
	child = *parent;
	child.version++;
	if (processes.update(&tgid, &child))
		count(C_PROCESSES_LOST, 1);
}

// What a thread that has a record is to be when it acts. Looking it up again would cost every system call.
static __always_inline void take_part(struct thread *t, u32 tgid, struct experiment *x)
{
	if (t->tgid != tgid)
		adopt(t, tgid);
	sync_thread(t, x);
}

// The record of the current thread, NULL when it is no target. Unknown threads start without debt (rule 6).
static __always_inline struct thread *current_thread(struct clock *c, struct experiment *x)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, tgid = id >> 32;
	struct thread *t = threads.lookup(&tid);

	if (!t) {
		if (!processes.lookup(&tgid))
			return NULL;
		t = new_thread(tid, tgid, c->granted, c->cost, x);
		if (!t)
			return NULL;
		set_runnable(t, c);
	}
	take_part(t, tgid, x);
	return t;
}
