// One visit of every kind of progress point, so and so many times each, all told on the command line: the function, the
// line, the address, USDT points with and without a semaphore, a system call, a library that is loaded late, counters of
// coz.h's kind in two processes, and the macros of causal.h.
#define PROGRESS visited
#include "../../workloads/common.h"
#include "../../workloads/usdt.h"
#include "../../../bpf/stub/causal.h"
#include <sys/syscall.h>
#include <sys/wait.h>

__attribute__((section(".probes"), used, visibility("hidden"))) unsigned short example_switched;

static volatile long sink;

static inline __attribute__((always_inline)) void inlined(long value)
{
	sink = value * 3; // INLINED
}

REGION void first_copy(long value)
{
	inlined(value);
}

REGION void second_copy(long value)
{
	inlined(value + 1);
	sink++;
}

REGION void busy(long units)
{
	uint64_t x = work_sink;
	CHAIN(x, units * unit_iterations) // SAMPLED
	work_sink = x;
}

static void count_as_coz_does(long times)
{
	unsigned long *(*find)(int, const char *) =
		(unsigned long *(*)(int, const char *))dlsym(RTLD_DEFAULT, "_coz_get_counter");
	unsigned long *counter = find ? find(1, "as-coz") : NULL;

	for (; counter && times; times--)
		__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

static long times = 101, late = 53, units = 300000, gate;

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "TIMES", &times, "visits" },
		{ OPTION, "late", &late, "visits of the late library" },
		{ OPTION, "units", &units, "units of work in the sampled line" },
		{ FLAG, "gate", &gate, "begin when a byte comes in" },
		{ 0 },
	};
	unsigned long (*bound)(unsigned long);
	void *library;
	pid_t child;

	parse_arguments(argc, argv, parameters, "one visit of every kind");
	if (gate)
		getchar();
	for (long i = 0; i < times; i++) {
		CAUSAL_BEGIN("request");
		visited();
		first_copy(i);
		second_copy(i);
		USDT("always", "0");
		if (example_switched)
			USDT("switched", "example_switched");
		if (i % 2)
			CAUSAL_PROGRESS("in-process");
		else
			CAUSAL_PROGRESS("in-process");
		CAUSAL_END("request");
		syscall(SYS_getppid);
	}
	for (long i = 0; i < times; i++)
		CAUSAL_BEGIN("handed over");
	child = fork();
	if (!child) {
		for (long i = 0; i < times; i++)
			CAUSAL_END("handed over");
		count_as_coz_does(times);
		_exit(0);
	}
	count_as_coz_does(times);
	waitpid(child, NULL, 0);
	busy(units);
	library = dlopen("libz.so.1", RTLD_NOW);
	bound = library ? (unsigned long (*)(unsigned long))dlsym(library, "compressBound") : NULL;
	if (!bound)
		die("libz.so.1");
	sleep_us(700000); // the profiler looks for what is new a few times a second
	for (long i = 0; i < late; i++)
		bound(i);
	return 0;
}
