// What frameless loads while it runs: frames, a signal handler, and no frame pointers.
#include <time.h>

static volatile long sink;

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

__attribute__((noinline, noipa)) long descend(int depth, long ns)
{
	long result = 0;

	if (depth)
		return descend(depth - 1, ns) + sink;
	for (long end = now_ns() + ns; now_ns() < end;)
		result += sink++;
	return result;
}

void handle(int number)
{
	sink += descend(1, 1000000) + number;
}
