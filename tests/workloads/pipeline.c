// A bounded queue between a fast producer and a slow consumer: only the slow stage limits the program.
#include "common.h"

WORKER(stage_fast)
WORKER(stage_slow)

static long fast_us = 4800, slow_us = 6000, capacity = 8;
static long queued;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER, not_empty = PTHREAD_COND_INITIALIZER;

static void put(void)
{
	pthread_mutex_lock(&lock);
	while (queued == capacity)
		pthread_cond_wait(&not_full, &lock);
	queued++;
	pthread_cond_signal(&not_empty);
	pthread_mutex_unlock(&lock);
}

static void take(void)
{
	pthread_mutex_lock(&lock);
	while (queued == 0)
		pthread_cond_wait(&not_empty, &lock);
	queued--;
	pthread_cond_signal(&not_full);
	pthread_mutex_unlock(&lock);
}

static void *produce(void *unused)
{
	name_thread("producer");
	for (;;) {
		stage_fast(fast_us);
		put();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "FAST_US", &fast_us, "stage_fast (producer) per item" },
		{ AMOUNT, "SLOW_US", &slow_us, "stage_slow (consumer) per item" },
		{ OPTION, "capacity", &capacity, "items the queue holds" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a producer and a consumer with a bounded queue between them");
	if (capacity < 1)
		capacity = 1;
	start_thread(produce, NULL);
	for (;;) {
		take();
		stage_slow(slow_us);
		count_round();
	}
}
