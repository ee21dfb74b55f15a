// Threads that work, then sleep; beside them idle pools that nothing depends on: one sleeps, one waits at an empty queue.
#include "common.h"

WORKER(work_a)

static long work_us = 1000, rest_for_us = 5000, threads = 1, idle = 0, queue = 0;
static int empty[2];

REGION void rest(long us)
{
	sleep_us(us);
	__asm__ volatile("" ::: "memory"); // the call is no jump
}

REGION void idle_rest(void)
{
	sleep_us(20000);
	__asm__ volatile("" ::: "memory");
}

REGION void idle_take(void)
{
	char item;

	if (read(empty[0], &item, 1) != 1)
		die("pipe");
	__asm__ volatile("" ::: "memory");
}

static void *rounds(void *unused)
{
	for (;;) {
		work_a(work_us);
		rest(rest_for_us);
		count_round();
	}
	return unused;
}

static void *idling(void *unused)
{
	for (;;)
		idle_rest();
	return unused;
}

static void *taking(void *unused)
{
	for (;;)
		idle_take();
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ AMOUNT, "REST_US", &rest_for_us, "relative sleep per round, in rest" },
		{ OPTION, "threads", &threads, "threads that do this" },
		{ OPTION, "idle", &idle, "threads that only sleep, in idle_rest" },
		{ OPTION, "queue", &queue, "threads that wait at an empty pipe, in idle_take" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads that work, then sleep, beside an idle pool");
	for (long i = 0; i < idle; i++)
		start_thread(idling, NULL);
	if (pipe(empty))
		die("pipe");
	for (long i = 0; i < queue; i++)
		start_thread(taking, NULL);
	for (long i = 1; i < threads; i++)
		start_thread(rounds, NULL);
	rounds(NULL);
}
