// frameless PLUGIN: rounds of equal parts, each of a millisecond in code that is not the program's own and keeps no frame
// pointers, as little here does, one of them on a stack of a coroutine. The innermost function of the program is what the time belongs to.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noipa))
#define PART_NS 1000000
#define DEPTH 100
#define SIZE (1 << 16)

static volatile long sink;
static char left[SIZE], right[SIZE];
static long (*descend)(int depth, long ns);
static ucontext_t caller, routine;
static char other_stack[1 << 16];

static long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

NOINLINE __attribute__((patchable_function_entry(1))) void progress(void)
{
	sink++;
}

NOINLINE void in_library(void)
{
	for (long end = now_ns() + PART_NS; now_ns() < end;)
		sink += memcmp(left, right, SIZE);
}

NOINLINE void in_kernel(void)
{
	for (long end = now_ns() + PART_NS; now_ns() < end;)
		for (int i = 0; i < 100; i++)
			sink += syscall(SYS_getppid);
}

NOINLINE void below_many(void)
{
	sink += descend(DEPTH, PART_NS);
}

NOINLINE void interrupted(void)
{
	raise(SIGUSR1);
	sink++;
}

NOINLINE void on_another_stack(void)
{
	for (;;) {
		sink += descend(DEPTH, PART_NS);
		swapcontext(&routine, &caller);
	}
}

NOINLINE void only_calls(void)
{
	in_library();
	in_kernel();
	below_many();
	interrupted();
	swapcontext(&caller, &routine);
	progress();
}

int main(int argc, char **argv)
{
	void *plugin;
	struct sigaction action = { 0 };

	usleep(300000); // the profiler has looked at what is mapped
	plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!plugin) {
		fprintf(stderr, "usage: frameless PLUGIN\n");
		return 2;
	}
	descend = (long (*)(int, long))dlsym(plugin, "descend");
	action.sa_handler = (void (*)(int))dlsym(plugin, "handle");
	sigaction(SIGUSR1, &action, NULL);
	getcontext(&routine);
	routine.uc_stack.ss_sp = other_stack;
	routine.uc_stack.ss_size = sizeof(other_stack);
	makecontext(&routine, on_another_stack, 0);
	for (;;)
		only_calls();
}
