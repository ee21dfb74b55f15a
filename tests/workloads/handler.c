// Threads that claim the profiler's signal for themselves: one program installs its own SIGURG handler
// (and sends the signal to itself), another blocks every signal, a third waits for it.
#include "common.h"
#include <sys/signalfd.h>

WORKER(work_a)
WORKER(work_b)

static long work_us = 3000, own, after_rounds, ignore, block_all, wait_for;
static volatile sig_atomic_t handled;
static long sent, stolen;

static void on_urgent(int number)
{
	(void)number;
	handled++;
}

static void *blocked(void *unused)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		work_b(work_us);
	return unused;
}

// Whatever arrives here was meant for this thread: we never send it SIGURG ourselves.
static void *waiting(void *unused)
{
	struct timespec second = { 1, 0 };
	sigset_t urgent;

	sigemptyset(&urgent);
	sigaddset(&urgent, SIGURG);
	pthread_sigmask(SIG_BLOCK, &urgent, NULL);
	for (;;) {
		if (sigtimedwait(&urgent, NULL, &second) == SIGURG)
			__atomic_add_fetch(&stolen, 1, __ATOMIC_RELAXED);
		work_b(work_us);
	}
	return unused;
}

static void report(void)
{
	printf("sent %ld handled %ld stolen %ld\n", sent, (long)handled, stolen);
	finish_status = handled != sent || stolen;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "WORK_US", &work_us, "work_a per round, and work_b in the other thread" },
		{ FLAG, "own", &own, "install a handler for SIGURG and raise it once per round" },
		{ OPTION, "after", &after_rounds, "with --own: install the handler only after so many rounds" },
		{ FLAG, "ignore", &ignore, "set SIGURG to be ignored" },
		{ FLAG, "block-all", &block_all, "a second thread that blocks all signals" },
		{ FLAG, "wait", &wait_for, "a second thread that waits for SIGURG in sigtimedwait" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads that use, block or wait for SIGURG themselves");
	finish_on_sigterm();
	at_finish = report;
	if (ignore)
		signal(SIGURG, SIG_IGN);
	if (block_all)
		start_thread(blocked, NULL);
	if (wait_for)
		start_thread(waiting, NULL);
	for (long round = 0;; round++) {
		if (own && round == after_rounds) {
			struct sigaction action = { .sa_handler = on_urgent, .sa_flags = SA_RESTART };

			if (sigaction(SIGURG, &action, NULL))
				die("sigaction");
		}
		work_a(work_us);
		if (own && round >= after_rounds) {
			sent++;
			raise(SIGURG);
		}
		count_round();
	}
}
