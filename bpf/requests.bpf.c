// One trace per request of a live process: from a begin point to an end point, with the calls in between, the time on a
// CPU and the arguments asked for.
//
// A request is known by its thread, or, where KEYED is 1, by an argument of the functions that begin and end it and
// those that work on it in between (parts): then a thread works on it from the call of such a function to its return.
//
// Calls are counted in a table of rows, one row per request in turn: each cell carries the number of its request, so
// that nothing has to be cleared and a row that was used again is noticed. Finished requests go through a ring buffer.
// FUNCTIONS, ROWS (a power of two), VALUES, KEYED, MAX_REQUESTS and RING_PAGES are given on the command line; TARGET is the
// process.

// In the upper half the low bits of the number of the request, in the lower half calls.
BPF_F_TABLE("array", u32, u64, cells, ROWS * FUNCTIONS, BPF_F_MMAPABLE);

struct request {
	u64 number;
	u64 begin_ns;
	u64 end_ns;
	u64 waited_ns; // off the CPU
	u64 left_ns;   // since when it is, 0: it is not
	u64 sp;        // of the begin point: what begins deeper is nested, what does not shows that this one is over
	u64 values[VALUES];
	u64 worked_ns; // on a CPU, where keyed
	u32 depth;     // begins inside of it
	u32 known;     // bit per value that was read
};
// By thread id, or by key.
BPF_TABLE("hash", u64, struct request, running, MAX_REQUESTS);

// A thread at work on a request that has a key.
struct work {
	u64 key;
	u64 number;
	u64 began_ns;
	u64 waited_ns;
	u64 left_ns;
	u64 sp;    // as in struct request
	u64 depth; // parts inside of it
};
BPF_TABLE("hash", u32, struct work, at_work, MAX_REQUESTS);
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

// The request that this thread works on.
static __always_inline struct request *current_request(void)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 key = tid;
	struct request *r;
	struct work *w;

	if (!KEYED)
		return running.lookup(&key);
	w = at_work.lookup(&tid);
	if (!w)
		return 0;
	key = w->key;
	r = running.lookup(&key);
	// The key may have been used again since.
	return r && r->number == w->number ? r : 0;
}

