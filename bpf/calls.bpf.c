// Which functions are called how often by the processes under test.
//
// One uprobe_multi link attaches `on_call` to thousands of functions; the cookie of a place is the number of its
// function. Counts are summed per CPU, in memory that the profiler maps: it reads and clears thousands of them at once.
// CALL_SLOTS = number of CPUs * FUNCTIONS are given on the command line.

BPF_F_TABLE("array", u32, u64, calls, CALL_SLOTS, BPF_F_MMAPABLE);

// Process ids under test. A thread that is created gets in, too, and leaves when it ends: nothing asks for it.
BPF_TABLE("hash", u32, u32, traced, MAX_TRACED);
BPF_ARRAY(untraced, u64, 1); // processes that found no room

// Helper 174, bpf_get_attach_cookie: bcc 0.26 does not declare it.
static u64 (*attach_cookie)(void *context) = (void *)174;

int on_call(struct pt_regs *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u32 slot;
	u64 *count;

	if (!traced.lookup(&tgid))
		return 0;
	slot = bpf_get_smp_processor_id() * FUNCTIONS + (u32)attach_cookie(ctx);
	count = calls.lookup(&slot);
	if (count)
		__sync_fetch_and_add(count, 1); // the thread may be preempted in the middle of a plain addition
	return 0;
}

TRACEPOINT_PROBE(sched, sched_process_fork)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, child = args->child_pid, one = 1;
	int zero = 0;
	u64 *lost;

	if (!traced.lookup(&tgid))
		return 0;
	if (traced.update(&child, &one)) {
		lost = untraced.lookup(&zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
	return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exit)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id;

	// The leader may end before its threads: processes stay until the run is over.
	if (tid != id >> 32)
		traced.delete(&tid);
	return 0;
}
