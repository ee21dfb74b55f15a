// Two threads that meet every round. The number of rounds is kept in a file, so that a test can see the pace at any time.
#include "../../workloads/common.h"
#include <fcntl.h>
#include <sys/mman.h>

WORKER(work_a)
WORKER(work_b)

static pthread_barrier_t meeting;

static void *other(void *unused)
{
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
	for (;;) {
		work_a(2000);
		pthread_barrier_wait(&meeting);
		progress();
		++*count;
	}
}
