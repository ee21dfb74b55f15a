// Where in its code a thread is as it leaves its core.

static __always_inline u32 place_of_wait(struct thread *t, struct experiment *x)
{
	u32 tgid = t->tgid, tid = bpf_get_current_pid_tgid(), *label;
	struct process *p = processes.lookup(&tgid);

	if (!p || p->only_clock)
		return 0;
	if (x->waits == WAITS_BY_CALL)
		return region_of_call();
	if (p->region)
		return p->region;
	label = thread_regions.lookup(&tid);
	if (label)
		return *label;
	return region_of_stack();
}

// The current thread leaves its core.
static __always_inline void note_wait(struct thread *t, long state, struct clock *c, struct experiment *x, u64 now)
{
	u32 class = is_preempted(state) ? WAIT_RUNQUEUE : class_of_wait(state);

	begin_wait(t, class, place_of_wait(t, x), c, x, now);
}
