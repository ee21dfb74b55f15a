// One thread that works and sleeps.
#include "common.h"

WORKER(work_a)

static long work_us = 3000, sleep_for_us = 3000;

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ AMOUNT, "SLEEP_US", &sleep_for_us, "relative sleep per round" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "one thread that works, then sleeps");
	for (;;) {
		work_a(work_us);
		sleep_us(sleep_for_us);
		count_round();
	}
}
