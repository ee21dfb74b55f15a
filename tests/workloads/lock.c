// Threads and one lock: local work outside, critical work inside.
#include "common.h"

WORKER(local_work)
WORKER(critical_work)

static long local_us = 3000, critical_us = 4000, threads = 2;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *rounds(void *unused)
{
	for (;;) {
		local_work(local_us);
		pthread_mutex_lock(&lock);
		critical_work(critical_us);
		pthread_mutex_unlock(&lock);
		count_round();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "LOCAL_US", &local_us, "local_work per round, outside the lock" },
		{ AMOUNT, "CRITICAL_US", &critical_us, "critical_work per round, inside the lock" },
		{ OPTION, "threads", &threads, "threads" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads that share one lock");
	for (long i = 1; i < threads; i++)
		start_thread(rounds, NULL);
	rounds(NULL);
}
