// Two threads that hand a turn to each other by spinning on an atomic: no system call in sight.
#include "common.h"

WORKER(work_a)
WORKER(work_b)

static long a_us = 3000, b_us = 3000;
static _Alignas(64) int turn;

REGION void spin_wait(int mine);
void spin_wait(int mine)
{
	while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != mine)
		cpu_relax();
}

static void *other(void *unused)
{
	for (;;) {
		spin_wait(1);
		work_b(b_us);
		__atomic_store_n(&turn, 0, __ATOMIC_RELEASE);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per round" },
		{ AMOUNT, "B_US", &b_us, "work_b per round" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "two threads that take turns, the waiting one spins");
	start_thread(other, NULL);
	for (;;) {
		work_a(a_us);
		__atomic_store_n(&turn, 1, __ATOMIC_RELEASE);
		spin_wait(0);
		count_round();
	}
}
