// A spin lock on the cache line of what it protects, taken without looking first: who waits keeps taking the line away from
// who works. The sooner a thread is done with its local work, the longer it disturbs the other.
#include "common.h"

WORKER(local_work)

#define FIELDS 4
#define UPDATES_PER_US 30
#define STEPS_PER_UPDATE 23 // with them a unit in the lock, undisturbed, takes about as long as a unit of work

static long local_us = 6000, critical_us = 7000;
static _Alignas(64) struct {
	int taken;
	volatile uint64_t field[FIELDS];
} shared;

REGION void spin_lock(void);
void spin_lock(void)
{
	while (__atomic_exchange_n(&shared.taken, 1, __ATOMIC_ACQUIRE))
		;
}

REGION void critical_work(long us);
void critical_work(long us)
{
	uint64_t x = work_sink;

	for (long i = 0; i < us * UPDATES_PER_US; i++) {
		CHAIN(x, STEPS_PER_UPDATE)
		x += shared.field[0];
		for (int field = 0; field < FIELDS; field++)
			shared.field[field] += x;
	}
	work_sink = x;
}

static void *rounds(void *unused)
{
	for (;;) {
		local_work(local_us);
		spin_lock();
		critical_work(critical_us);
		__atomic_store_n(&shared.taken, 0, __ATOMIC_RELEASE);
		count_round();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "LOCAL_US", &local_us, "local_work per round, outside the lock" },
		{ AMOUNT, "CRITICAL_US", &critical_us, "critical_work per round, inside the lock, when undisturbed" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "two threads and a spin lock that disturbs its holder");
	start_thread(rounds, NULL);
	rounds(NULL);
}
