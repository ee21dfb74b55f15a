// A thread that notices when anybody meddles with it. `victim MODE`: says `ready`, does what MODE says, and prints what
// is left of it: `MODE ok descriptors N mask M`. Modes: spin (floating-point and integer registers in full use), nap (a sleep that
// the kernel restarts by a block of its own), read (a call that is restarted), epoll (one that is not, and is begun
// again here), fork (a second thread forks children all the time, which stay for a second and count their descriptors).
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 60

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = -3; // `.`, `..`, and this one

	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

static unsigned long mask(void)
{
	sigset_t set;
	unsigned long bits;

	pthread_sigmask(SIG_SETMASK, NULL, &set);
	memcpy(&bits, &set, sizeof(bits));
	return bits;
}

__attribute__((noinline)) static double mix(int rounds)
{
	unsigned long a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
	double x = 1, y = 2, z = 3;
	int i;

	__asm__ volatile(""); // else it would be computed once
	for (i = 0; i < rounds; i++) {
		a = a * 6364136223846793005UL + f;
		b ^= a >> 7;
		c += b * 3;
		d = (d << 5 | d >> 59) ^ c;
		e -= d;
		f += e ^ a;
		x = x * 0.999 + (double)(a & 1023);
		y = y * 0.5 + x;
		z = z * 0.25 + y;
	}
	return x + y + z + (double)(a ^ b ^ c ^ d ^ e ^ f);
}

// Until its input says so, and one round more.
static int spin(void)
{
	struct pollfd input = {.events = POLLIN};
	double first = mix(100000);
	int over;

	do {
		over = poll(&input, 1, 0);
		if (mix(100000) != first)
			return 0;
	} while (!over);
	return 1;
}

static int nap(void)
{
	struct timespec before, after, length = {0, 300000000};

	clock_gettime(CLOCK_MONOTONIC, &before);
	if (clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL))
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &after);
	return (after.tv_sec - before.tv_sec) * 1e9 + after.tv_nsec - before.tv_nsec >= 3e8;
}

static int wait_by_epoll(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(EPOLL_CLOEXEC), got;
	char byte;

	epoll_ctl(set, EPOLL_CTL_ADD, 0, &event);
	do
		got = epoll_wait(set, &event, 1, -1);
	while (got < 0 && errno == EINTR);
	close(set);
	return got == 1 && read(0, &byte, 1) == 1;
}

static volatile int stop;

static void *fork_all_the_time(void *result)
{
	pid_t children[CHILDREN];
	int i, status, good = 1;

	for (i = 0; i < CHILDREN && !stop; i++) {
		children[i] = fork();
		if (!children[i]) {
			usleep(300000);
			_exit(descriptors());
		}
		usleep(500);
	}
	while (i--)
		good &= waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 3;
	*(int *)result = good;
	return NULL;
}

static int forks(void)
{
	pthread_t second;
	char byte;
	int good = 0, got;

	pthread_create(&second, NULL, fork_all_the_time, &good);
	got = read(0, &byte, 1);
	pthread_join(second, NULL);
	return good && got == 1;
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "";
	int good;
	char byte;

	printf("ready\n");
	fflush(stdout);
	if (!strcmp(mode, "spin"))
		good = spin();
	else if (!strcmp(mode, "nap"))
		good = nap();
	else if (!strcmp(mode, "epoll"))
		good = wait_by_epoll();
	else if (!strcmp(mode, "fork"))
		good = forks();
	else
		good = read(0, &byte, 1) == 1;
	printf("%s %s descriptors %d mask %lx\n", mode, good ? "ok" : "BAD", descriptors(), mask());
	return !good;
}
