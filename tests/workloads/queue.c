// Requests that wait in a queue for a server with a fixed service time S; they are put by one thread and served by another.
//
// Without --batch the queue is always full: a request waits for `places` others, so its latency is about (places + 1) S,
// and a server that is faster by a quarter saves a quarter. With --batch K the producer puts K requests, each after work P,
// and then waits until all are served. Where P < S the mean latency is S + (S - P) (K - 1) / 2: a faster server saves
// more than its part, and a faster producer makes latencies longer.
#define PROGRESS served
#include "common.h"
#include "../../bpf/stub/causal.h"
#include <semaphore.h>

WORKER(produce)
WORKER(serve)

#define ROOM 1024

static long serve_us = 4000, produce_us = 1000, places = 3, batch;
static sem_t full, empty, drained;
static int64_t put_ns[ROOM]; // ring
static int64_t waited_ns, requests;

REGION void put(void);
void put(void)
{
	CAUSAL_BEGIN("in-process");
	__asm__ volatile("" ::: "memory");
}

static void *server(void *unused)
{
	stay_on_cpu(1); // on one CPU they would take turns, and latencies would be of another kind
	for (long i = 0;; i++) {
		sem_wait(&full);
		if (!batch)
			sem_post(&empty);
		serve(serve_us);
		CAUSAL_END("in-process");
		waited_ns += now_ns() - put_ns[i % ROOM];
		requests++;
		count_round();
		if (batch && i % batch == batch - 1)
			sem_post(&drained);
	}
	return unused;
}

static void print_latency(void)
{
	printf("latency %.9f\n", requests ? (double)waited_ns / (double)requests / NS_PER_S : 0.0);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "SERVE", &serve_us, "work per request" },
		{ AMOUNT, "PRODUCE", &produce_us, "work to make one" },
		{ OPTION, "places", &places, "requests that can wait" },
		{ OPTION, "batch", &batch, "requests put before all are waited for (0: no such thing)" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a queue with a fixed service time");
	if (places < 1 || places >= ROOM || batch >= ROOM)
		usage_error(parameters, "too many requests", "");
	sem_init(&full, 0, 0);
	sem_init(&empty, 0, (unsigned)places);
	sem_init(&drained, 0, 0);
	at_finish = print_latency;
	start_thread(server, NULL);
	stay_on_cpu(0);
	for (long i = 0;; i++) {
		produce(produce_us);
		if (!batch)
			sem_wait(&empty);
		put_ns[i % ROOM] = now_ns();
		put();
		sem_post(&full);
		if (batch && i % batch == batch - 1)
			sem_wait(&drained);
	}
}
