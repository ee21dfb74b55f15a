// Threads that sit in every kind of blocking call while another one works: none may ever see an EINTR, a
// call that returns before its time, or one that never returns.
#include "common.h"
#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>

WORKER(work_a)
WORKER(waiter_work)

static long work_us = 3000, wait_us = 20000;
static long interrupted, too_short, calls;
static long hang_s = 10;
static bool finishing; // calls that end now do so because we take their resources away

enum { WAITERS = 10 };

// A waiter makes one blocking call. It returns the call's result, errno set if it is negative.
struct waiter {
	const char *name;
	long (*call)(void *resource);
	void *(*prepare)(void);
	long expected_errno; // how the time-out shows; 0: the call succeeds
	bool timed; // must not return before wait_us
	int64_t entered_ns; // 0 outside the call
};

static struct timespec relative(void)
{
	return (struct timespec){ wait_us * NS_PER_US / NS_PER_S, wait_us * NS_PER_US % NS_PER_S };
}

static void *new_pipe(void)
{
	int *ends = malloc(2 * sizeof(int));

	if (!ends || pipe(ends))
		die("pipe");
	return ends;
}

// Writes a byte (or a message) into the resource every wait_us, so that an untimed call comes back.
struct feeder {
	void (*feed)(void *resource);
	void *resource;
};

static void *feeding(void *argument)
{
	struct feeder *feeder = argument;

	for (;;) {
		sleep_us(wait_us);
		feeder->feed(feeder->resource);
	}
	return NULL;
}

static void start_feeder(void (*feed)(void *), void *resource)
{
	struct feeder *feeder = malloc(sizeof(*feeder));

	if (!feeder)
		die("malloc");
	*feeder = (struct feeder){ feed, resource };
	start_thread(feeding, feeder);
}

static void feed_pipe(void *ends)
{
	if (write(((int *)ends)[1], "x", 1) < 0)
		die("write");
}

static void *fed_pipe(void)
{
	int *ends = new_pipe();

	start_feeder(feed_pipe, ends);
	return ends;
}

static long call_read(void *ends)
{
	char byte;

	return read(((int *)ends)[0], &byte, 1);
}

static long call_poll(void *ends)
{
	struct pollfd p = { ((int *)ends)[0], POLLIN, 0 };

	return poll(&p, 1, (int)(wait_us / 1000));
}

static long call_select(void *ends)
{
	struct timeval t = { wait_us / 1000000, wait_us % 1000000 };
	int fd = ((int *)ends)[0];
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, &t);
}

static void *new_epoll(void)
{
	int *ends = new_pipe(), *epoll = malloc(sizeof(int));
	struct epoll_event event = { .events = EPOLLIN };

	if (!epoll)
		die("malloc");
	*epoll = epoll_create1(EPOLL_CLOEXEC);
	if (*epoll < 0 || epoll_ctl(*epoll, EPOLL_CTL_ADD, ends[0], &event))
		die("epoll");
	return epoll;
}

static long call_epoll(void *epoll)
{
	struct epoll_event event;

	return epoll_wait(*(int *)epoll, &event, 1, (int)(wait_us / 1000));
}

static long call_nanosleep(void *unused)
{
	struct timespec t = relative();

	(void)unused;
	return nanosleep(&t, NULL);
}

static void *new_semaphore(void)
{
	sem_t *semaphore = malloc(sizeof(*semaphore));

	if (!semaphore || sem_init(semaphore, 0, 0))
		die("sem_init");
	return semaphore;
}

static long call_sem_timedwait(void *semaphore)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += wait_us * NS_PER_US;
	t.tv_sec += t.tv_nsec / NS_PER_S;
	t.tv_nsec %= NS_PER_S;
	return sem_timedwait(semaphore, &t);
}

static long call_futex(void *unused)
{
	int word = 0;
	struct timespec t = relative();

	(void)unused;
	return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
}

static void *new_socket(void)
{
	int *ends = malloc(2 * sizeof(int));
	struct timeval t = { wait_us / 1000000, wait_us % 1000000 };

	if (!ends || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) ||
	    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)))
		die("socketpair");
	return ends;
}

static long call_recv(void *ends)
{
	char byte;

	return recv(((int *)ends)[0], &byte, 1, 0);
}

struct message {
	long type;
	char text[8];
};

static int message_queue = -1;

static void feed_queue(void *unused)
{
	struct message message = { 1, "x" };

	(void)unused;
	msgsnd(message_queue, &message, sizeof(message.text), IPC_NOWAIT);
}

