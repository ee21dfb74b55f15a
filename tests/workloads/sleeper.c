// One thread that works and sleeps beside threads that live in the kernel: its timer wakeups arrive
// while another thread of the same program is in the middle of a system call.
#include "common.h"
#include <fcntl.h>
#include <sys/syscall.h>

WORKER(work_a)

#define BUFFER_SIZE (1 << 20)

static long work_us = 1000, sleep_for_us = 1000, beside = 2, cpus;

REGION void kernel_read(int fd, char *buffer);
void kernel_read(int fd, char *buffer)
{
	for (int i = 0; i < 16; i++)
		if (read(fd, buffer, BUFFER_SIZE) < 0)
			die("read");
}

REGION void kernel_getppid(void);
void kernel_getppid(void)
{
	for (int i = 0; i < 4096; i++)
		syscall(SYS_getppid);
}

REGION void kernel_write(int fd, const char *buffer);
void kernel_write(int fd, const char *buffer)
{
	for (int i = 0; i < 64; i++)
		if (write(fd, buffer, BUFFER_SIZE) < 0)
			die("write");
}

// Thread number n lives on reads, on short calls or on writes, in turn.
static void *kernel_heavy(void *number)
{
	long kind = (long)number % 3;
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	char *buffer = calloc(1, BUFFER_SIZE);

	if (zero < 0 || null < 0 || !buffer)
		die("kernel_heavy");
	for (;;) {
		if (kind == 0)
			kernel_read(zero, buffer);
		else if (kind == 1)
			kernel_getppid();
		else
			kernel_write(null, buffer);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ AMOUNT, "SLEEP_US", &sleep_for_us, "relative sleep per round" },
		{ OPTION, "beside", &beside, "kernel-heavy threads" },
		{ OPTION, "cpus", &cpus, "CPUs to share, 0 for all" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a sleeping thread beside kernel-heavy ones");
	use_cpus(cpus);
	for (long i = 0; i < beside; i++)
		start_thread(kernel_heavy, (void *)i);
	for (;;) {
		work_a(work_us);
		sleep_us(sleep_for_us);
		count_round();
	}
}
