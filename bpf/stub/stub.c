// The cooperating library: `causal-bpf run` preloads it. It pauses threads of the target when the engine asks for it,
// and does nothing else, and nothing at all when the profiler is absent.
//
// Freestanding on purpose: raw system calls, no libc, no thread-local storage, no errno, general registers only, so
// that the handler may interrupt any code of any runtime. It writes no memory but its own stack; how long to sleep it
// reads from a table that it maps read-only and that only the kernel side fills in.
//
// The protocol with bpf/pause.h: gettid(ASK_MAGIC, nonce) asks "how long still?"; the answer is this thread's line of
// the table, carrying the nonce. No such line means that nobody answered (the profiler is gone), or that the signal was
// somebody else's: leave at once.

#if !defined(__x86_64__)
#error "only x86-64 is supported so far"
#endif

typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;

enum {
	SYS_MMAP = 9,
	SYS_RT_SIGACTION = 13,
	SYS_NANOSLEEP = 35,
	SYS_READLINK = 89,
	SYS_PRCTL = 157,
	SYS_GETTID = 186,
};

#define ASK_MAGIC 0x63617573616c2101UL
#define REGISTER_MAGIC 0x63617573616c2102UL

#define PR_SET_TIMERSLACK 29
#define PR_GET_TIMERSLACK 30

#define SA_ONSTACK 0x08000000UL
#define SA_RESTART 0x10000000UL
#define SA_RESTORER 0x04000000UL
#define SIG_IGN 1UL

// A pause is slept in slices, each ended by a new question, so that a pause outlives its reason by one slice at most.
#define SLICE_NS 5000000L
#define MAX_SLICES 400
#define PROBES 32 // as in bpf/pause.h

struct answer {
	u64 nonce;
	s64 remaining_ns;
	u32 tid;
	u32 pad;
};

struct kernel_sigaction {
	u64 handler, flags, restorer, mask;
};

struct timespec {
	long seconds, nanoseconds;
};

// Written once, by the constructor.
static const struct answer *answers;
static u32 n_answers;

static inline long system_call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

// How long this thread still has to sleep; 0 when nobody says so.
static s64 ask(void)
{
	u64 nonce = __builtin_ia32_rdtsc() | 1;
	u32 tid = system_call(SYS_GETTID, ASK_MAGIC, nonce, 0, 0, 0, 0);
	u32 i;

	for (i = 0; i < PROBES; i++) {
		const volatile struct answer *a = &answers[(tid + i) % n_answers];
		if (a->tid == tid)
			return a->nonce == nonce ? a->remaining_ns : 0;
	}
	return 0;
}

__attribute__((visibility("hidden"))) void causal_bpf_pause(int signal)
{
	s64 remaining = ask();
	long slack = 0;
	int slices;

	(void)signal;
	if (remaining <= 0)
		return;
	// The default slack of 50 us would round every pause up.
	slack = system_call(SYS_PRCTL, PR_GET_TIMERSLACK, 0, 0, 0, 0, 0);
	if (slack > 0)
		system_call(SYS_PRCTL, PR_SET_TIMERSLACK, 1, 0, 0, 0, 0);
	for (slices = 0; slices < MAX_SLICES && remaining > 0; slices++) {
		struct timespec slice = {0, remaining < SLICE_NS ? remaining : SLICE_NS};
		system_call(SYS_NANOSLEEP, (u64)&slice, 0, 0, 0, 0, 0);
		remaining = ask();
	}
	if (slack > 0)
		system_call(SYS_PRCTL, PR_SET_TIMERSLACK, slack, 0, 0, 0, 0);
}

__attribute__((naked, visibility("hidden"))) void causal_bpf_restorer(void)
{
	__asm__ volatile("mov $15, %eax\n\tsyscall");
}

static const char *after_prefix(const char *text, const char *prefix)
{
	while (*prefix)
		if (*text++ != *prefix++)
			return 0;
	return text;
}

static const char *number(const char *text, u64 *value)
{
	*value = 0;
	while (*text >= '0' && *text <= '9')
		*value = *value * 10 + (*text++ - '0');
	return *text == ':' ? text + 1 : text;
}

// A program may have closed the inherited descriptor and opened a file in its place, and reading a mapped file beyond
// its end kills. So the descriptor must be a BPF map; of those the kernel maps no more than there is.
static int is_bpf_map(u64 descriptor)
{
	char path[40] = "/proc/self/fd/", target[32], digits[20];
	int length = 14, n = 0;
	long got;

	do {
		digits[n++] = '0' + descriptor % 10;
		descriptor /= 10;
	} while (descriptor && n < 20);
	while (n)
		path[length++] = digits[--n];
	path[length] = 0;
	got = system_call(SYS_READLINK, (u64)path, (u64)target, sizeof(target) - 1, 0, 0, 0);
	if (got <= 0)
		return 0;
	target[got] = 0;
	return after_prefix(target, "anon_inode:bpf-map") != 0;
}

// CAUSAL_BPF_STUB=descriptor:lines:signal
static const char *configuration(char **environment)
{
	const char *found;

	for (; environment && *environment; environment++)
		if ((found = after_prefix(*environment, "CAUSAL_BPF_STUB=")))
			return found;
	return 0;
}

__attribute__((constructor)) static void causal_bpf_init(int argc, char **argv, char **environment)
{
	const char *text = configuration(environment);
	struct kernel_sigaction old, action = {
		(u64)causal_bpf_pause, SA_RESTART | SA_ONSTACK | SA_RESTORER, (u64)causal_bpf_restorer, ~0UL,
	};
	u64 descriptor, lines, signal;
	long map;

	(void)argc;
	(void)argv;
	if (!text)
		return;
	number(number(number(text, &descriptor), &lines), &signal);
	if (!lines || !signal || !is_bpf_map(descriptor))
		return;
	// A program that has a use for the signal keeps it.
	if (system_call(SYS_RT_SIGACTION, signal, 0, (u64)&old, 8, 0, 0) || old.handler > SIG_IGN)
		return;
	map = system_call(SYS_MMAP, 0, lines * sizeof(struct answer), 1 /* PROT_READ */, 1 /* MAP_SHARED */, descriptor, 0);
	if (map < 0 && map > -4096)
		return;
	answers = (const struct answer *)map;
	n_answers = lines;
	if (!system_call(SYS_RT_SIGACTION, signal, (u64)&action, 0, 8, 0, 0))
		system_call(SYS_GETTID, REGISTER_MAGIC, (u64)causal_bpf_pause, 0, 0, 0, 0);
}
