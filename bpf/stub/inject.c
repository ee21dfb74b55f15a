// causal-inject: brings the pause handler into a running process. The profiler starts it once per process; it finishes
// its work also when the profiler is killed meanwhile.
//
//     causal-inject PID START DESCRIPTOR LINES CHAIN
//
// START is the start time of PID (field 22 of /proc/PID/stat), so that another process that got its number is left alone;
// DESCRIPTOR is the table of answers (a BPF map of LINES lines); CHAIN is 1 when the program's own handler of the signal
// must go on seeing it (Go). Prints one line: `ok key=value ...` or `error REASON text`.
//
// It needs no libc in the target, no file and no name: one thread executes a dozen system calls. See tracee.h for how.

#define _GNU_SOURCE
#include "handover.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *reason, const char *format, ...)
{
	va_list rest;

	printf("error %s ", reason);
	va_start(rest, format);
	vprintf(format, rest);
	va_end(rest);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// --- threads that block the signal ----------------------------------------------------------------------------------

static int waits_for_signals(pid_t pid, pid_t tid)
{
	unsigned long second;

	return system_call_of(pid, tid, &second) == SYS_rt_sigtimedwait;
}

static int repair_thread(struct injection *x, pid_t tid)
{
	struct tracee t = {.pid = x->thread.pid, .tid = tid, .memory = x->thread.memory};

	if (hold(&t) != OK)
		return 0;
	return let_go(&t, t.mask_before & ~(1UL << (x->signal - 1))) == OK;
}

// Many programs block everything in their worker threads. Twice seen blocked: libc blocks all signals for a moment here
// and there. New threads inherit the mask, so until nothing changes.
static int repair_masks(struct injection *x)
{
	int round, repaired = 0;
	pid_t pid = x->thread.pid, tid, seen[4096];

	for (round = 0; round < 4; round++) {
		int count = 0, done = 0, i;
		DIR *tasks = open_tasks(pid);
		while (tasks && count < 4096 && (tid = next_thread(tasks)))
			if (blocks(pid, tid, x->signal) && !waits_for_signals(pid, tid))
				seen[count++] = tid;
		if (tasks)
			closedir(tasks);
		if (!count)
			break;
		usleep(3000);
		for (i = 0; i < count; i++)
			if (blocks(pid, seen[i], x->signal) && !waits_for_signals(pid, seen[i]))
				done += repair_thread(x, seen[i]);
		repaired += done;
		if (!done)
			break;
	}
	return repaired;
}

// --- the program ----------------------------------------------------------------------------------------------------

static void ignore(int number)
{
	(void)number;
}

static void outlive_everybody(void)
{
	static const int fatal[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2};
	struct sigaction alarm = {.sa_handler = ignore}; // without SA_RESTART: it ends a wait
	size_t i;

	setsid();
	for (i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
		signal(fatal[i], SIG_IGN);
	sigaction(SIGALRM, &alarm, NULL);
}

// Two injectors must not use the same landing. The mark vanishes with us.
static void wait_for_others(pid_t pid, const char *start)
{
	struct sockaddr_un mark = {.sun_family = AF_UNIX};
	int patience, length, s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	length = snprintf(mark.sun_path + 1, sizeof(mark.sun_path) - 1, "causal-inject/%d/%.20s", pid, start);
	for (patience = 0; patience < 200; patience++) {
		if (!bind(s, (struct sockaddr *)&mark, offsetof(struct sockaddr_un, sun_path) + 1 + length))
			return;
		usleep(5000);
	}
	fail("taken", "by another injector");
}

static void hold_some_thread(struct injection *x)
{
	pid_t except = 0;
	int patience, how_good, attempts;

	for (attempts = 0; attempts < 3; attempts++) {
		for (patience = 0; patience < 40; patience++) {
			x->thread.tid = best_thread(x->thread.pid, except, &how_good);
			if (how_good < UNSUITABLE)
				break;
			usleep(5000);
		}
		if (!x->thread.tid) {
			x->how = GONE;
			return;
		}
		x->how = hold(&x->thread);
		x->error = errno;
		if (x->how != TIMED_OUT && x->how != GONE)
			return;
		except = x->thread.tid;
	}
}

static void report(const struct injection *x, double stopped_us)
{
	switch (x->how) {
	case OK:
		printf("ok signal=%d handler=%lx reused=%d stopped_us=%.0f repaired=%d\n", x->signal,
		       handler_address(x), x->reused, stopped_us, repair_masks((struct injection *)x));
		break;
	case REFUSED:
		fail(x->error == EBUSY ? "busy" : "refused", "%s: %s", x->failed, strerror(x->error));
		break;
	case GONE:
		fail("gone", "it ended, or executed another program");
		break;
	case DENIED:
		fail("denied", "%s", strerror(x->error));
		break;
	case TIMED_OUT:
		fail("stuck", "it did not stop");
		break;
	case TAKEN:
		fail("taken", "its places are not free yet");
		break;
	case UNFIT:
		fail("unfit", "no 64-bit system call could be made in it");
		break;
	}
	fflush(stdout);
}

int main(int count, char **words)
{
	struct injection x = {.sockets = {-1, -1}, .received = -1, .ours = -1};
	unsigned long long start;
	char path[64];
	double began, stopped_us;

	if (count != 6) {
		fprintf(stderr, "usage: causal-inject PID START DESCRIPTOR LINES CHAIN (started by causal-bpf)\n");
		return 2;
	}
	x.thread.pid = atoi(words[1]);
	start = strtoull(words[2], NULL, 10);
	x.table = atoi(words[3]);
	x.lines = strtoul(words[4], NULL, 10);
	x.chain = atoi(words[5]);
	outlive_everybody();
	wait_for_others(x.thread.pid, words[2]);
	x.pidfd = syscall(SYS_pidfd_open, x.thread.pid, 0);
	if (x.pidfd < 0 || !is_still(x.thread.pid, start))
		fail("gone", "no such process any more");
	snprintf(path, sizeof(path), "/proc/%d/mem", x.thread.pid);
	x.thread.memory = open(path, O_RDWR | O_CLOEXEC);
	if (x.thread.memory < 0) // a file of the target's user: CAP_SYS_PTRACE alone does not open it
		fail(errno == EACCES ? "closed" : "denied", "%s", strerror(errno));
	hold_some_thread(&x);
	began = now_us();
	if (x.how == OK) {
		enum outcome how;
		x.how = prepare(&x.thread);
		if (x.how == OK)
			hand_over(&x);
		if (x.how == OK || x.how == REFUSED || x.how == UNFIT) {
			how = let_go(&x.thread, x.thread.mask_before);
			if (x.how == OK)
				x.how = how;
		}
	}
	stopped_us = now_us() - began;
	close_in_children(&x);
	report(&x, stopped_us);
	return 0;
}
