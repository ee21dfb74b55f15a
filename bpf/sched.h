// Blocking, waking, cores: how debts travel through waiting (rules 3-6, 8-10).

#define SOFTIRQ_NET_RX 3
// Waiting for a core shorter than this is the cost of a switch, not a wait.
#define QUEUE_NOISE_NS 30000

// Rule 4: what B owes after its wait. It cannot be behind of what woke it.
static __always_inline s64 debt_after_wake(struct thread *b, s64 waker_debt, struct clock *c, u64 now)
{
	s64 debt = debt_of(b, c);

	if (b->block_ns)
		debt = after_wait((s64)(b->block_clock - b->local), now - b->block_ns, c->granted - b->block_clock);
	return debt < waker_debt ? waker_debt : debt;
}

// The same where the waker has a credit, the overshoot of a pause: it is late, and so is what waited for it, whose own time
// stood still meanwhile. Else what lies between the two would look too short.
static __always_inline s64 share_credit(s64 debt, struct thread *b, s64 waker_debt, struct clock *c, u64 now)
{
	s64 stood_still, frozen;

	if (waker_debt >= 0 || debt <= waker_debt || !b->block_ns)
		return debt;
	stood_still = (s64)(now - b->block_ns - (c->granted - b->block_clock));
	if (stood_still <= 0)
		return debt;
	frozen = (s64)(b->block_clock - b->local) - stood_still;
	if (frozen < debt)
		debt = frozen;
	return debt < waker_debt ? waker_debt : debt;
}

// The same for the cost of signals in placebo windows.
static __always_inline void settle_cost(struct thread *b, u64 waker_cost, u64 now)
{
	if (b->block_ns && now > b->block_ns) {
		u64 wait = now - b->block_ns;
		s64 ahead = (s64)(b->cost - waker_cost);
		if (ahead > 0)
			b->cost -= wait < ahead ? wait : ahead;
	}
	if ((s64)(waker_cost - b->cost) > 0)
		b->cost = waker_cost;
}

// Rule 10: a thread that cannot pause hands its debt to the first one it wakes.
static __always_inline s64 debt_to_hand_on(struct thread *a, struct clock *c)
{
	s64 debt = debt_of(a, c);

	if (debt > 0 && (a->flags & F_STUCK)) {
		a->local = c->granted;
		count(C_MOVED_NS, debt);
	}
	return debt;
}

// Interrupts borrow whatever thread is current; only what this thread does itself counts as its wakeup. The exception
// is loopback traffic: the network softirq runs inside the sender's own system call.
static __always_inline bool acts_itself(struct core *core)
{
	s64 call;

	if (core->hard)
		return false;
	if (!core->soft)
		return true;
	if (core->soft != SOFTIRQ_NET_RX + 1)
		return false;
	call = current_call();
	return call >= 0 && sends_or_closes(call);
}

static __always_inline bool by_kernel_thread(void)
{
	return (u32)task_word(bpf_get_current_task(), TASK_FLAGS) & PF_KTHREAD;
}

// Only what threads do that deal with each other can be work in store (causal/analysis/per_visit.py).
static __always_inline void link_threads(struct thread *a, struct thread *b)
{
	if (!(a->flags & F_LINKED))
		__sync_fetch_and_or(&a->flags, F_LINKED);
	if (!(b->flags & F_LINKED))
		__sync_fetch_and_or(&b->flags, F_LINKED);
}

static __always_inline void count_outside_waker(void)
{
	// Kernel threads (ksoftirqd, kworkers) may act for the target; their share belongs in the report.
	if (by_kernel_thread())
		count(C_WAKES_HELPER, 1);
	count(C_WAKES_OUTSIDE, 1);
}

// Somebody who may have waited for an answer of the target: another process, or the network. Not a clock or a disk.
static __always_inline bool may_be_a_peer(struct core *core)
{
	if (core->hard)
		return false;
	return core->soft ? core->soft == SOFTIRQ_NET_RX + 1 : !by_kernel_thread();
}

