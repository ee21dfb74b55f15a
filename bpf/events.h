// What the kernel's raw tracepoints hand over. They need no file system to attach to, cost less than those of perf, and run
// also while another program runs on the CPU. They give structures where the others give numbers; the offsets in those are
// from the kernel's type information (causal/btf.py).

static __always_inline u32 task_int(u64 task, u64 offset)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + offset));
	return value;
}

// By the host's numbers.
static __always_inline u32 pid_of(u64 task)
{
	return task_int(task, TASK_PID);
}

#define STATES_REPORTED 0x7f // running, (un)interruptible, stopped, traced, dead, zombie, parked
#define STATE_RTLOCK_OR_FROZEN 0x9000
#define STATE_PREEMPTED 0x100
#define STATE_UNINTERRUPTIBLE 2

// Why a thread leaves its core: the bits that the perf tracepoint calls prev_state. By then others may have changed the
// task's own state, so newer kernels hand over what it was (9c2136be0878, 5.18).
static __always_inline long state_at_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 task = ctx->args[1];
#ifdef SWITCH_HAS_STATE
	u32 state = ctx->args[3];
#else
	u32 state = task_int(task, TASK_STATE);
#endif

	if (ctx->args[0] & 1)
		return STATE_PREEMPTED;
	if (state & STATE_RTLOCK_OR_FROZEN)
		return STATE_UNINTERRUPTIBLE;
	return (state | task_int(task, TASK_EXIT_STATE)) & STATES_REPORTED;
}
