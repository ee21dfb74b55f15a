// Linked into an injector with --wrap=ptrace and --wrap=pwrite: it dies, or pauses, before the Nth of these calls
// (DIE_AT, DELAY_AT). Everything it does to a target, it does by them.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

long __real_ptrace(int request, pid_t pid, void *address, void *data);
ssize_t __real_pwrite(int descriptor, const void *from, size_t size, off_t offset);

static void count(void)
{
	static int calls;
	const char *die = getenv("DIE_AT"), *delay = getenv("DELAY_AT");

	calls++;
	if (die && calls == atoi(die))
		kill(getpid(), SIGKILL);
	if (delay && calls == atoi(delay))
		usleep(15000);
}

long __wrap_ptrace(int request, pid_t pid, void *address, void *data)
{
	count();
	return __real_ptrace(request, pid, address, data);
}

ssize_t __wrap_pwrite(int descriptor, const void *from, size_t size, off_t offset)
{
	count();
	return __real_pwrite(descriptor, from, size, offset);
}
