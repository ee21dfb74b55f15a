// Which functions are called how often by which threads of the processes under test.
//
// One uprobe_multi link attaches `on_call` to thousands of functions; the cookie of a place is the number of its
// function. Each thread counts in a row of its own, so that no two CPUs share a counter, in memory that the profiler
// maps: it reads and clears thousands of them at once. Threads for which no row is left share the first one.
// FUNCTIONS, ROWS and CALL_CELLS = ROWS * FUNCTIONS are given on the command line; bpf/traced.h stands in front.

#define SHARED_ROW 0

BPF_F_TABLE("array", u32, u64, calls, CALL_CELLS, BPF_F_MMAPABLE);
BPF_TABLE("hash", u32, u32, rows, MAX_TRACED); // thread id -> its row
BPF_ARRAY(next_row, u64, 1);

struct row_owner {
	u32 tid;
	char name[16]; // which a thread may change: it is looked at when the thread ends
	u32 unused;
};
BPF_F_TABLE("array", u32, struct row_owner, owners, ROWS, BPF_F_MMAPABLE);

static __always_inline u32 take_row(u32 tid)
{
	struct row_owner *owner;
	int zero = 0;
	u64 *next = next_row.lookup(&zero), taken;
	u32 row;

	if (!next || *next >= ROWS)
		return SHARED_ROW;
	taken = __sync_fetch_and_add(next, 1);
	row = taken;
	owner = owners.lookup(&row);
	if (!owner || rows.update(&tid, &row))
		return SHARED_ROW;
	owner->tid = tid;
	return row;
}

static __always_inline void leave_row(u32 tid)
{
	u32 *row = rows.lookup(&tid);
	struct row_owner *owner;

	if (!row)
		return;
	owner = owners.lookup((int *)row);
	if (owner)
		bpf_get_current_comm(owner->name, sizeof(owner->name));
	rows.delete(&tid);
}

int on_call(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid(), at;
	u32 *row = rows.lookup(&tid);
	u64 *count;

	// Whoever has a row is under test.
	if (!row && !is_traced())
		return 0;
	at = (row ? *row : take_row(tid)) * FUNCTIONS + (u32)attach_cookie(ctx);
	count = calls.lookup(&at);
	if (count)
		__sync_fetch_and_add(count, 1); // several threads may share the row
	return 0;
}
