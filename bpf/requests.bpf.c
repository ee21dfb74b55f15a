// One trace per request of a live process: from a begin point to an end point on the same thread, with the calls in
// between, the time on a CPU and the arguments asked for.
//
// Calls are counted in a table of rows, one row per request in turn: each cell carries the number of its request, so
// that nothing has to be cleared and a row that was used again is noticed. Finished requests go through a ring buffer.
// FUNCTIONS, ROWS (a power of two), VALUES, MAX_REQUESTS and RING_PAGES are given on the command line; TARGET is the process.

struct cell {
	u32 request; // low bits of its number
	u32 calls;
};
BPF_F_TABLE("array", u32, struct cell, cells, ROWS * FUNCTIONS, BPF_F_MMAPABLE);

struct request {
	u64 number;
	u64 begin_ns;
	u64 end_ns;
	u64 waited_ns; // off the CPU
	u64 left_ns;   // since when it is, 0: it is not
	u64 sp;        // of the begin point: what begins deeper is nested, what does not shows that this one is over
	u64 values[VALUES];
	u32 tid;
	u32 depth;     // begins inside of it
	u32 known;     // bit per value that was read
	u32 pad;
};
BPF_TABLE("hash", u32, struct request, running, MAX_REQUESTS);
BPF_RINGBUF_OUTPUT(finished, RING_PAGES);

enum counter { C_BEGUN, C_FINISHED, C_NESTED, C_UNENDED, C_NO_ROOM, C_LOST, C_STRAY_ENDS, C_LAST };
BPF_ARRAY(counters, u64, C_LAST);
BPF_ARRAY(numbers, u64, 1);
// Calls of all functions, inside of requests or not: shows which probes are hot.
BPF_F_TABLE("array", u32, u64, totals, FUNCTIONS, BPF_F_MMAPABLE);

static u64 (*attach_cookie)(void *context) = (void *)174;

static __always_inline void add(int which)
{
	u64 *value = counters.lookup(&which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

// Attaching and detaching take a while: points count only between, when all of them are there.
BPF_ARRAY(active, u32, 1);

static __always_inline bool is_active(void)
{
	int zero = 0;
	u32 *value = active.lookup(&zero);

	return value && *value;
}

static __always_inline bool is_target(void)
{
	return bpf_get_current_pid_tgid() >> 32 == TARGET;
}

int on_call(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid(), which = attach_cookie(ctx), at;
	struct request *r;
	struct cell *cell;
	u64 *total;

	if (!is_target() || which >= FUNCTIONS)
		return 0;
	total = totals.lookup(&which);
	if (total)
		__sync_fetch_and_add(total, 1);
	r = running.lookup(&tid);
	if (!r)
		return 0;
	at = (u32)(r->number & (ROWS - 1)) * FUNCTIONS + which;
	cell = cells.lookup(&at);
	if (!cell)
		return 0;
	// Only the thread of the request writes to its row.
	if (cell->request != (u32)r->number) {
		cell->calls = 0;
		cell->request = (u32)r->number;
	}
	cell->calls++;
	return 0;
}

static __always_inline u64 argument(struct pt_regs *ctx, int position)
{
	switch (position) {
	case 1: return ctx->di;
	case 2: return ctx->si;
	case 3: return ctx->dx;
	case 4: return ctx->cx;
	case 5: return ctx->r8;
	default: return ctx->r9;
	}
}

#define MAX_STRING 4096
struct text {
	char bytes[MAX_STRING];
};
BPF_PERCPU_ARRAY(texts, struct text, 1);

// A fault means that the page is not there (yet): then the value is not known, and the request is counted without.
static __always_inline void read_value(struct pt_regs *ctx, struct request *r, int which, int position, bool string)
{
	u64 value = argument(ctx, position);
	int zero = 0, size;
	struct text *text;

	if (string) {
		text = texts.lookup(&zero);
		if (!text)
			return;
		size = bpf_probe_read_user_str(text->bytes, MAX_STRING, (void *)value);
		if (size <= 0)
			return;
		value = size - 1;
	}
	r->values[which] = value;
	r->known |= 1 << which;
}

static __always_inline struct request *begin_request(struct pt_regs *ctx)
{
	struct request fresh = {};
	u32 tid = bpf_get_current_pid_tgid();
	struct request *r = running.lookup(&tid);
	int zero = 0;
	u64 *number;

	if (r && ctx->sp < r->sp) {
		r->depth++;
		add(C_NESTED);
		return 0;
	}
	if (r)
		add(C_UNENDED);
	number = numbers.lookup(&zero);
	if (!number)
		return 0;
	fresh.number = __sync_fetch_and_add(number, 1) + 1;
	fresh.tid = tid;
	fresh.sp = ctx->sp;
	fresh.begin_ns = bpf_ktime_get_ns();
	if (running.update(&tid, &fresh)) {
		add(C_NO_ROOM);
		return 0;
	}
	add(C_BEGUN);
	return running.lookup(&tid);
}

// READ_VALUES is a line `read_value(ctx, r, which, position, string);` per value.
int on_begin(struct pt_regs *ctx)
{
	struct request *r;

	if (!is_target() || !is_active())
		return 0;
	r = begin_request(ctx);
	if (!r)
		return 0;
	READ_VALUES
	return 0;
}

int on_end(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct request *r;

	if (!is_target() || !is_active())
		return 0;
	r = running.lookup(&tid);
	if (!r) {
		add(C_STRAY_ENDS);
		return 0;
	}
	if (r->depth) {
		r->depth--;
		return 0;
	}
	r->end_ns = bpf_ktime_get_ns();
	add(finished.ringbuf_output(r, sizeof(*r), 0) ? C_LOST : C_FINISHED);
	running.delete(&tid);
	return 0;
}

TRACEPOINT_PROBE(sched, sched_switch)
{
	u64 now = bpf_ktime_get_ns();
	u32 previous = args->prev_pid, next = args->next_pid;
	struct request *r = running.lookup(&previous);

	if (r)
		r->left_ns = now;
	r = running.lookup(&next);
	if (r && r->left_ns) {
		r->waited_ns += now - r->left_ns;
		r->left_ns = 0;
	}
	return 0;
}

// A thread that ends in the middle of its request.
TRACEPOINT_PROBE(sched, sched_process_exit)
{
	u32 tid = bpf_get_current_pid_tgid();

	running.delete(&tid);
	return 0;
}
