// One function called from two places: one that everything waits for, and one beside it that nothing waits for.
#include "common.h"

WORKER(work_a)

static long main_us = 4000, beside_us = 3000;
static pthread_barrier_t barrier;

REGION void on_the_way(long us)
{
	work_a(us);
	__asm__ volatile("" ::: "memory"); // the call is no jump
}

REGION void on_the_side(long us)
{
	work_a(us);
	__asm__ volatile("" ::: "memory");
}

static void *other(void *unused)
{
	name_thread("side");
	for (;;) {
		on_the_side(beside_us);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "MAIN_US", &main_us, "work_a per round in on_the_way" },
		{ AMOUNT, "BESIDE_US", &beside_us, "work_a per round in on_the_side" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "work_a called from two functions in two threads that meet each round");
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	for (;;) {
		on_the_way(main_us);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
