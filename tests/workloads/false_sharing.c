// Two threads whose statistics share a cache line: each counts fast alone and slowly beside the other. One
// prepares first, so that they count one after the other; the faster it prepares, the more they count at the same time,
// and the slower the program is.
#include "common.h"

WORKER(prepare)

#define LINE_BYTES 64
#define FIELDS 4
#define UPDATES_PER_US 30
#define STEPS_PER_UPDATE 23 // with them a unit of counting, alone, takes about as long as a unit of work

// Half a cache line.
struct statistics {
	volatile uint64_t field[FIELDS];
};

static long prepare_us = 6000, count_us = 7000, apart;
static _Alignas(LINE_BYTES) struct statistics statistics[4];
static pthread_barrier_t barrier;

// Every update needs what the fields hold, so it has to wait until the line is back.
REGION void count(struct statistics *mine, long us);
void count(struct statistics *mine, long us)
{
	uint64_t x = work_sink;

	for (long i = 0; i < us * UPDATES_PER_US; i++) {
		CHAIN(x, STEPS_PER_UPDATE)
		x += mine->field[0];
		for (int field = 0; field < FIELDS; field++)
			mine->field[field] += x;
	}
	work_sink = x;
}

static void *other(void *unused)
{
	struct statistics *mine = &statistics[apart ? 2 : 1];

	name_thread("worker_b");
	for (;;) {
		count(mine, count_us);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "PREPARE_US", &prepare_us, "prepare per round, before the first thread counts" },
		{ AMOUNT, "COUNT_US", &count_us, "count per round and thread, when alone" },
		{ FLAG, "apart", &apart, "the statistics on lines of their own" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "two threads that count on one cache line and meet at a barrier each round");
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	for (;;) {
		prepare(prepare_us);
		count(&statistics[0], count_us);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
