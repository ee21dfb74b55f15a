// Which functions are called how often by the processes under test.
//
// One uprobe_multi link attaches `on_call` to thousands of functions; the cookie of a place is the number of its
// function. Counts are summed per CPU, in memory that the profiler maps: it reads and clears thousands of them at once.
// CALL_SLOTS = number of CPUs * FUNCTIONS are given on the command line; bpf/traced.h stands in front.

BPF_F_TABLE("array", u32, u64, calls, CALL_SLOTS, BPF_F_MMAPABLE);

int on_call(struct pt_regs *ctx)
{
	u32 slot;
	u64 *count;

	if (!is_traced())
		return 0;
	slot = bpf_get_smp_processor_id() * FUNCTIONS + (u32)attach_cookie(ctx);
	count = calls.lookup(&slot);
	if (count)
		__sync_fetch_and_add(count, 1); // the thread may be preempted in the middle of a plain addition
	return 0;
}
