// Two threads, or two processes, that take turns over a socketpair.
#include "common.h"
#include <sys/socket.h>
#include <sys/wait.h>

WORKER(ping_work)
WORKER(pong_work)

static long ping_us = 3000, pong_us = 3000, processes;
static int ends[2];
static pid_t child;

static void pong_loop(int fd)
{
	char byte;

	while (transfer(false, fd, &byte, 1)) {
		pong_work(pong_us);
		if (!transfer(true, fd, &byte, 1))
			return;
	}
}

static void *pong_thread(void *unused)
{
	pong_loop(ends[1]);
	return unused;
}

static void reap(void)
{
	close(ends[0]);
	if (child)
		waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "PING_US", &ping_us, "ping_work per round" },
		{ AMOUNT, "PONG_US", &pong_us, "pong_work per round" },
		{ FLAG, "processes", &processes, "two processes instead of two threads" },
		{ 0 },
	};
	char byte = 'x';

	parse_arguments(argc, argv, parameters, "two threads or processes that take turns over a socketpair");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair");
	at_finish = reap;
	if (processes) {
		child = fork();
		if (child < 0)
			die("fork");
		if (child == 0) {
			close(ends[0]);
			pong_loop(ends[1]);
			_exit(0);
		}
		close(ends[1]);
	} else {
		start_thread(pong_thread, NULL);
	}
	for (;;) {
		ping_work(ping_us);
		if (!transfer(true, ends[0], &byte, 1) || !transfer(false, ends[0], &byte, 1))
			die("pong has gone");
		count_round();
	}
}
