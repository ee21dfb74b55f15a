// Off-CPU time: what threads wait for and where in their code, counted exactly, and waits as something to speed up.

// As in causal/waiting.py.
enum wait_class {
	WAIT_NONE,
	WAIT_IO,       // uninterruptible, or in a call that reads, writes or syncs
	WAIT_LOCK,     // futexes and semaphores
	WAIT_RUNQUEUE, // woken or preempted, and no core yet
	WAIT_SLEEP,
	WAIT_IDLE,     // for something to do: poll, accept, wait and the like
	WAIT_CLASSES,
};
#define CLASS_BITS 3

// Which waits belong to which regions.
enum wait_mode {
	WAITS_NONE,
	WAITS_OF_CODE,  // I/O and sleep to the code that waits. A lock wait is nobody's there: it shrinks with its holder
	WAITS_BY_CLASS, // the classes are the regions, or with their call sites
	WAITS_BY_CALL,  // system calls are the regions, whatever they wait for but locks
};

BPF_TABLE("hash", u32, u64, waits, MAX_WAITS); // region << CLASS_BITS | class -> ns
// Threads that wait in each region now. A thread says in its record where it was counted, and whoever takes that mark
// away counts it out, so that nothing leaks when a wakeup comes before the switch-out that it ends.
BPF_F_TABLE("array", u32, u64, waiting, MAX_REGIONS, BPF_F_MMAPABLE);

static __always_inline int class_of_call(u64 number)
{
	switch (number) {
	case 202: case 449: case 454: case 455: // futex, futex_waitv, futex_wake, futex_wait
	case 65: case 220: case 64:             // semop, semtimedop
	case 73:                                // flock
		return WAIT_LOCK;
	case 35: case 230:                      // nanosleep, clock_nanosleep
		return WAIT_SLEEP;
	case 7: case 271: case 23: case 270:    // poll, ppoll, select, pselect6
	case 232: case 281: case 441:           // epoll_wait, epoll_pwait, epoll_pwait2
	case 43: case 288:                      // accept, accept4
	case 61: case 247:                      // wait4, waitid
	case 34: case 128: case 130:            // pause, rt_sigtimedwait, rt_sigsuspend
	case 70: case 243:                      // msgrcv, mq_timedreceive
		return WAIT_IDLE;
	}
	return WAIT_IO;
}

// User registers of the current thread, wherever in the kernel it is.
static __always_inline u64 saved_register(u64 offset)
{
	return task_word((u64)bpf_task_pt_regs((void *)bpf_get_current_task_btf()), offset);
}

// The system call the current thread is in, -1: none.
static __always_inline s64 current_call(void)
{
	return (s64)saved_register(__builtin_offsetof(struct pt_regs, orig_ax));
}

// Unit `syscall`: its number, from 1 on. As many as causal/waiting.py has.
#define CALL_REGIONS 1024

static __always_inline u32 region_of_call(void)
{
	s64 call = current_call();

	return call < 0 || call >= CALL_REGIONS ? 0 : call + 1;
}

static __always_inline bool is_preempted(long state)
{
	return state == 0 || (state & STATE_PREEMPTED);
}

static __always_inline int class_of_wait(long state)
{
	s64 call;

	if (state & STATE_UNINTERRUPTIBLE)
		return WAIT_IO;
	call = current_call();
	return call < 0 ? WAIT_IO : class_of_call(call);
}

// Rule 1 for waits: while n threads wait in the selected region G grows by n times the virtual speedup of the time, and
// each of them is spared its own part when its wait ends. At each tick of one core, since a wait can be longer than a
// window, and whenever n changes: what ticks alone see is no fair share, because pauses begin there.
static __always_inline void grant_waits(struct experiment *x, struct clock *c, u64 now)
{
	u32 region = x->region;
	u64 *number, threads, since, time, step;
	s64 idle = x->idle; // below zero when two cores take away the last one at once

	if (!region || x->waits == WAITS_NONE)
		return;
	since = __sync_lock_test_and_set(&c->waits_seen, now);
	time = since > x->began_ns && now > since ? now - since : 0;
	number = waiting.lookup(&region);
	if (!number || !time)
		return;
	threads = *number;
	if (idle > 0)
		threads = threads > (u64)idle ? threads - idle : 0;
	count(C_SELECTED_NS, threads * time);
	if (!running(x, c, now) || tries_nothing(x))
		return;
	step = time * x->permille / 1000;
	__sync_fetch_and_add(&c->waited, step);
	__sync_fetch_and_add(&c->granted, threads * step);
}

