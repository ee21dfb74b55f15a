// A program that works, then executes itself anew until its generations are used up. Every image starts
// its own threads, so that a profiler sees threads die at the exec and new ones appear under one pid.
#include "common.h"

WORKER(work_a)

static long work_us = 3000, rounds_each = 100, execs = 5, before;

static void *beside(void *unused)
{
	for (;;) {
		work_a(work_us);
		sleep_us(work_us);
	}
	return unused;
}

__attribute__((noreturn)) static void exec_again(void)
{
	char work[32], rounds[32], left[32], total[32], iterations[32];

	snprintf(work, sizeof(work), "%ld", work_us);
	snprintf(rounds, sizeof(rounds), "%ld", rounds_each);
	snprintf(left, sizeof(left), "%ld", execs - 1);
	snprintf(total, sizeof(total), "%ld", before + rounds_each);
	snprintf(iterations, sizeof(iterations), "%ld", unit_iterations);
	execl("/proc/self/exe", program_name, work, rounds, "--execs", left, "--before", total, "--unit-iterations",
	      iterations, (char *)NULL);
	die("exec");
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ AMOUNT, "ROUNDS_EACH", &rounds_each, "rounds before each exec" },
		{ OPTION, "execs", &execs, "how often it executes itself" },
		{ OPTION, "before", &before, "rounds done by earlier images (set by itself)" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "works, then executes itself with the remaining count");
	start_thread(beside, NULL);
	for (long i = 0; i < rounds_each; i++) {
		work_a(work_us);
		progress();
		if (i == 0)
			first_round_ns = now_ns();
	}
	if (execs > 0)
		exec_again();
	printf("total %ld\n", before + rounds_each);
	finish(rounds_each);
}
