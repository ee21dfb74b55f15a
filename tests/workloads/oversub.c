// More independent threads than CPUs: every round is work_a, then work_b.
#include "common.h"

WORKER(work_a)
WORKER(work_b)

static long a_us = 3300, b_us = 2700, threads = 8, cpus = 2;

static void *rounds(void *unused)
{
	for (;;) {
		work_a(a_us);
		work_b(b_us);
		count_round();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per round" },
		{ AMOUNT, "B_US", &b_us, "work_b per round" },
		{ OPTION, "threads", &threads, "independent threads" },
		{ OPTION, "cpus", &cpus, "CPUs they share, 0 for all" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "independent threads that outnumber the CPUs");
	use_cpus(cpus);
	for (long i = 1; i < threads; i++)
		start_thread(rounds, NULL);
	rounds(NULL);
}