// Rule 5. What is woken from outside owes what G grew, with one exception: a peer that waits for the answer to its last
// request passes on the debt of whoever answered, as a waker does. Else workers that take turns on one client would each
// pay for the same request. Which peer it is is not known here; the target's last sending stands for all.
static __always_inline void settle_peer(struct thread *b, struct clock *c, struct experiment *x, u64 now)
{
	s64 debt, before = debt_of(b, c);

	if (c->sent_generation != x->generation)
		return;
	count(C_WAKES_PEER, 1);
	settle_cost(b, c->sent_cost, now);
	debt = debt_after_wake(b, (s64)(c->granted - c->sent_local), c, now);
	if (debt < before) {
		b->local = c->granted - debt;
		count(C_ANSWERED_NS, before - debt);
	}
}

// With more cores nobody would hold up a thread.
static __always_inline bool queues_are_selected(struct experiment *x)
{
	return x->waits == WAITS_BY_CLASS && x->region == WAIT_RUNQUEUE;
}

// The wait for a core at the end of a pause is like any other (rule 9), but there only because of us: it is not reported.
static __always_inline void begin_queueing(struct thread *t, struct clock *c, struct experiment *x, u64 now)
{
	if (!queues_are_selected(x))
		return;
	begin_wait(t, WAIT_RUNQUEUE, 0, c, x, now);
	t->wait_class = WAIT_NONE;
}

RAW_TRACEPOINT_PROBE(sched_waking)
{
	u32 tid = pid_of(ctx->args[0]);
	struct thread *b = threads.lookup(&tid), *a;
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct core *core;
	u64 now;
	s64 debt, waker_debt;

	if (!b || !c || !x)
		return 0;
	core = this_core(x);
	if (!core)
		return 0;
	now = bpf_ktime_get_ns();
	sync_thread(b, x);
	if (in_pause(b)) {
		credit_pause(b, now); // rule 9
		begin_queueing(b, c, x, now);
	} else {
		u64 granted = end_wait(b, c, x, now);

		begin_wait(b, WAIT_RUNQUEUE, b->wait_place, c, x, now);
		set_runnable(b, c);
		a = acts_itself(core) ? current_thread(c, x) : NULL;
		if (a && a != b) {
			count(C_WAKES_TARGET, 1);
			link_threads(a, b);
			settle_cost(b, a->cost, now);
			// What a thread of the target ends shrinks when that thread gets faster, and only then: nothing is
			// granted for it.
			waker_debt = debt_to_hand_on(a, c);
			debt = share_credit(debt_after_wake(b, waker_debt, c, now), b, waker_debt, c, now);
			b->local = c->granted - debt;
		} else {
			count_outside_waker(); // rule 5: no credit, it owes what G grew
			b->local += granted;
			if (!a && may_be_a_peer(core))
				settle_peer(b, c, x, now);
		}
		b->block_ns = 0;
	}
	b->queue_ns = now;
	b->queue_clock = c->granted;
	return 0;
}

static __always_inline void leave_core(struct thread *a, long state, struct core *core, struct clock *c, struct experiment *x, u64 now)
{
	bool preempted = is_preempted(state);

	core_stops(core, now);
	if (in_pause(a))
		core_was_busy(a, c, x, now);
	if (preempted) {
		if (in_pause(a)) {
			credit_pause(a, now);
			begin_queueing(a, c, x, now);
		}
		a->queue_ns = now;
		a->queue_clock = c->granted;
	} else if (!in_pause(a)) {
		a->block_ns = now;
		a->block_clock = c->granted;
		clear_runnable(a, c);
	}
}

// Rule 8. With more runnable threads than cores, pausing one thread only hands its core to the next. So cores owe like
// threads: a core is spared when it runs the selected region, and pays while the target does not run on it. (Pausing cores
// instead of threads is the idea of SCOZ, 2021.) That programs outside hold it counts too: what they leave of a core is all
// the target has of it, and a debt that nobody could pay would be passed from thread to thread.
static __always_inline void core_idles(struct core *core, u64 now)
{
	core->idle_ns = now;
}

static __always_inline void core_wakes(struct core *core, struct clock *c, u64 now)
{
	if (core->idle_ns)
		core_pays(core, c, now - core->idle_ns);
	core->idle_ns = 0;
}

