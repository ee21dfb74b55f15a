// Pauses: whom to signal and when (rule 7), the conversation with the stub, and what a pause is worth (rule 2).
//
// The stub asks by calling gettid() with a magic argument; the answer appears in its line of `answers`. All accounts
// are kept here. A stub whose question is not answered (the profiler is gone) leaves at once.

#define SYS_RT_SIGRETURN 15
#define SYS_GETTID 186
#define ASK_MAGIC 0x63617573616c2101ULL
#define REGISTER_MAGIC 0x63617573616c2102ULL

#define PF_EXITING 0x4
#define PF_KTHREAD 0x00200000

#define SIGNAL_URG 23
#define SIGNAL_WINCH 28

BPF_ARRAY(pause_errors, u64, 64); // histogram of |debt| at the end of a pause, buckets of a power of two ns

static __always_inline u64 task_word(u64 task, u64 offset)
{
	u64 value = 0;
	bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + offset));
	return value;
}

// Is there room for a signal frame and the handler? A thread without an alternate stack uses its own; one that is on it
// already, in a handler of its own, has only what is left of it.
static __always_inline bool alternate_stack_fits(u64 task)
{
	u64 size = task_word(task, TASK_ALT_SIZE), base, regs, sp;

	if (!size)
		return true;
	base = task_word(task, TASK_ALT_SP);
	regs = (u64)bpf_task_pt_regs((void *)bpf_get_current_task_btf());
	sp = task_word(regs, __builtin_offsetof(struct pt_regs, sp));
	return (sp > base && sp <= base + size ? sp - base : size) >= MIN_ALT_STACK;
}

// Read at the moment of the decision, so that no change of mask, handler or stack can be missed.
// Returns the counter that says why not, or -1 when the signal will be delivered to our handler now.
static __always_inline int obstacle(struct process *p)
{
	u64 task = bpf_get_current_task(), action, handler;
	u32 signal = p->signal & 63;

	if (!p->handler || !signal)
		return C_UNREGISTERED;
	action = task_word(task, TASK_SIGHAND) + SIGHAND_ACTION + (signal - 1) * ACTION_SIZE;
	handler = task_word(action, ACTION_HANDLER);
	if (handler != p->handler)
		return C_UNREGISTERED;
	if (task_word(task, TASK_BLOCKED) & (1ULL << (signal - 1)))
		return C_BLOCKED_MASK;
	if (!alternate_stack_fits(task))
		return C_SMALL_STACK;
	// A vfork child borrows its parent's memory, and a seccomp filter may kill on the stub's system calls.
	if (task_word(task, TASK_VFORK_DONE) || ((u32)task_word(task, TASK_FLAGS) & PF_EXITING))
		return C_FORBIDDEN;
#ifdef TASK_SECCOMP
	if ((u32)task_word(task, TASK_SECCOMP))
		return C_FORBIDDEN;
#endif
	return -1;
}

// Rule 7. To be called where the thread runs no further user instruction before the handler.
static __always_inline void maybe_pause(struct thread *t, struct clock *c, struct experiment *x, u64 now)
{
	struct process *p;
	struct core *core;
	u32 tgid = t->tgid;
	int why;

	if (!running(x, c, now) || debt_of(t, c) <= THRESHOLD_NS)
		return;
	p = processes.lookup(&tgid);
	if (!p)
		return;
	why = obstacle(p);
	if (why >= 0) {
		__sync_fetch_and_or(&t->flags, F_STUCK);
		count(why, 1);
		return;
	}
	if (t->flags & F_STUCK)
		__sync_fetch_and_and(&t->flags, ~(u64)F_STUCK);
	t->pause_from = t->pause_seg = now;
	t->busy_ns = now;
	t->pause_ns = 0;
	__sync_fetch_and_or(&t->flags, F_SENT);
	if (bpf_send_signal_thread(p->signal)) {
		// One slot per CPU carries signals out of interrupts; when it is taken the next sample tries again.
		__sync_fetch_and_and(&t->flags, ~(u64)F_SENT);
		t->pause_seg = 0;
		count(C_SIGNALS_LOST, 1);
		return;
	}
	core = this_core(x);
	if (core)
		core_stops(core, now);
	count(C_SIGNALS, 1);
}

