// The cooperating library: `causal-bpf run` preloads it. It pauses threads of the target when the engine asks for it,
// and does nothing else, and nothing at all when the profiler is absent.
//
// Freestanding on purpose: raw system calls, no libc, no thread-local storage, no errno, general registers only, so
// that the handler may interrupt any code of any runtime. The handler writes no memory but its own stack; how long to
// sleep it reads from a table that it maps read-only and that only the kernel side fills in.

#include "pausing.h"
#include "counters.h"

#define SA_ONSTACK 0x08000000UL
#define SA_RESTART 0x10000000UL
#define SA_RESTORER 0x04000000UL
#define SIG_IGN 1UL

struct kernel_sigaction {
	u64 handler, flags, restorer, mask;
};

// Written once, by the constructor.
static const struct answer *answers;
static u32 n_answers;

__attribute__((visibility("hidden"))) void causal_bpf_pause(int signal)
{
	(void)signal;
	pause_as_told(answers, n_answers);
}

__attribute__((naked, visibility("hidden"))) void causal_bpf_restorer(void)
{
	__asm__ volatile(RESTORER_TEXT);
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

// CAUSAL_BPF_STUB=descriptor:lines:signal:descriptor of the counters:their number
static const char *configuration(char **environment)
{
	const char *found;

	for (; environment && *environment; environment++)
		if ((found = after_prefix(*environment, "CAUSAL_BPF_STUB=")))
			return found;
	return 0;
}

static void *map(u64 descriptor, u64 size, u64 protection)
{
	long address;

	if (!is_bpf_map(descriptor))
		return 0;
	address = system_call(SYS_MMAP, 0, size, protection, 1 /* MAP_SHARED */, descriptor, 0);
	return address < 0 && address > -4096 ? 0 : (void *)address;
}

static void prepare_pauses(u64 descriptor, u64 lines, u64 signal)
{
	struct kernel_sigaction old, action = {
		(u64)causal_bpf_pause, SA_RESTART | SA_ONSTACK | SA_RESTORER, (u64)causal_bpf_restorer, ~0UL,
	};

	if (!lines || !signal)
		return;
	// A program that has a use for the signal keeps it.
	if (system_call(SYS_RT_SIGACTION, signal, 0, (u64)&old, 8, 0, 0) || old.handler > SIG_IGN)
		return;
	answers = map(descriptor, lines * sizeof(struct answer), 1 /* PROT_READ */);
	if (!answers)
		return;
	n_answers = lines;
	if (!system_call(SYS_RT_SIGACTION, signal, (u64)&action, 0, 8, 0, 0))
		system_call(SYS_GETTID, REGISTER_MAGIC, (u64)causal_bpf_pause, signal, 0, 0, 0);
}

static void prepare_counters(u64 descriptor, u64 lines)
{
	if (!lines)
		return;
	macros = map(descriptor, lines * sizeof(struct macro), 3 /* PROT_READ | PROT_WRITE */);
	n_macros = macros ? lines : 0;
}

__attribute__((constructor)) static void causal_bpf_init(int argc, char **argv, char **environment)
{
	const char *text = configuration(environment);
	u64 words[5];
	int i;

	(void)argc;
	(void)argv;
	if (!text)
		return;
	for (i = 0; i < 5; i++)
		text = number(text, &words[i]);
	prepare_counters(words[3], words[4]);
	prepare_pauses(words[0], words[1], words[2]);
}
