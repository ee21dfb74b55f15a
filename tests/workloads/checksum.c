// A deterministic program of several threads: what it prints must not depend on being profiled. It prints no time.
#include "common.h"

static long rounds = 200, work_us = 3000, threads = 3;
static pthread_barrier_t barrier;

struct lane {
	uint64_t state;
	char padding[56];
};

static struct lane *lanes;

REGION void mix_lane(struct lane *lane, long units);
void mix_lane(struct lane *lane, long units)
{
	lane->state = chain(lane->state, units * unit_iterations);
}

REGION void exchange(long number);
void exchange(long number)
{
	lanes[number].state ^= lanes[(number + 1) % threads].state >> 7;
}

// Lanes exchange one after the other, by number, so that the result is always the same.
static void *running(void *argument)
{
	long number = (long)argument;

	for (long round = 0; round < rounds; round++) {
		mix_lane(&lanes[number], work_us);
		pthread_barrier_wait(&barrier);
		if (number == 0) {
			for (long i = 0; i < threads; i++)
				exchange(i);
			progress();
			if (round % 50 == 0)
				printf("round %ld %016lx\n", round, lanes[0].state);
		}
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "ROUNDS", &rounds, "rounds to do" },
		{ AMOUNT, "WORK_US", &work_us, "mix_lane per round and thread" },
		{ OPTION, "threads", &threads, "threads" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "prints checksums of a deterministic calculation, and no time");
	if (threads < 1)
		usage_error(parameters, "threads must be at least 1", "");
	if (rounds_wanted)
		rounds = rounds_wanted;
	lanes = calloc((size_t)threads, sizeof(*lanes));
	pthread_t *others = calloc((size_t)threads, sizeof(*others));
	if (!lanes || !others)
		die("calloc");
	for (long i = 0; i < threads; i++)
		lanes[i].state = (uint64_t)i + 1;
	pthread_barrier_init(&barrier, NULL, (unsigned)threads);
	for (long i = 1; i < threads; i++)
		others[i] = start_thread(running, (void *)i);
	running((void *)0);
	for (long i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
	for (long i = 0; i < threads; i++)
		printf("lane %ld %016lx\n", i, lanes[i].state);
	return 0;
}