// A wait that began so long before the window is for nothing that happens in it. While a thread waits for good virtual
// time would stand still. User space knows how many there are when the window begins.
static __always_inline bool is_idle(struct thread *t, struct experiment *x)
{
	return t->wait_ns + IDLE_NS < x->began_ns;
}

static __always_inline void account_wait(struct thread *t, u64 now)
{
	u32 key = t->wait_place << CLASS_BITS | t->wait_class;
	u64 zero = 0, *sum;

	if (!t->wait_class || now <= t->wait_ns)
		return;
	sum = waits.lookup_or_try_init(&key, &zero);
	if (sum)
		__sync_fetch_and_add(sum, now - t->wait_ns);
	else
		count(C_WAITS_LOST, 1);
}

static __always_inline void uncount(u64 region)
{
	u32 which = region;
	u64 *number;

	if (!region)
		return;
	number = waiting.lookup(&which);
	if (number)
		__sync_fetch_and_add(number, -1ULL);
}

// The wait is over. Returns what it was granted: what a thread gets that waited all the time in the selected region.
static __always_inline u64 end_wait(struct thread *t, struct clock *c, struct experiment *x, u64 now)
{
	u64 was = __sync_lock_test_and_set(&t->waits_in, 0), counted = was;

	t->woken = was;
	account_wait(t, now);
	t->wait_class = WAIT_NONE;
	if (counted && counted == x->region) {
		grant_waits(x, c, now);
		if (is_idle(t, x)) {
			if (x->idle)
				__sync_fetch_and_add(&x->idle, -1ULL);
			counted = 0;
		}
	}
	uncount(was);
	if (!counted || counted != x->region || x->arm < ARM_PLACEBO || x->arm == ARM_DILATION)
		return 0;
	return c->waited - t->wait_granted;
}

// A core is no matter of a call site: those of the runqueue, and of locks, are not sped up.
static __always_inline u32 region_of_class(u32 class, u32 place)
{
#if ATTRIBUTION == BY_CALL_SITE
	return class == WAIT_RUNQUEUE || class == WAIT_LOCK ? 0 : region_of_site(class, place);
#else
	return class;
#endif
}

// Unit `syscall`: a call lasts until its thread runs again. That a core must wake up for it, or that outsiders hold the
// core, is time of the call; that other threads of the target do is not, they would hold it then too. Who had the core is
// known only now, so this is granted in a lump.
static __always_inline u64 grant_start(struct thread *t, bool after_target, struct clock *c, struct experiment *x, u64 now)
{
	u32 region = t->woken;
	u64 time, step;

	t->woken = 0;
	if (!region || region != x->region || x->waits != WAITS_BY_CALL || after_target || !t->queue_ns || now <= t->queue_ns)
		return 0;
	time = now - t->queue_ns;
	count(C_SELECTED_NS, time);
	if (!running(x, c, now) || tries_nothing(x))
		return 0;
	step = time * x->permille / 1000;
	__sync_fetch_and_add(&c->granted, step);
	return x->arm == ARM_DILATION ? 0 : step;
}

static __always_inline void begin_wait(struct thread *t, u32 class, u32 place, struct clock *c, struct experiment *x, u64 now)
{
	u32 which = 0;
	u64 *number;

	if (x->waits == WAITS_BY_CLASS)
		which = region_of_class(class, place);
	else if (x->waits == WAITS_OF_CODE && (class == WAIT_IO || class == WAIT_SLEEP))
		which = place;
	else if (x->waits == WAITS_BY_CALL && class != WAIT_RUNQUEUE && class != WAIT_LOCK)
		which = place;
	t->wait_class = class;
	t->wait_place = place;
	t->wait_ns = now;
	if (which && which == x->region)
		grant_waits(x, c, now);
	t->wait_granted = c->waited;
	if (which) {
		number = waiting.lookup(&which);
		if (!number)
			return;
		__sync_fetch_and_add(number, 1);
	}
	uncount(__sync_lock_test_and_set(&t->waits_in, which));
}
