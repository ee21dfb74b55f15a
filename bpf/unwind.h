// User stacks: from the registers of a thread to the return addresses of its callers, by call-frame information that
// user space has compiled to tables (causal/unwind), and by frame pointers where there is none.
//
// All state is kept in a map value, where it survives the tail calls of long stacks; and on the verifier's stack each
// frame would be a state of its own, too many of them.

// As in causal/unwind/rules.py: kind | saved frame pointer / 8 << 8 | CFA / 8 << 16.
enum rule_kind {
	K_NOTHING,
	K_STACK_POINTER,
	K_FRAME_POINTER,
	K_LINKAGE,
	K_UNKNOWN,
	K_SIGNAL,
	K_REALIGNED,
	K_END,
	K_SAVED,
};

struct unwind_row {
	u32 pc;   // from the module's first page on
	u32 rule; // from there to the next row
};
BPF_F_TABLE("array", u32, struct unwind_row, unwind_rows, MAX_UNWIND_ROWS, BPF_F_MMAPABLE);

// The first row of each page of code (1 kB); the search then takes ROW_STEPS, since no instruction is shorter than a byte.
#define PAGE_BITS 10
#define ROW_STEPS 11
BPF_F_TABLE("array", u32, u64, unwind_pages, MAX_UNWIND_PAGES, BPF_F_MMAPABLE);

struct unwind_module {
	u32 first_page; // of its code
	u32 pages;
	u32 page;       // where these begin in `unwind_pages`
	u32 pad;
};
BPF_F_TABLE("array", u32, struct unwind_module, unwind_modules, MAX_UNWIND_MODULES, BPF_F_MMAPABLE);

#define FRAMES_AT_ONCE 8

enum ending {
	E_RUNNING,
	E_BOTTOM,     // the outermost frame
	E_LOST,       // memory that cannot be read, a frame below its callee, or code in no mapping
	E_LIMIT,      // MAX_FRAMES
};

struct stack {
	u64 ip[MAX_FRAMES];
	u64 at, sp, bp;                 // the frame to be left
	u64 start, end;                 // the mapping it is in, and what is known of that
	u32 mapping, pc;
	u32 first_page, pages, page;
	u32 frames;
	u32 exact;                      // `at` is no return address
	u32 guessed;                    // frames left by their frame pointer
	u32 ending;
	u32 space;
	u32 sample;                     // not a wait
	u32 selected;
	u32 region;
	u32 caller;                     // the next frame in scope above
	u64 look;
};

// Neighbouring frames are often in the same module.
static __always_inline void enter_mapping(struct stack *k, u64 ip, struct space *s)
{
	struct unwind_module *module;
	struct mapping *m;
	u32 index;

	if (ip >= k->start && ip < k->end)
		return;
	index = find_mapping(ip, s);
	m = mappings.lookup(&index);
	k->mapping = NO_MAPPING;
	k->start = 1;
	k->end = 0;
	if (!m)
		return;
	k->mapping = index;
	k->start = m->start;
	k->end = m->end;
	k->pages = 0;
	index = m->module; // before `pc`, which user space writes first
	k->pc = m->pc;
	if (!index)
		return;
	module = unwind_modules.lookup(&index);
	if (module) {
		k->first_page = module->first_page;
		k->pages = module->pages;
		k->page = module->page;
	}
}

static __always_inline u32 find_rule(struct stack *k, u32 pc)
{
	u32 page = (pc >> PAGE_BITS) - k->first_page, lo, hi, mid;
	struct unwind_row *row;
	u64 *from, *to;
	int i;

	if (page >= k->pages)
		return K_NOTHING;
	page += k->page;
	from = unwind_pages.lookup(&page);
	page++;
	to = unwind_pages.lookup(&page);
	if (!from)
		return K_NOTHING;
	if (!to)
		return K_NOTHING;
	// The row in force at the page's first byte is the one before.
	lo = *from - 1;
	hi = *to;
	#pragma clang loop unroll(disable)
	for (i = 0; i < ROW_STEPS; i++) {
		if (lo + 1 >= hi)
			break;
		mid = (lo + hi) / 2;
		row = unwind_rows.lookup(&mid);
		if (!row)
			return K_NOTHING;
		if (row->pc <= pc)
			lo = mid;
		else
			hi = mid;
	}
	row = unwind_rows.lookup(&lo);
	return row ? row->rule : K_NOTHING;
}

