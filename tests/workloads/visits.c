// Visits of one kind of progress point, as fast as they go or after a fixed piece of work each: what does a visit cost?
#define PROGRESS visited
#include "common.h"
#include "usdt.h"
#include "../../bpf/stub/causal.h"
#include <sys/syscall.h>
#if __has_include(<coz.h>) && !defined(WORKLOADS_COZ)
#include <coz.h>
#endif

enum kind { FUNCTION, STEPPED, USDT_POINT, SWITCHED, EVENT, CAUSAL, COZ, NOTHING, KINDS };

static long visits = 1000000, threads = 1, work_steps, kind;
static pthread_barrier_t together;

// A function whose first instruction the kernel cannot emulate.
REGION void stepped(void);
__asm__(".text\n.globl stepped\n.type stepped, %function\nstepped: xor %eax, %eax\nret\n.size stepped, .-stepped");

__attribute__((section(".probes"), used, visibility("hidden"))) volatile unsigned short example_switched;

// A loop of its own for each kind, so that nothing is looked at between visits but what the visit itself looks at.
#define LOOP(visit)                                      \
	for (long i = 0; i < visits; i++) {              \
		CHAIN(x, work_steps)                        \
		__asm__ volatile("" ::: "memory");       \
		visit;                                   \
	}                                                \
	break

static void *visitor(void *unused)
{
	uint64_t x = work_sink;

	pthread_barrier_wait(&together);
	switch ((enum kind)kind) {
	case FUNCTION: LOOP(PROGRESS());
	case STEPPED: LOOP(stepped());
	case USDT_POINT: LOOP(USDT("always", "0"));
	case SWITCHED: LOOP(if (example_switched) USDT("switched", "example_switched"));
	case EVENT: LOOP(syscall(SYS_getppid));
	case CAUSAL: LOOP(CAUSAL_PROGRESS("counted"));
#ifdef COZ_PROGRESS_NAMED
	case COZ: LOOP(COZ_PROGRESS_NAMED("as-coz"));
#endif
	default: LOOP((void)0);
	}
	work_sink = x;
	pthread_barrier_wait(&together);
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "VISITS", &visits, "visits by each thread" },
		{ OPTION, "threads", &threads, "threads that visit" },
		{ OPTION, "steps", &work_steps, "steps of work before a visit" },
		{ OPTION, "kind", &kind, "0 function, 1 stepped, 2 USDT, 3 with a semaphore, 4 system call, 5 causal.h, 6 coz.h, 7 none" },
		{ 0 },
	};
	int64_t began;
	double took;

	parse_arguments(argc, argv, parameters, "visits of one kind of progress point");
	if (kind >= KINDS || threads < 1 || visits < 1)
		usage_error(parameters, "no such kind, or nothing to do", "");
	pthread_barrier_init(&together, NULL, (unsigned)threads + 1);
	for (long i = 0; i < threads; i++)
		start_thread(visitor, NULL);
	sleep_us(100000); // a profiler may have to get ready
	pthread_barrier_wait(&together);
	began = now_ns();
	pthread_barrier_wait(&together);
	took = (double)(now_ns() - began) / NS_PER_S;
	printf("visits %ld seconds %.6f ns %.3f\n", visits * threads, took, took * NS_PER_S / (double)visits);
	return 0;
}