// Waiting for a core that the target held pays debts as other waiting does; for one that outsiders held it does not. And
// who waited for a core starts when it became free: it owes at least what the core owes, else the pause of one thread
// would be the next one's gain. A thread that takes a core at its wakeup is not held up by what ran ahead on it.
static __always_inline s64 debt_after_queue(struct thread *b, struct core *core, struct clock *c, u64 now)
{
	s64 core_debt = (s64)(c->granted - core->local);
	s64 debt = after_wait((s64)(b->queue_clock - b->local), now - b->queue_ns, c->granted - b->queue_clock);

	if (debt < core_debt) {
		debt = core_debt;
		count(C_CORE_DEBTS, 1);
	}
	return debt;
}

// `start`: what the thread is granted for getting going again.
static __always_inline void enter_core(struct thread *b, u64 start, bool held, struct core *core, struct clock *c, struct experiment *x, u64 now)
{
	u64 granted = start + end_wait(b, c, x, now);

	b->woken = 0;
	if (in_pause(b) && !held && b->queue_ns) {
		// Rule 9 with its exceptions: that a core must wake up for the pausing thread alone, or that outsiders got it
		// because of the pause and keep it for a while, is a cost of the pause, not a wait for others of the target.
		b->pause_seg = b->queue_ns;
	} else {
		// A debt below zero is the credit of a pause that took too long: it is kept, here and at wakeups.
		if (b->queue_ns && held && now > b->queue_ns + QUEUE_NOISE_NS && !queues_are_selected(x))
			b->local = c->granted - debt_after_queue(b, core, c, now);
		b->local += granted;
		if (in_pause(b))
			b->pause_seg = now;
	}
	if (in_pause(b)) {
		b->busy_ns = now;
	} else {
		b->busy_ns = 0;
		core_runs(core, now);
	}
	b->queue_ns = 0;
	b->block_ns = 0;
	see(b, c, now);
	set_runnable(b, c);
}

// As state_at_switch() has it: a zombie, or gone altogether. Only at its last switch is a thread done: before, it wakes
// those that wait for its end, who must not get ahead of it. (sched_process_exit comes earlier than that since Linux 6.16.)
#define STATE_DEAD 0x30

static __always_inline void forget_thread(u32 tid)
{
	struct clock *c = the_clock();
	struct thread *t = threads.lookup(&tid);

	if (!t || !c)
		return;
	clear_runnable(t, c);
	uncount(__sync_lock_test_and_set(&t->waits_in, 0));
	release_answer(t, tid);
	threads.delete(&tid);
	thread_regions.delete(&tid);
}

// Each side on its own: the verifier does not accept what the compiler makes of a test of two pointers.
static __always_inline bool switch_out(u32 tid, long state, u64 now)
{
	struct thread *t = threads.lookup(&tid);
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct core *core;

	if (!t || !c || !x)
		return false;
	core = this_core(x);
	if (!core)
		return false;
	sync_thread(t, x);
	leave_core(t, state, core, c, x, now);
	if (state & STATE_DEAD) {
		forget_thread(tid);
		return true;
	}
	if (!in_pause(t))
		begin_wait(t, is_preempted(state) ? WAIT_RUNQUEUE : class_of_wait(state),
			   region_of_current(t, x, tid, true), c, x, now);
	return true;
}

// Somebody else runs here now, or nobody.
static __always_inline void leave_to_others(u64 now, bool idle)
{
	struct experiment *x = the_experiment();
	struct core *core;

	if (!x)
		return;
	core = this_core(x);
	if (!core)
		return;
	count_outside(core, now);
	core->outside_ns = idle ? 0 : now;
	if (!core->idle_ns)
		core_idles(core, now);
}

static __always_inline bool switch_in(u32 tid, bool held, u64 now)
{
	struct thread *t = threads.lookup(&tid);
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct core *core;
	u64 start;

	if (!t || !c || !x)
		return false;
	core = this_core(x);
	if (!core)
		return false;
	sync_thread(t, x);
	count_outside(core, now);
	core->outside_ns = 0;
	start = grant_start(t, held, c, x, now); // before the core pays for the same time
	core_wakes(core, c, now);
	enter_core(t, start, held, core, c, x, now);
	return true;
}

