// Two threads that meet at a barrier each round: one computes, one reads from a disk past the page cache, or from a
// device that answers after a known time.
#include "common.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

WORKER(work_a)

#define CANNOT_RUN_HERE 77 // as automake has it
#define BLOCK 65536
#define BLOCKS 256

static long a_us = 8000, reads = 20, latency_us = 0, sync_writes = 0, device = 0, apart = 0;
static pthread_barrier_t barrier;
static int file;
static char *block;

// A timer's descriptor: what reads it waits for an interrupt, like a disk's reader, for as long as was asked for.
static void read_device(void)
{
	struct itimerspec answer = { .it_value = { .tv_nsec = latency_us ? latency_us * NS_PER_US : 1 } };
	uint64_t times;

	if (timerfd_settime(file, 0, &answer, NULL) || read(file, &times, sizeof(times)) != sizeof(times))
		die("timer");
}

static void read_disk(off_t at)
{
	if (sync_writes ? pwrite(file, block, BLOCK, at) != BLOCK || fdatasync(file)
			: pread(file, block, BLOCK, at) != BLOCK)
		die("disk");
}

REGION void disk_io(long times)
{
	for (long i = 0; i < times; i++) {
		if (device)
			read_device();
		else
			read_disk((off_t)(i % BLOCKS) * BLOCK);
	}
	__asm__ volatile("" ::: "memory");
}

static void open_file(void)
{
	if (device) {
		file = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
		if (file < 0)
			die("timerfd_create");
		return;
	}

	const char *where = getenv("TMPDIR");
	char name[4096];

	snprintf(name, sizeof(name), "%s/causal-disk-XXXXXX", where ? where : "/var/tmp");
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
		fprintf(stderr, "the file system of %s has no O_DIRECT\n", where ? where : "/var/tmp");
		exit(CANNOT_RUN_HERE);
	}
}

static void *other(void *unused)
{
	name_thread("disk");
	if (apart)
		stay_on_cpu(1);
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
		{ AMOUNT, "LATENCY_US", &latency_us, "how long a read takes, with --device" },
		{ FLAG, "device", &device, "read a device that answers after LATENCY_US, and no disk" },
		{ FLAG, "apart", &apart, "each thread on a CPU of its own" },
		{ FLAG, "sync-writes", &sync_writes, "write and fdatasync instead of reading" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "work_a and disk_io in two threads that meet at a barrier each round");
	open_file();
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	if (apart)
		stay_on_cpu(0);
	for (;;) {
		work_a(a_us);
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
