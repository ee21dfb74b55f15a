// Two threads that meet at a barrier each round: only the longer one limits the program.
#include "common.h"

WORKER(work_a)
WORKER(work_b)

static long a_us = 6000, b_us = 4000, apart;
static pthread_barrier_t barrier;

static void *other(void *unused)
{
	name_thread("worker_b");
	if (apart)
		stay_on_cpu(1);
	for (;;) {
		work_b(b_us);
		pthread_barrier_wait(&barrier);
	}
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

	parse_arguments(argc, argv, parameters, "work_a and work_b in two threads that meet at a barrier each round");
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	if (apart)
		stay_on_cpu(0);
	for (;;) {
		work_a(a_us);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