static __always_inline bool in_pause(struct thread *t)
{
	return t->flags & (F_SENT | F_PAUSED);
}

static __always_inline void credit_pause(struct thread *t, u64 now)
{
	if (t->pause_seg && now > t->pause_seg) {
		t->local += now - t->pause_seg;
		t->pause_ns += now - t->pause_seg;
	}
	t->pause_seg = 0;
}

// The machinery of a pause (signal, handler, system calls) keeps the core from other threads as the pause itself does not.
static __always_inline void core_was_busy(struct thread *t, struct clock *c, struct experiment *x, u64 now)
{
	struct core *core = this_core(x);

	if (core && t->busy_ns && has_pauses(x))
		core_pays(core, c, now - t->busy_ns);
	t->busy_ns = 0;
}

// The number of the current thread in its own pid namespace, which is what gettid() tells it.
static __always_inline u32 tid_as_seen_inside(void)
{
	u64 pid = task_word(bpf_get_current_task(), TASK_THREAD_PID);
	u32 level = task_word(pid, PID_LEVEL);

	return task_word(pid + PID_NUMBERS + (level & 31) * UPID_SIZE, UPID_NR);
}

static __always_inline struct answer *claim_answer(struct thread *t, u32 tid)
{
	int i, line = t->answer;
	struct answer *a = answers.lookup(&line);
	u32 inside;

	if (a && a->owner == tid)
		return a;
	inside = tid_as_seen_inside();
	for (i = 0; i < ANSWER_PROBES; i++) {
		line = (inside + i) % MAX_ANSWERS;
		a = answers.lookup(&line);
		if (a && !a->owner) {
			a->owner = tid;
			a->tid = inside;
			t->answer = line;
			return a;
		}
	}
	return NULL;
}

// The stub asks: how long still?
static __always_inline void answer_stub(struct thread *t, u32 tid, u64 nonce, struct clock *c, struct experiment *x, u64 now)
{
	struct answer *a;
	s64 debt;

	if (!in_pause(t))
		return;
	__sync_fetch_and_or(&t->flags, F_PAUSED);
	credit_pause(t, now);
	t->pause_seg = now;
	a = claim_answer(t, tid);
	if (!a)
		return;
	debt = debt_of(t, c);
	if (is_placebo(x) || !running(x, c, now) || debt < PAUSE_SLACK_NS)
		debt = 0;
	if (now - t->pause_from > MAX_PAUSE_NS) {
		debt = 0;
		count(C_PAUSE_CAPPED, 1);
	}
	a->remaining_ns = debt;
	a->nonce = nonce;
}

static __always_inline void record_error(s64 debt)
{
	u64 size = debt < 0 ? -debt : debt;
	int i, bucket = 0;
	u64 *slot;

	for (i = 0; i < 40; i++) {
		if (size <= 1)
			break;
		size >>= 1;
		bucket++;
	}
	slot = pause_errors.lookup(&bucket);
	if (slot)
		__sync_fetch_and_add(slot, 1);
	if (debt < 0)
		count(C_LATE_NS, -debt);
	else
		count(C_EARLY_NS, debt);
}

static __always_inline void release_answer(struct thread *t, u32 tid)
{
	int line = t->answer;
	struct answer *a = answers.lookup(&line);

	if (a && a->owner == tid) {
		a->remaining_ns = 0;
		a->tid = 0;
		a->owner = 0;
	}
}

// The handler returns. In a placebo window the pause is made undone in L, and its cost kept: the largest over the
// threads, passed on by wakeups like L itself, is how much the critical path lost to signals.
static __always_inline void end_pause(struct thread *t, u32 tid, struct clock *c, struct experiment *x, u64 now)
{
	struct core *core;

	credit_pause(t, now);
	core_was_busy(t, c, x, now);
	count(C_PAUSES, 1);
	if (is_placebo(x)) {
		t->local = c->granted;
		t->cost += t->pause_ns;
		if ((s64)(t->cost - c->cost) > 0)
			c->cost = t->cost;
		count(C_PLACEBO_NS, t->pause_ns);
	} else if (running(x, c, now)) {
		count(C_PAUSE_NS, t->pause_ns);
		record_error(debt_of(t, c));
	}
	core = this_core(x);
	if (core)
		core_runs(core, now);
	see(t, c, now);
	release_answer(t, tid);
	__sync_fetch_and_and(&t->flags, ~(u64)(F_SENT | F_PAUSED));
}

