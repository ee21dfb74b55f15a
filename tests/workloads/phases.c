// A program that behaves in two ways by turns, for some seconds each: what is true in one phase is not true of the whole.
// The phases are counted in rounds, so a faster round makes its phase shorter, as in a program with a given amount of work.
#include "common.h"

WORKER(work_a)
WORKER(work_b)

static long a_us[2] = { 6000, 0 }, b_us[2] = { 0, 6000 }, phase_rounds = 500;
static pthread_barrier_t barrier;

static int phase_of(long round)
{
	return (int)(round / phase_rounds % 2);
}

static void *other(void *unused)
{
	name_thread("worker_b");
	for (long round = 0;; round++) {
		work_b(b_us[phase_of(round)]);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A1_US", &a_us[0], "work_a per round of the first phase" },
		{ AMOUNT, "B1_US", &b_us[0], "work_b per round of the first phase, in a second thread" },
		{ AMOUNT, "A2_US", &a_us[1], "work_a per round of the second phase" },
		{ AMOUNT, "B2_US", &b_us[1], "work_b per round of the second phase" },
		{ OPTION, "phase-rounds", &phase_rounds, "rounds in a phase" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "two behaviours by turns, two threads that meet at a barrier each round");
	if (phase_rounds < 1)
		phase_rounds = 1;
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	for (long round = 0;; round++) {
		work_a(a_us[phase_of(round)]);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