static void *new_queue(void)
{
	message_queue = msgget(IPC_PRIVATE, 0600);
	if (message_queue < 0)
		die("msgget");
	start_feeder(feed_queue, NULL);
	return NULL;
}

static long call_msgrcv(void *unused)
{
	struct message message;

	(void)unused;
	return msgrcv(message_queue, &message, sizeof(message.text), 0, 0);
}

static void *new_condition(void)
{
	return NULL;
}

static long call_cond_timedwait(void *unused)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	struct timespec t;

	(void)unused;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += wait_us * NS_PER_US;
	t.tv_sec += t.tv_nsec / NS_PER_S;
	t.tv_nsec %= NS_PER_S;
	pthread_mutex_lock(&mutex);
	errno = pthread_cond_timedwait(&condition, &mutex, &t);
	pthread_mutex_unlock(&mutex);
	return errno ? -1 : 0;
}

static struct waiter waiters[WAITERS] = {
	{ "read", call_read, fed_pipe, 0, false, 0 },
	{ "poll", call_poll, new_pipe, 0, true, 0 },
	{ "epoll_wait", call_epoll, new_epoll, 0, true, 0 },
	{ "select", call_select, new_pipe, 0, true, 0 },
	{ "nanosleep", call_nanosleep, new_condition, 0, true, 0 },
	{ "sem_timedwait", call_sem_timedwait, new_semaphore, ETIMEDOUT, true, 0 },
	{ "futex", call_futex, new_condition, ETIMEDOUT, true, 0 },
	{ "recv", call_recv, new_socket, EAGAIN, true, 0 },
	{ "msgrcv", call_msgrcv, new_queue, 0, false, 0 },
	{ "cond_timedwait", call_cond_timedwait, new_condition, ETIMEDOUT, true, 0 },
};

// Timers of the kernel may be coarse in poll-like calls, which round to milliseconds.
#define SLACK_NS (NS_PER_S / 1000)

static void *waiting(void *argument)
{
	struct waiter *w = argument;
	void *resource = w->prepare();

	for (;;) {
		waiter_work(100); // user code between two calls: a place to be paused in
		int64_t entered = now_ns();
		__atomic_store_n(&w->entered_ns, entered, __ATOMIC_RELAXED);
		long result = w->call(resource);
		int error = result < 0 ? errno : 0;
		int64_t waited = now_ns() - entered;
		__atomic_store_n(&w->entered_ns, 0, __ATOMIC_RELAXED);

		if (__atomic_load_n(&finishing, __ATOMIC_ACQUIRE))
			return NULL;
		__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
		if (error != w->expected_errno) {
			__atomic_add_fetch(&interrupted, 1, __ATOMIC_RELAXED);
			fprintf(stderr, "eintr: %s: %s\n", w->name, error ? strerror(error) : "unexpected success");
		} else if (w->timed && waited < wait_us * NS_PER_US - SLACK_NS) {
			__atomic_add_fetch(&too_short, 1, __ATOMIC_RELAXED);
			fprintf(stderr, "eintr: %s: returned after %ld us of %ld\n", w->name, (long)(waited / NS_PER_US),
				wait_us);
		}
	}
	return NULL;
}

static void report(void)
{
	long hung = 0;

	__atomic_store_n(&finishing, true, __ATOMIC_RELEASE);
	for (int i = 0; i < WAITERS; i++) {
		int64_t entered = __atomic_load_n(&waiters[i].entered_ns, __ATOMIC_RELAXED);

		if (entered && now_ns() - entered > hang_s * NS_PER_S) {
			fprintf(stderr, "eintr: %s: has not returned\n", waiters[i].name);
			hung++;
		}
	}
	printf("calls %ld\neintr %ld\n", calls, interrupted + too_short + hung);
	finish_status = interrupted + too_short + hung > 0;
	if (message_queue >= 0)
		msgctl(message_queue, IPC_RMID, NULL);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round" },
		{ AMOUNT, "WAIT_US", &wait_us, "length of each blocking call, whole milliseconds" },
		{ OPTION, "hang", &hang_s, "seconds after which a call counts as lost" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads in blocking calls that must never be interrupted");
	finish_on_sigterm();
	if (wait_us % 1000 || wait_us < 1000)
		usage_error(parameters, "WAIT_US must be whole milliseconds", "");
	at_finish = report;
	for (int i = 0; i < WAITERS; i++)
		start_thread(waiting, &waiters[i]);
	for (;;) {
		work_a(work_us);
		count_round();
	}
}
