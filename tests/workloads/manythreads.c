// Many threads that work a little, one after the other, each waiting on a condition for its turn.
#include "common.h"

WORKER(work_a)

static long work_us = 1000, threads = 500;
static long turn;
static uint64_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct member {
	long number;
	pthread_cond_t my_turn;
};

static struct member *members;

static void *taking_turns(void *argument)
{
	struct member *me = argument;

	for (;;) {
		pthread_mutex_lock(&lock);
		while (turn != me->number)
			pthread_cond_wait(&me->my_turn, &lock);
		pthread_mutex_unlock(&lock);

		work_a(work_us);
		total += (uint64_t)me->number; // only the thread whose turn it is comes here
		count_round();

		pthread_mutex_lock(&lock);
		turn = (turn + 1) % threads;
		pthread_cond_signal(&members[turn].my_turn);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void print_total(void)
{
	printf("total %lu\n", total);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per turn" },
		{ OPTION, "threads", &threads, "threads that take turns" },
		{ 0 },
	};
	pthread_attr_t small;

	parse_arguments(argc, argv, parameters, "many threads that take turns");
	finish_on_sigterm();
	if (threads < 1)
		usage_error(parameters, "threads must be at least 1", "");
	members = calloc((size_t)threads, sizeof(*members));
	if (!members)
		die("calloc");
	at_finish = print_total;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 128 * 1024);
	for (long i = threads - 1; i >= 0; i--) {
		pthread_t thread;

		members[i].number = i;
		pthread_cond_init(&members[i].my_turn, NULL);
		if (i && (errno = pthread_create(&thread, &small, taking_turns, &members[i])))
			die("pthread_create");
	}
	taking_turns(&members[0]);
}
