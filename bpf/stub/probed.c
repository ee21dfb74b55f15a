// Two functions for the profiler to put a uprobe into, in its own process: what does a visit cost on this machine?
//
// The kernel emulates the first instruction of one, and has to execute that of the other out of line, by single-stepping.

#define _GNU_SOURCE
#include <time.h>

#if defined(__x86_64__)
#define EMULATED "nop; ret"
#define STEPPED "mov %edi, %eax; ret"
#elif defined(__aarch64__)
#define EMULATED "nop; ret"
#define STEPPED "mov x0, #0; ret"
#else
#error "which instructions of this machine are emulated?"
#endif

#define EXPORTED __attribute__((visibility("default")))

// As assembler, so that nothing comes before the first instruction whatever the compiler's flags.
__asm__(".text\n"
	".globl causal_probed_emulated\n.type causal_probed_emulated, %function\n.balign 16\n"
	"causal_probed_emulated: " EMULATED "\n.size causal_probed_emulated, .-causal_probed_emulated\n"
	".globl causal_probed_stepped\n.type causal_probed_stepped, %function\n.balign 16\n"
	"causal_probed_stepped: " STEPPED "\n.size causal_probed_stepped, .-causal_probed_stepped\n");

__attribute__((visibility("hidden"))) extern void causal_probed_emulated(void);
__attribute__((visibility("hidden"))) extern void causal_probed_stepped(void);

// Time of so many calls, in ns.
EXPORTED long causal_time_calls(int stepped, long calls);
EXPORTED long causal_time_calls(int stepped, long calls)
{
	void (*volatile call)(void) = stepped ? causal_probed_stepped : causal_probed_emulated;
	struct timespec began, ended;

	clock_gettime(CLOCK_MONOTONIC, &began);
	for (; calls > 0; calls--)
		call();
	clock_gettime(CLOCK_MONOTONIC, &ended);
	return (ended.tv_sec - began.tv_sec) * 1000000000L + ended.tv_nsec - began.tv_nsec;
}