// What the kernel puts on the stack for a signal handler: struct rt_sigframe after its return address, that is
// ucontext {flags, link, stack (3 words)}, sigcontext {r8..r15, di, si, bp, bx, dx, ax, cx, sp, ip}.
#define SIGNAL_BP 120
#define SIGNAL_SP 160

static __always_inline bool leave_signal(struct stack *k)
{
	u64 saved[2];

	if (bpf_probe_read_user(&k->bp, sizeof(k->bp), (void *)(k->sp + SIGNAL_BP)))
		return false;
	if (bpf_probe_read_user(saved, sizeof(saved), (void *)(k->sp + SIGNAL_SP)))
		return false;
	k->sp = saved[0];
	k->at = saved[1];
	k->exact = 1;
	return true;
}

// Does a signal handler return to here? mov $15, %eax or %rax; syscall: debuggers know it by these bytes, too.
static __always_inline bool returns_from_signal(u64 ip)
{
	u8 code[9] = {};

	if (bpf_probe_read_user(code, sizeof(code), (void *)ip))
		return false;
	if (code[0] == 0xb8)
		return code[1] == 15 && code[5] == 0x0f && code[6] == 0x05;
	return code[0] == 0x48 && code[1] == 0xc7 && code[2] == 0xc0 && code[3] == 15 && code[7] == 0x0f && code[8] == 0x05;
}

static __always_inline void note_guess(struct stack *k)
{
	u32 index = k->mapping;
	struct mapping *m = mappings.lookup(&index);

	// Two cores may lose one: user space only asks whether there are any, and about how many.
	if (m)
		m->guessed++;
	k->guessed++;
}

// Leaves a frame by its frame pointer. Code that has none may hold anything there.
static __always_inline bool leave_by_frame_pointer(struct stack *k)
{
	u64 saved[2];

	note_guess(k);
	if (returns_from_signal(k->at))
		return leave_signal(k);
	if (!k->bp) {
		k->ending = E_BOTTOM;
		return false;
	}
	if (k->bp < k->sp || k->bp & 7)
		return false;
	if (bpf_probe_read_user(saved, sizeof(saved), (void *)k->bp))
		return false;
	k->sp = k->bp + sizeof(saved);
	k->bp = saved[0];
	k->at = saved[1];
	return true;
}

// Goes from the frame at `at` to its caller. Returns whether there is one; if not, `ending` says why.
static __always_inline bool leave_frame(struct stack *k, u64 ip)
{
	u64 cfa;
	u32 pc, rule, kind;
	s64 offset, fp;

	k->ending = E_LOST;
	if (k->mapping == NO_MAPPING) {
		count(C_FRAMES_UNMAPPED, 1);
		return false;
	}
	pc = ip - k->start + k->pc;
	rule = find_rule(k, pc);
	kind = rule & 0xff;
	fp = (s64)(s8)(rule >> 8) * 8;
	offset = (s64)(s16)(rule >> 16) * 8;
	k->exact = 0;
	if (kind == K_STACK_POINTER) {
		cfa = k->sp + offset;
	} else if (kind == K_FRAME_POINTER) {
		cfa = k->bp + offset;
	} else if (kind == K_LINKAGE) {
		cfa = k->sp + ((pc & 15) >= (rule >> 16) ? 16 : 8);
	} else if (kind == K_REALIGNED) {
		if (bpf_probe_read_user(&cfa, sizeof(cfa), (void *)(k->bp + offset)))
			return false;
		fp = k->bp - cfa;
	} else if (kind == K_SAVED) {
		if (bpf_probe_read_user(&cfa, sizeof(cfa), (void *)(k->sp + offset)))
			return false;
		cfa += 8;
	} else if (kind == K_SIGNAL) {
		return leave_signal(k);
	} else if (kind == K_END) {
		k->ending = E_BOTTOM;
		return false;
	} else {
		return leave_by_frame_pointer(k);
	}
	if (cfa <= k->sp)
		return false;
	if (bpf_probe_read_user(&k->at, sizeof(k->at), (void *)(cfa - 8)))
		return false;
	if (fp && bpf_probe_read_user(&k->bp, sizeof(k->bp), (void *)(cfa + fp)))
		return false;
	k->sp = cfa;
	return true;
}

