// Threads with alternate signal stacks of several sizes, one too small for a handler on a CPU with wide
// registers. Each stack sits above a page that must never be written; the guard is checked every round.
#include "common.h"
#include <sys/auxv.h>
#include <sys/mman.h>

WORKER(work_a)

#define GUARD_BYTES 4096
#define GUARD_FILL 0xa5

static long work_us = 3000, small_bytes = 2048, threads = 4;
static long overflows;

static long minimum_bytes(void)
{
	long minimum = (long)getauxval(AT_MINSIGSTKSZ);

	return minimum > 2048 ? minimum : 2048;
}

// The first thread has the small stack, then the least that the kernel accepts for a frame, then more.
static size_t stack_bytes(long number)
{
	if (number == 0)
		return (size_t)small_bytes;
	return (size_t)(minimum_bytes() + (number - 1) * 4096);
}

static unsigned char *install_stack(size_t bytes)
{
	unsigned char *guard = mmap(NULL, GUARD_BYTES + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = { .ss_sp = guard + GUARD_BYTES, .ss_size = bytes };

	if (guard == MAP_FAILED)
		die("mmap");
	memset(guard, GUARD_FILL, GUARD_BYTES);
	if (sigaltstack(&stack, NULL)) {
		fprintf(stderr, "sigstack: the kernel refuses %zu bytes\n", bytes);
		stack.ss_flags = SS_DISABLE;
		sigaltstack(&stack, NULL);
	}
	return guard;
}

static bool guard_is_whole(const unsigned char *guard)
{
	for (int i = 0; i < GUARD_BYTES; i++)
		if (guard[i] != GUARD_FILL)
			return false;
	return true;
}

static void *rounds(void *number)
{
	unsigned char *guard = install_stack(stack_bytes((long)number));

	for (;;) {
		work_a(work_us);
		if (!guard_is_whole(guard)) {
			__atomic_add_fetch(&overflows, 1, __ATOMIC_RELAXED);
			memset(guard, GUARD_FILL, GUARD_BYTES);
		}
		count_round();
	}
	return NULL;
}

static void report(void)
{
	printf("overflows %ld\n", overflows);
	finish_status = overflows > 0;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ OPTION, "small", &small_bytes, "size of the smallest alternate stack" },
		{ OPTION, "threads", &threads, "threads, the first with the smallest stack" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads with small alternate signal stacks");
	finish_on_sigterm();
	at_finish = report;
	for (long i = 1; i < threads; i++)
		start_thread(rounds, (void *)i);
	rounds((void *)0);
}
