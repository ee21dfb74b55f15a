// A loop paced from outside: it starts a round every PERIOD_US and works for less than that.
#include "common.h"

WORKER(work_a)

static long period_us = 10000, work_us = 5000;

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "PERIOD_US", &period_us, "time between two rounds" },
		{ AMOUNT, "WORK_US", &work_us, "work_a per round, less than the period" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a loop that wakes at absolute times");
	int64_t next_ns = now_ns();
	for (;;) {
		work_a(work_us);
		count_round();
		next_ns += period_us * NS_PER_US;
		struct timespec t = { next_ns / NS_PER_S, next_ns % NS_PER_S };
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
			;
	}
}
