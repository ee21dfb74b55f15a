// A queue that is always full, served at a fixed pace: a request waits for all before it. Latency from put to served is
// (places + 1) times the service time, so a server that is faster by a quarter saves a quarter, while the producer, which
// is faster than the server anyway, saves nothing.
#define PROGRESS served
#include "../../workloads/common.h"
#include "../../../bpf/stub/causal.h"
#include <semaphore.h>

WORKER(produce)
WORKER(serve)

REGION void put(void);
void put(void)
{
	CAUSAL_BEGIN("in-process");
	__asm__ volatile("" ::: "memory");
}

static long serve_us = 4000, produce_us = 1000, places = 3;
static sem_t full, empty;

static void *server(void *unused)
{
	for (;;) {
		sem_wait(&full);
		sem_post(&empty);
		serve(serve_us);
		CAUSAL_END("in-process");
		count_round();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "SERVE_US", &serve_us, "work per request" },
		{ AMOUNT, "PRODUCE_US", &produce_us, "work to make one" },
		{ OPTION, "places", &places, "requests that can wait" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a full queue");
	sem_init(&full, 0, 0);
	sem_init(&empty, 0, (unsigned)places);
	start_thread(server, NULL);
	for (;;) {
		produce(produce_us);
		sem_wait(&empty);
		put();
		sem_post(&full);
	}
}
