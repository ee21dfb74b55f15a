// Two threads that meet every round, each on a CPU of its own: on a shared one nobody would have to be paused. The number
// of rounds is kept in a file, so that a test can see the pace at any time.
#include "../../workloads/common.h"
#include <fcntl.h>
#include <sys/mman.h>

WORKER(work_a)
WORKER(work_b)

static pthread_barrier_t meeting;

// The first CPU that the process may use, or the last.
static void stay_on(bool last)
{
	cpu_set_t allowed, chosen;
	int cpu = last ? CPU_SETSIZE - 1 : 0;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		die("sched_getaffinity");
	while (!CPU_ISSET(cpu, &allowed))
		cpu += last ? -1 : 1;
	CPU_ZERO(&chosen);
	CPU_SET(cpu, &chosen);
	if (sched_setaffinity(0, sizeof(chosen), &chosen))
		die("sched_setaffinity");
}

static void *other(void *unused)
{
	stay_on(true);
	for (;;) {
		work_b(1500);
		pthread_barrier_wait(&meeting);
	}
	return unused;
}

int main(int argc, char **argv)
{
	int file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
	volatile uint64_t *count;

	if (file < 0 || ftruncate(file, sizeof(*count)))
		die("usage: counted FILE");
	count = mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (count == MAP_FAILED)
		die("mmap");
	pthread_barrier_init(&meeting, NULL, 2);
	start_thread(other, NULL);
	stay_on(false);
	for (;;) {
		work_a(2000);
		pthread_barrier_wait(&meeting);
		progress();
		++*count;
	}
}
