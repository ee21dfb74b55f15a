// The processes under trace and their children. Put in front of a program by causal/tracing/probes.py, as bcc rewrites
// accesses to maps only in the main text. MAX_TRACED is given on the command line, and where the program wants to know
// of threads that end, THREAD_ENDS: the name of its function for that.

// Process ids under test. A thread that is created gets in, too, and leaves when it ends: nothing asks for it.
BPF_TABLE("hash", u32, u32, traced, MAX_TRACED);
BPF_ARRAY(untraced, u64, 1); // processes that found no room

enum { TRACED = 1, TRACED_FROM_EXEC = 2 }; // the latter is a copy of the profiler until it executes the command

// Helper 174, bpf_get_attach_cookie: bcc 0.26 does not declare it.
static u64 (*attach_cookie)(void *context) = (void *)174;

static __always_inline bool is_traced(void)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u32 *state = traced.lookup(&tgid);

	return state && *state == TRACED;
}

#ifdef THREAD_ENDS
static __always_inline void THREAD_ENDS(u32 tid);
#endif

RAW_TRACEPOINT_PROBE(sched_process_fork)
{
	u32 child = pid_of(ctx->args[1]), one = TRACED;
	int zero = 0;
	u64 *lost;

	if (!is_traced())
		return 0;
	if (traced.update(&child, &one)) {
		lost = untraced.lookup(&zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exec)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u32 *state = traced.lookup(&tgid);

	if (state)
		*state = TRACED;
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;

#ifdef THREAD_ENDS
	THREAD_ENDS(tid);
#endif
	// The leader may end before its threads: processes stay until the run is over.
	if (tid != id >> 32)
		traced.delete(&tid);
	return 0;
}
