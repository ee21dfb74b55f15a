// Two threads that meet at a barrier each round: one computes, one reads from a disk past the page cache.
#include "common.h"

#include <fcntl.h>
#include <sys/stat.h>

WORKER(work_a)

#define BLOCK 65536
#define BLOCKS 256

static long a_us = 8000, reads = 20, sync_writes = 0;
static pthread_barrier_t barrier;
static int file;
static char *block;

REGION void disk_io(long times)
{
	for (long i = 0; i < times; i++) {
		off_t at = (off_t)(i % BLOCKS) * BLOCK;

		if (sync_writes ? pwrite(file, block, BLOCK, at) != BLOCK || fdatasync(file)
				: pread(file, block, BLOCK, at) != BLOCK) {
			perror("disk");
			_exit(1);
		}
	}
	__asm__ volatile("" ::: "memory");
}

static void open_file(void)
{
	char name[] = "/var/tmp/causal-disk-XXXXXX";

	file = mkostemp(name, O_CLOEXEC);
	if (file < 0 || posix_memalign((void **)&block, 4096, BLOCK)) {
		perror(name);
		exit(1);
	}
	unlink(name);
	memset(block, 1, BLOCK);
	for (int i = 0; i < BLOCKS; i++)
		if (write(file, block, BLOCK) != BLOCK) {
			perror(name);
			exit(1);
		}
	fsync(file);
	if (fcntl(file, F_SETFL, O_DIRECT)) {
		fprintf(stderr, "the file system of /var/tmp has no O_DIRECT\n");
		exit(3);
	}
}

static void *other(void *unused)
{
	name_thread("disk");
	for (;;) {
		disk_io(reads);
		pthread_barrier_wait(&barrier);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per round" },
		{ AMOUNT, "READS", &reads, "reads of 64 kB per round, in disk_io" },
		{ FLAG, "sync-writes", &sync_writes, "write and fdatasync instead of reading" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "work_a and disk_io in two threads that meet at a barrier each round");
	open_file();
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	for (;;) {
		work_a(a_us);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
