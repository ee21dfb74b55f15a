// Works for so many rounds, then ends with an exit code, or by a signal when the number is negative.
#include "../../workloads/common.h"

WORKER(work_a)

REGION void never_called(void);
void never_called(void)
{
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	long rounds = argc == 3 ? atol(argv[1]) : 0, how = argc == 3 ? atol(argv[2]) : 0;

	for (long i = 0; i < rounds; i++) {
		work_a(1000);
		progress();
	}
	if (argc > 3)
		never_called();
	puts("worked");
	fflush(stdout);
	if (how < 0)
		raise((int)-how);
	return (int)how;
}
