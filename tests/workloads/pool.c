// Workers that take turns on requests from outside: each waits at the same socket, the kernel wakes one per request.
// The client is a program of its own (pool_client), so that a profiler of this one sees only wakeups from outside.
#include "common.h"
#include <arpa/inet.h>
#include <sys/socket.h>

WORKER(work_a)
WORKER(work_b)

static long a_us = 6000, b_us = 2000, workers = 2, port = 7411;
static int server;

static void *serve(void *unused)
{
	struct sockaddr_in client;
	char request[64];

	for (;;) {
		socklen_t length = sizeof(client);
		ssize_t n = recvfrom(server, request, sizeof(request), 0, (struct sockaddr *)&client, &length);

		if (n < 0)
			continue;
		work_a(a_us);
		work_b(b_us);
		count_round();
		sendto(server, request, (size_t)n, 0, (struct sockaddr *)&client, length);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "work_a per request" },
		{ AMOUNT, "B_US", &b_us, "work_b per request" },
		{ OPTION, "workers", &workers, "threads that take turns" },
		{ OPTION, "port", &port, "UDP port on the loopback interface" },
		{ 0 },
	};
	parse_arguments(argc, argv, parameters, "workers that take turns on requests of an outside client");
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	server = socket(AF_INET, SOCK_DGRAM, 0);
	if (server < 0 || bind(server, (struct sockaddr *)&address, sizeof(address)))
		die("bind");
	for (long i = 1; i < workers; i++)
		start_thread(serve, NULL);
	serve(NULL);
}
