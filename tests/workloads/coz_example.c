// The motivating example of the COZ paper (SOSP 2015, figure 1): two threads are started and joined each round.
// The function that runs a little longer looks like half of the program and is worth 4.5 % at most.
#include "common.h"

WORKER(work_a)
WORKER(work_b)

static long a_us = 6700, b_us = 6400, apart;

static void *run_a(void *unused)
{
	if (apart)
		stay_on_cpu(0);
	work_a(a_us);
	return unused;
}

static void *run_b(void *unused)
{
	if (apart)
		stay_on_cpu(1);
	work_b(b_us);
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per round" },
		{ AMOUNT, "B_US", &b_us, "work_b per round" },
		{ FLAG, "apart", &apart, "each thread on a CPU of its own" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "two threads that are started and joined each round");
	for (;;) {
		pthread_t a = start_thread(run_a, NULL), b = start_thread(run_b, NULL);

		pthread_join(a, NULL);
		pthread_join(b, NULL);
		count_round();
	}
}
