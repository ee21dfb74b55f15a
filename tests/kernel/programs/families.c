// CHILDREN forks, each with a fork of its own, and one more process by posix_spawn; every one of them but the first
// calls progress() VISITS times: (2 * CHILDREN + 1) * VISITS in all. With 0 children it calls progress() itself.
#include "../../workloads/common.h"
#include <spawn.h>
#include <sys/wait.h>

static void visit(long visits)
{
	for (long i = 0; i < visits; i++)
		progress();
}

static bool wait_for(pid_t pid)
{
	int status;

	return waitpid(pid, &status, 0) == pid && status == 0;
}

__attribute__((noreturn)) static void child(long visits)
{
	pid_t grandchild = fork();

	visit(visits);
	_exit(grandchild && !wait_for(grandchild));
}

int main(int argc, char **argv, char **environment)
{
	long children = argc == 3 ? atol(argv[1]) : 0, visits = argc == 3 ? atol(argv[2]) : 0;
	char *alone[] = { argv[0], "0", argv[2], NULL };
	pid_t pids[64];
	bool well = true;

	if (children == 0) {
		visit(visits);
		return 0;
	}
	if (children > 63)
		die("too many children");
	for (long i = 0; i < children; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			child(visits);
	}
	if (posix_spawn(&pids[children], "/proc/self/exe", NULL, NULL, alone, environment))
		die("posix_spawn");
	for (long i = 0; i <= children; i++)
		well = wait_for(pids[i]) && well;
	return !well;
}
