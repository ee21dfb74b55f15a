// broods: after a moment, one child after the other, each of which works a little and ends.
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noipa))
#define WORK_NS 4000000

static volatile long sink;

static long cpu_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

NOINLINE void work(void)
{
	while (cpu_ns() < WORK_NS)
		for (int i = 0; i < 10000; i++)
			sink++;
}

int main(void)
{
	usleep(500000); // the profiler has looked at what is mapped
	for (;;) {
		pid_t child = fork();
		if (!child) {
			work();
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}