// Signalled, yet it runs something else: the signal was dropped (another thread changed the handler). No pause happened.
static __always_inline void void_pause(struct thread *t, struct experiment *x, u64 now)
{
	struct core *core = this_core(x);

	if (core)
		core_runs(core, now);
	t->pause_seg = 0;
	__sync_fetch_and_and(&t->flags, ~(u64)F_SENT);
	count(C_SIGNALS_VOID, 1);
}

static __always_inline bool sends_or_closes(u64 number)
{
	switch (number) {
	case 1: case 20: case 18: case 296: // write, writev, pwrite64, pwritev
	case 40: case 275:                  // sendfile, splice
	case 44: case 46: case 307:         // sendto, sendmsg, sendmmsg
	case 42: case 3: case 48: case 436: // connect, close, shutdown, close_range
	case 426:                           // io_uring_enter
		return true;
	}
	return false;
}

// What the sender has paid and been spared when it sends: see settle_peer in sched.h.
static __always_inline void stamp_sending(struct thread *t, struct clock *c, struct experiment *x)
{
	c->sent_local = t->local;
	c->sent_cost = t->cost;
	c->sent_generation = x->generation;
}

// The stub asks, or says that it is there. For all others gettid() is what it always was.
static __always_inline void on_gettid(u64 user_regs, struct thread *t, u32 tid, struct clock *c, struct experiment *x)
{
	u32 tgid = t->tgid;
	struct pt_regs regs = {};
	struct process *p;

	bpf_probe_read_kernel(&regs, sizeof(regs), (void *)user_regs);
	if (regs.di == ASK_MAGIC) {
		answer_stub(t, tid, regs.si, c, x, bpf_ktime_get_ns());
	} else if (regs.di == REGISTER_MAGIC) {
		p = processes.lookup(&tgid);
		// Only signals that are ignored by default: no other is ever sent.
		if (p && (regs.dx == SIGNAL_URG || regs.dx == SIGNAL_WINCH)) {
			p->handler = regs.si;
			p->signal = regs.dx;
		}
	}
}

// These two run at every system call of every program: most of them must end after one look-up, or before it.
int on_sys_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, tgid = id >> 32;
	long number = ctx->args[1];
	struct experiment *x;
	struct thread *t;
	struct clock *c;

	t = threads.lookup(&tid);
	if (number == SYS_GETTID ? !t && !processes.lookup(&tgid) : !t || !(in_pause(t) || sends_or_closes(number)))
		return 0;
	c = the_clock();
	x = the_experiment();
	if (!c || !x)
		return 0;
	if (t)
		take_part(t, tgid, x);
	else
		t = current_thread(c, x);
	if (!t)
		return 0;
	if (number == SYS_GETTID)
		on_gettid(ctx->args[0], t, tid, c, x);
	if (number == SYS_RT_SIGRETURN && (t->flags & F_PAUSED))
		end_pause(t, tid, c, x, bpf_ktime_get_ns());
	else if ((t->flags & (F_SENT | F_PAUSED)) == F_SENT)
		void_pause(t, x, bpf_ktime_get_ns());
	if (sends_or_closes(number))
		stamp_sending(t, c, x);
	return 0;
}

// Between a system call and the next user instruction a signal does not disturb, unless the call is to be restarted:
// then a signal changes its outcome.
int on_sys_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;
	struct thread *t = threads.lookup(&tid);
	long result = ctx->args[1];
	struct clock *c;
	struct experiment *x;

	if (!t || in_pause(t) || (result <= -512 && result >= -516))
		return 0;
	c = the_clock();
	x = the_experiment();
	if (!c || !x)
		return 0;
	take_part(t, id >> 32, x);
	if (debt_of(t, c) > THRESHOLD_NS)
		maybe_pause(t, c, x, bpf_ktime_get_ns());
	return 0;
}
