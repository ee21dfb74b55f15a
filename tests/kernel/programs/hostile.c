// What makes it hard to hold a thread for a moment without harm: threads that allocate, load libraries, fork, unwind, jump
// out of signal handlers, compute with all registers and sit in calls that can be interrupted, each checking its own
// results. `hostile ROUNDS` prints what it did, the same every time, then waits for its standard input to end.
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long rounds;

struct task {
	const char *name;
	long (*once)(long round); // returns what is added up; a negative number is a failure
	long sum, failures;
};

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long allocate(long round)
{
	char *blocks[64];
	long sum = 0;

	for (int i = 0; i < 64; i++) {
		size_t size = 1 + (round * 7919 + i * 104729) % 70000;
		blocks[i] = malloc(size);
		if (!blocks[i])
			return -1;
		memset(blocks[i], i, size);
	}
	for (int i = 0; i < 64; i++) {
		sum += blocks[i][0];
		free(blocks[i]);
	}
	return sum;
}

static long load(long round)
{
	void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
	double (*function)(double) = library ? (double (*)(double))dlsym(library, "cbrt") : NULL;
	long result = function ? (long)(function(27.0) * 10 + 0.5) : -1;

	(void)round;
	if (library)
		dlclose(library);
	return result;
}

static long fork_one(long round)
{
	int status = 0;
	pid_t child = fork();

	if (!child)
		_exit(round % 50);
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static void clean(void *sum)
{
	*(long *)sum += 3;
}

static void *unwind(void *sum)
{
	pthread_cleanup_push(clean, sum);
	pthread_exit(NULL); // unwinds the stack as an exception does
	pthread_cleanup_pop(0);
	return NULL;
}

static long end_threads(long round)
{
	long sum = 0;
	pthread_t thread;

	(void)round;
	for (int i = 0; i < 4; i++)
		if (pthread_create(&thread, NULL, unwind, &sum) || pthread_join(thread, NULL))
			return -1;
	return sum;
}

static __thread sigjmp_buf landing;

static void jump(int number)
{
	(void)number;
	siglongjmp(landing, 1);
}

static long jump_out(long round)
{
	(void)round;
	if (!sigsetjmp(landing, 1)) {
		pthread_kill(pthread_self(), SIGUSR1);
		return -1;
	}
	return 5;
}

static long compute(long round)
{
	double x[16], y = 0;

	for (int i = 0; i < 16; i++)
		x[i] = i + 1;
	for (int k = 0; k < 20000; k++)
		for (int i = 0; i < 16; i++)
			x[i] = x[i] * 1.0000001 + 1e-9;
	for (int i = 0; i < 16; i++)
		y += x[i];
	return (long)(y + 0.5) + round % 3;
}

static long wait_poll(long round)
{
	int64_t before = now_ns();
	int result = round % 2 ? poll(NULL, 0, 3) : (int)usleep(3000);

	return result == 0 && now_ns() - before >= 3000000 ? 1 : -1;
}

static long wait_epoll(long round)
{
	static int descriptor = -1;
	struct epoll_event event;
	int64_t before = now_ns();

	(void)round;
	if (descriptor < 0)
		descriptor = epoll_create1(EPOLL_CLOEXEC);
	return epoll_wait(descriptor, &event, 1, 4) == 0 && now_ns() - before >= 3900000 ? 1 : -1;
}

// A signal that arrives while it waits, through a handler without SA_RESTART: here EINTR is what must be seen.
static void nothing(int number)
{
	(void)number;
}

struct sleeper {
	pthread_t thread;
	volatile int awake;
};

// Again and again, since the first may come before the call that it is to interrupt.
static void *ring(void *argument)
{
	struct sleeper *sleeper = argument;

	while (!sleeper->awake) {
		usleep(2000);
		pthread_kill(sleeper->thread, SIGUSR2);
	}
	return NULL;
}

static long be_interrupted(long round)
{
	int ends[2];
	char byte;
	struct sleeper self = { pthread_self(), 0 };
	pthread_t thread;
	long result;

	(void)round;
	if (pipe(ends) || pthread_create(&thread, NULL, ring, &self))
		return -1;
	result = read(ends[0], &byte, 1) == -1 && errno == EINTR ? 7 : -1;
	self.awake = 1;
	pthread_join(thread, NULL);
	close(ends[0]);
	close(ends[1]);
	return result;
}

static struct task tasks[] = {
	{ "allocate", allocate, 0, 0 },       { "load", load, 0, 0 },
	{ "fork", fork_one, 0, 0 },           { "end_threads", end_threads, 0, 0 },
	{ "jump_out", jump_out, 0, 0 },       { "compute", compute, 0, 0 },
	{ "poll", wait_poll, 0, 0 },          { "epoll", wait_epoll, 0, 0 },
	{ "interrupted", be_interrupted, 0, 0 },
};
enum { TASKS = sizeof(tasks) / sizeof(*tasks) };

static void *perform(void *argument)
{
	struct task *task = argument;

	for (long round = 0; round < rounds; round++) {
		long result = task->once(round);
		if (result < 0)
			task->failures++;
		else
			task->sum += result;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction jumping = { .sa_handler = jump }, ringing = { .sa_handler = nothing };
	pthread_t threads[TASKS];
	char byte;

	rounds = argc == 2 ? atol(argv[1]) : 100;
	sigaction(SIGUSR1, &jumping, NULL);
	sigaction(SIGUSR2, &ringing, NULL);
	for (int i = 0; i < TASKS; i++)
		if (pthread_create(&threads[i], NULL, perform, &tasks[i]))
			return 2;
	for (int i = 0; i < TASKS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < TASKS; i++)
		printf("%s %ld failures %ld\n", tasks[i].name, tasks[i].sum, tasks[i].failures);
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		;
	return 0;
}
