// Where in its code a thread is as it leaves its core.

// Fewer than for samples, because the verifier has patience for so much only; who waits is rarely deep in recursion.
#define MAX_WAIT_FRAMES (MAX_FRAMES / 2)

// The current thread is about to wait. Its innermost frame is as a rule one of the C library's wrappers, which hide their
// caller (see region_of_hidden_caller).
static __always_inline u32 region_of_waiting_stack(void *ctx, struct space *s, u32 selected)
{
	int zero = 0, frames;
	struct stack *stack = stacks.lookup(&zero);

	if (!stack)
		return 0;
	frames = walk_stack(ctx, stack);
	if (!frames)
		return 0;
	return region_of_frames(stack, frames, saved_register(__builtin_offsetof(struct pt_regs, sp)),
				saved_register(__builtin_offsetof(struct pt_regs, bp)), s, selected,
				MAX_WAIT_FRAMES, false);
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
	return s ? region_of_waiting_stack(ctx, s, x->region) : 0;
}

// The current thread leaves its core.
static __always_inline void note_wait(void *ctx, struct thread *t, long state, struct clock *c, struct experiment *x, u64 now)
{
	u32 class = is_preempted(state) ? WAIT_RUNQUEUE : class_of_wait(state);

	begin_wait(t, class, place_of_wait(ctx, t, x), c, x, now);
}