static __always_inline void count_ending(struct stack *k)
{
	if (k->ending == E_BOTTOM)
		count(k->guessed ? C_STACKS_GUESSED : C_STACKS_WHOLE, 1);
	else
		count(k->ending == E_LIMIT ? C_STACKS_DEEP : C_STACKS_LOST, 1);
	if (k->ending == E_LIMIT && !k->region)
		count(C_TRUNCATED, 1);
}

// Whether anybody asks for the stack of the current thread now; `region` is 0 then.
static __always_inline bool needs_stack(struct stack *k, bool sample)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, tgid = id >> 32;
	struct experiment *x = the_experiment();
	struct thread *t = threads.lookup(&tid);
	struct process *p;

	k->region = 0;
	k->caller = 0;
	// A sample or a switch may come before anything else that a new process does.
	if (t && t->tgid != tgid)
		adopt(t, tgid);
	p = processes.lookup(&tgid);
	if (!p || p->only_clock || p->region)
		return false;
	if (!x || x->waits == WAITS_BY_CALL)
		return false;
#if ATTRIBUTION != BY_CALL_SITE
	if (x->waits == WAITS_BY_CLASS)
		return false;
#endif
	if (thread_regions.lookup(&tid))
		return false;
	if (t && in_pause(t))
		return false;
	k->space = p->space;
	k->sample = sample;
	k->selected = x->region;
#if ATTRIBUTION == BY_ANY_FRAME
	k->look = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 255);
#endif
	return true;
}

// Unwinding begins at these registers.
static __always_inline void unwind_from(struct stack *k, u64 ip, u64 sp, u64 bp)
{
	k->at = ip;
	k->sp = sp;
	k->bp = bp;
	k->start = 1;
	k->end = 0;
	k->exact = 1;
	k->frames = 0;
	k->guessed = 0;
	k->ending = E_RUNNING;
}

// The same from where the thread entered the kernel: in a system call, an interrupt or a fault.
static __always_inline void unwind_from_entry(struct stack *k)
{
	unwind_from(k, saved_register(__builtin_offsetof(struct pt_regs, ip)),
		    saved_register(__builtin_offsetof(struct pt_regs, sp)),
		    saved_register(__builtin_offsetof(struct pt_regs, bp)));
}

// Whether the regions of further frames matter.
static __always_inline bool looks_further(struct stack *k)
{
#if ATTRIBUTION == BY_INNERMOST
	return !k->region;
#elif ATTRIBUTION == BY_CALL_SITE
	return !k->region || !k->caller;
#else
	return true;
#endif
}

// The innermost frame in scope decides; BY_ANY_FRAME the selected region does if it is anywhere in the stack, and each
// region in the stack of a sample is counted.
static __always_inline void attribute(struct stack *k, u32 region)
{
	if (!region)
		return;
#if ATTRIBUTION == BY_ANY_FRAME
	if (k->sample)
		count_frame(region, k->look);
	if (!k->region || region == k->selected)
		k->region = region;
#else
	if (!k->region)
		k->region = region;
	else if (!k->caller)
		k->caller = region;
#endif
}

static __always_inline void unwind_frame(struct stack *k, struct space *s)
{
	u64 ip = k->exact ? k->at : k->at - 1;
	u32 frame = k->frames;

	if (frame >= MAX_FRAMES) {
		k->ending = E_LIMIT;
		return;
	}
	enter_mapping(k, ip, s);
	if (!frame && k->sample && k->mapping == NO_MAPPING)
		count(C_UNMAPPED, 1);
	k->ip[frame] = ip;
	k->frames = frame + 1;
	if (looks_further(k))
		attribute(k, region_in(k->mapping, ip));
	if (leave_frame(k, ip))
		k->ending = k->at ? E_RUNNING : E_BOTTOM;
}

// Adds some frames to `ip`, the innermost first: where each executes, that is for callers inside of the call. Returns
// whether there are more: the caller is to come back by a tail call, as more at once have too many branches for the
// verifier.
static __always_inline bool unwind_some(struct stack *k)
{
	u32 space = k->space;
	struct space *s = spaces.lookup(&space);
	int i;

	if (!s)
		return false;
	#pragma clang loop unroll(disable)
	for (i = 0; i < FRAMES_AT_ONCE; i++) {
		unwind_frame(k, s);
		if (k->ending != E_RUNNING) {
			if (k->sample)
				count_ending(k);
			return false;
		}
	}
	return true;
}