int on_call(struct pt_regs *ctx)
{
	u32 which = attach_cookie(ctx), at;
	struct request *r;
	u64 *total, *cell, old, number;

	if (!is_target() || which >= FUNCTIONS)
		return 0;
	total = totals.lookup(&which);
	if (total)
		__sync_fetch_and_add(total, 1);
	r = current_request();
	if (!r)
		return 0;
	number = r->number;
	at = (u32)(number & (ROWS - 1)) * FUNCTIONS + which;
	cell = cells.lookup(&at);
	if (!cell)
		return 0;
	old = *cell;
	// Threads may work on one request together: the first of them makes the cell this request's, the others add.
	if (old >> 32 == (u32)number || __sync_val_compare_and_swap(cell, old, number << 32 | 1) != old)
		__sync_fetch_and_add(cell, 1);
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
// The value is in a register, `shift` bits up, or where `in_memory`, `offset` bytes behind the address in the register.
// `unused` is the number of high bits of 64 that do not belong to it.
static __always_inline void read_value(struct pt_regs *ctx, struct request *r, int which, int position, bool in_memory,
				       u32 offset, int shift, int unused, bool is_signed, bool string)
{
	u64 value = argument(ctx, position), loaded = 0;
	int zero = 0, size;
	struct text *text;

	if (in_memory) {
		if (bpf_probe_read_user(&loaded, 8 - unused / 8, (void *)(value + offset)))
			return;
		value = loaded;
	}
	value = value >> shift << unused;
	value = is_signed ? (u64)((s64)value >> unused) : value >> unused;
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

// As argument(), for a position that is not constant: the verifier allows only constant offsets from the context.
static __always_inline u64 any_argument(struct pt_regs *ctx, u64 position)
{
	u64 value = 0;
	int i;

#pragma unroll
	for (i = 1; i <= 6; i++) {
		u64 each = argument(ctx, i);

		asm volatile("" : "+r"(each)); // loaded here, and nowhere else
		if (position == i)
			value = each;
	}
	return value;
}

// The cookie of a keyed place: position of the argument, and how many high bits of it do not count.
static __always_inline u64 key_of(struct pt_regs *ctx)
{
	u64 cookie = attach_cookie(ctx), unused = cookie >> 8;

	return KEYED ? any_argument(ctx, cookie & 0xff) << unused >> unused : (u32)bpf_get_current_pid_tgid();
}

static __always_inline struct request *begin_request(struct pt_regs *ctx, u64 key)
{
	struct request fresh = {};
	struct request *r = running.lookup(&key);
	int zero = 0;
	u64 *number;

	if (r && !KEYED && ctx->sp < r->sp) {
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
	fresh.sp = ctx->sp;
	fresh.begin_ns = bpf_ktime_get_ns();
	if (running.update(&key, &fresh)) {
		add(C_NO_ROOM);
		return 0;
	}
	add(C_BEGUN);
	return running.lookup(&key);
}

static __always_inline void enter_part(struct pt_regs *ctx, u64 key, struct request *r)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct work fresh = {};
	struct work *w = at_work.lookup(&tid);

	if (w && ctx->sp < w->sp) {
		w->depth++;
		return;
	}
	fresh.key = key;
	fresh.number = r->number;
	fresh.sp = ctx->sp;
	fresh.began_ns = bpf_ktime_get_ns();
	if (at_work.update(&tid, &fresh))
		add(C_NO_ROOM);
}

// What this thread has worked on a request since it began to, or since it was asked last.
static __always_inline void settle_work(struct work *w, struct request *r, u64 now)
{
	if (r->number == w->number)
		__sync_fetch_and_add(&r->worked_ns, now - w->began_ns - w->waited_ns);
	w->began_ns = now;
	w->waited_ns = 0;
}

// READ_VALUES is a line `read_value(ctx, r, ...);` per value that is read at the begin.
int on_begin(struct pt_regs *ctx)
{
	struct request *r;
	u64 key;

	if (!is_target() || !is_active())
		return 0;
	key = key_of(ctx);
	r = begin_request(ctx, key);
	if (!r)
		return 0;
	if (KEYED)
		enter_part(ctx, key, r);
	READ_VALUES
	return 0;
}

int on_part(struct pt_regs *ctx)
{
	struct request *r;
	u64 key;

	if (!is_target() || !is_active())
		return 0;
	key = key_of(ctx);
	r = running.lookup(&key);
	if (r)
		enter_part(ctx, key, r);
	return 0;
}

// Where a part or the function that begins a request returns.
int on_leave(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct request *r;
	struct work *w;
	u64 key;

	if (!is_target())
		return 0;
	w = at_work.lookup(&tid);
	if (!w)
		return 0;
	if (w->depth) {
		w->depth--;
		return 0;
	}
	key = w->key;
	r = running.lookup(&key);
	if (r)
		settle_work(w, r, bpf_ktime_get_ns());
	at_work.delete(&tid);
	return 0;
}

int on_end(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct request *r;
	struct work *w;
	u64 key;

	if (!is_target() || !is_active())
		return 0;
	key = key_of(ctx);
	r = running.lookup(&key);
	if (!r) {
		add(C_STRAY_ENDS);
		return 0;
	}
	if (r->depth) {
		r->depth--;
		return 0;
	}
	r->end_ns = bpf_ktime_get_ns();
	w = KEYED ? at_work.lookup(&tid) : 0;
	if (w && w->key == key)
		settle_work(w, r, r->end_ns);
	add(finished.ringbuf_output(r, sizeof(*r), 0) ? C_LOST : C_FINISHED);
	running.delete(&key);
	return 0;
}

// One `int on_value_N(struct pt_regs *ctx)` per value that is read elsewhere, when that function is called first.
VALUE_PROGRAMS

RAW_TRACEPOINT_PROBE(sched_switch)
{
	u64 now = bpf_ktime_get_ns();
	u32 previous = pid_of(ctx->args[1]), next = pid_of(ctx->args[2]);

	if (KEYED) {
		struct work *w = at_work.lookup(&previous);

		if (w)
			w->left_ns = now;
		w = at_work.lookup(&next);
		if (w && w->left_ns) {
			w->waited_ns += now - w->left_ns;
			w->left_ns = 0;
		}
	} else {
		u64 key = previous;
		struct request *r = running.lookup(&key);

		if (r)
			r->left_ns = now;
		key = next;
		r = running.lookup(&key);
		if (r && r->left_ns) {
			r->waited_ns += now - r->left_ns;
			r->left_ns = 0;
		}
	}
	return 0;
}

// A thread that ends in the middle of its request.
RAW_TRACEPOINT_PROBE(sched_process_exit)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 key = tid;

	if (KEYED)
		at_work.delete(&tid);
	else
		running.delete(&key);
	return 0;
}
