// Where in its code a thread is as it leaves its core.

// The innermost frame in scope of the current thread, which is about to wait. The innermost frame of all is as a rule
// one of the C library's wrappers, which hide their caller (see region_of_hidden_caller).
static __always_inline u32 region_of_waiting_stack(void *ctx, struct space *s)
{
	int zero = 0, i, frames;
	struct stack *stack = stacks.lookup(&zero);
	bool mapped = false;
	u32 region;

	if (!stack)
		return 0;
	frames = bpf_get_stack(ctx, stack->ip, MAX_FRAMES * sizeof(u64), BPF_F_USER_STACK);
	if (frames <= 0)
		return 0;
	frames /= sizeof(u64);
	region = region_at(stack->ip[0], s, &mapped);
	if (region)
		return region;
	region = region_of_hidden_caller(saved_register(__builtin_offsetof(struct pt_regs, sp)),
					 saved_register(__builtin_offsetof(struct pt_regs, bp)), s);
	if (region)
		return region;
	for (i = 1; i < MAX_FRAMES; i++) {
		if (i >= frames)
			return 0;
		region = region_at(stack->ip[i] - 1, s, &mapped);
		if (region)
			return region;
	}
	return 0;
}

static __always_inline u32 place_of_wait(void *ctx, struct thread *t, struct experiment *x)
{
	u32 tgid = t->tgid, tid = bpf_get_current_pid_tgid(), which, *label;
	struct process *p = processes.lookup(&tgid);
	struct space *s;

	if (!p || p->only_clock)
		return 0;
	if (x->waits == WAITS_BY_CALL)
		return region_of_call();
	if (p->region)
		return p->region;
	label = thread_regions.lookup(&tid);
	if (label)
		return *label;
	which = p->space;
	s = spaces.lookup(&which);
	return s ? region_of_waiting_stack(ctx, s) : 0;
}

// The current thread leaves its core.
static __always_inline void note_wait(void *ctx, struct thread *t, long state, struct clock *c, struct experiment *x, u64 now)
{
	u32 class = is_preempted(state) ? WAIT_RUNQUEUE : class_of_wait(state);

	begin_wait(t, class, place_of_wait(ctx, t, x), c, x, now);
}
