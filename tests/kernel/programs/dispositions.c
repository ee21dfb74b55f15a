// A program that keeps changing what SIGURG does to it, in one thread while two others work: the default, ignored, and
// back to what it was before.
#include "../../workloads/common.h"

WORKER(work_a)
WORKER(work_b)

static void *changing(void *unused)
{
	static void (*const kinds[])(int) = { SIG_DFL, SIG_IGN };
	struct sigaction before;

	for (long i = 0;; i++) {
		struct sigaction action = { .sa_handler = kinds[i % 2] };

		if (sigaction(SIGURG, &action, &before))
			die("sigaction");
		work_b(300);
		if (sigaction(SIGURG, &before, NULL))
			die("sigaction");
		work_b(1200);
	}
	return unused;
}

static void *working(void *unused)
{
	for (;;)
		work_b(1000);
	return unused;
}

int main(int argc, char **argv)
{
	long rounds = argc == 2 ? atol(argv[1]) : 0;

	start_thread(changing, NULL);
	start_thread(working, NULL);
	for (long i = 0; i < rounds; i++) {
		work_a(1000);
		progress();
	}
	printf("rounds %ld\n", rounds);
	return 0;
}