#define STATE_STOPPED_OR_TRACED 12

// Ctrl-Z, a debugger: a profiler that does not run must not go on pausing others. Pauses end within a slice.
static __always_inline void end_abandoned_window(void)
{
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();

	if (!c || !x || x->arm == ARM_OFF)
		return;
	c->stopped = x->generation;
	count(C_ABANDONED, 1);
}

// As with samples, several programs: where the thread that leaves is in its code, then what that means.
BPF_PROG_ARRAY(switch_stages, 2);

// What the programs hand on.
struct change {
	s64 state; // of the thread that leaves
	u32 from, to;
};
BPF_PERCPU_ARRAY(changes, struct change, 1);

int unwind_at_switch(void *ctx)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);

	if (!stack)
		return 0;
	if (unwind_some(stack))
		switch_stages.call(ctx, STAGE_UNWIND);
	switch_stages.call(ctx, STAGE_SETTLE);
	return 0;
}

int settle_switch(void *ctx)
{
	u64 now = bpf_ktime_get_ns();
	int zero = 0;
	struct change *change = changes.lookup(&zero);
	bool held = false; // by a thread of the target. Whoever waits for an idle core to wake up waits in real time

	if (!change)
		return 0;
	if (change->from == PROFILER && (change->state & STATE_STOPPED_OR_TRACED))
		end_abandoned_window();
	if (change->from)
		held = switch_out(change->from, change->state, now);
	if (!change->to || !switch_in(change->to, held, now))
		leave_to_others(now, !change->to);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
	int zero = 0;
	struct stack *stack = stacks.lookup(&zero);
	struct change *change = changes.lookup(&zero);

	if (!stack)
		return 0;
	if (!change)
		return 0;
	change->state = state_at_switch(ctx);
	change->from = pid_of(ctx->args[1]);
	change->to = pid_of(ctx->args[2]);
	if (needs_stack(stack, false)) {
		unwind_from_entry(stack);
		switch_stages.call(ctx, STAGE_UNWIND);
	}
	switch_stages.call(ctx, STAGE_SETTLE);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_fork)
{
	u32 child = pid_of(ctx->args[1]);
	u64 id = bpf_get_current_pid_tgid();
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct thread *parent, *t;

	if (!c || !x)
		return 0;
	parent = current_thread(c, x);
	if (!parent)
		return 0;
	t = new_thread(child, 0, parent->local, parent->cost, x);
	if (!t)
		return 0;
	t->parent = id >> 32;
	t->queue_ns = bpf_ktime_get_ns();
	t->queue_clock = c->granted;
	return 0;
}

// The thread that calls exec takes the id of the group's leader; the handler and the mappings are gone.
RAW_TRACEPOINT_PROBE(sched_process_exec)
{
	u32 tid = pid_of(ctx->args[0]), old = ctx->args[1];
	struct process *p = processes.lookup(&tid);
	struct clock *c = the_clock();
	struct experiment *x = the_experiment();
	struct thread *t;
	u64 local;

	if (!p || !c || !x)
		return 0;
	p->handler = 0;
	p->space = 0;
	p->region = 0;
	p->version++;
	t = threads.lookup(&old);
	local = t ? t->local : c->granted;
	if (old != tid)
		forget_thread(old);
	forget_thread(tid);
	t = current_thread(c, x);
	if (t)
		t->local = local;
	return 0;
}

static __always_inline int mark_hard(u64 value)
{
	int zero = 0;
	struct core *core = cores.lookup(&zero);

	if (core)
		core->hard = value;
	return 0;
}

int on_interrupt(void *ctx)
{
	return mark_hard(1);
}

int on_interrupt_end(void *ctx)
{
	return mark_hard(0);
}

RAW_TRACEPOINT_PROBE(softirq_entry)
{
	int zero = 0;
	struct core *core = cores.lookup(&zero);

	if (core)
		core->soft = (u32)ctx->args[0] + 1;
	return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
	int zero = 0;
	struct core *core = cores.lookup(&zero);

	if (core)
		core->soft = 0;
	return 0;
}
