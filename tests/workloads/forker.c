// A server of the pre-fork kind: the parent forks workers that work and report through shared memory.
#include "common.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

WORKER(work_a)
WORKER(work_b)

static long a_us = 3300, b_us = 2700, workers = 2;

#define MAX_WORKERS 256

// On a cache line of its own, written by one worker only.
struct report {
	_Alignas(64) long rounds;
};

static struct report *reports;
static pid_t pids[MAX_WORKERS];

__attribute__((noreturn)) static void worker(struct report *report, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	for (;;) {
		work_a(a_us);
		work_b(b_us);
		progress();
		__atomic_add_fetch(&report->rounds, 1, __ATOMIC_RELAXED);
	}
}

static long total_rounds(void)
{
	long total = 0;

	for (long i = 0; i < workers; i++)
		total += __atomic_load_n(&reports[i].rounds, __ATOMIC_RELAXED);
	return total;
}

static void stop_workers(void)
{
	for (long i = 0; i < workers; i++)
		kill(pids[i], SIGKILL);
	for (long i = 0; i < workers; i++)
		waitpid(pids[i], NULL, 0);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per round" },
		{ AMOUNT, "B_US", &b_us, "work_b per round" },
		{ OPTION, "workers", &workers, "forked workers" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "a parent that forks workers; progress is in the workers");
	if (workers < 1 || workers > MAX_WORKERS)
		usage_error(parameters, "workers must be 1 to 256", "");
	reports = mmap(NULL, MAX_WORKERS * sizeof(*reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (reports == MAP_FAILED)
		die("mmap");
	pid_t parent = getpid();
	for (long i = 0; i < workers; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			die("fork");
		if (pids[i] == 0)
			worker(&reports[i], parent);
	}
	at_finish = stop_workers;
	for (;;) {
		sleep_us(1000);
		long total = total_rounds();
		bool late = seconds_wanted > 0 && (double)(now_ns() - started_ns) >= seconds_wanted * NS_PER_S;

		if (total && !first_round_ns)
			first_round_ns = now_ns();
		if ((rounds_wanted && total >= rounds_wanted) || late)
			finish(total);
	}
}
