// The known answer of AMD's causal profiler: a slow and a fast thread, the fast one with 80 % of the work. The main thread
// waits for both and works on nothing. Speeding up the slow one by 10, 20, 30 % gains 10, 20, 20 %; the fast one nothing.
#include "common.h"

WORKER(work_fast)
WORKER(work_slow)

static long fast_us = 4800, slow_us = 6000;
static pthread_barrier_t barrier;

static void *fast(void *unused)
{
	name_thread("fast");
	for (;;) {
		work_fast(fast_us);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

static void *slow(void *unused)
{
	name_thread("slow");
	for (;;) {
		work_slow(slow_us);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "FAST_US", &fast_us, "work_fast per round" },
		{ AMOUNT, "SLOW_US", &slow_us, "work_slow per round" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a fast and a slow thread, and a main thread that waits for both");
	pthread_barrier_init(&barrier, NULL, 3);
	start_thread(fast, NULL);
	start_thread(slow, NULL);
	for (;;) {
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
