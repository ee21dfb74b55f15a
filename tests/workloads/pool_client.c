// The outside client of `pool`: sends a request, waits for the answer, thinks (sleeps), for as many clients as asked.
#include "common.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

static long think_us = 4000, clients = 1, port = 7411;

static void *demand(void *unused)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timeval patience = { .tv_usec = 200000 }; // the server may not be there yet, or no more
	char message[16] = "request";
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
		die("connect");
	for (;;) {
		if (send(fd, message, sizeof(message), 0) < 0 || recv(fd, message, sizeof(message), 0) < 0)
			sleep_us(10000);
		else
			count_round();
		sleep_us(think_us);
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "THINK_US", &think_us, "pause between an answer and the next request" },
		{ OPTION, "clients", &clients, "how many ask at the same time" },
		{ OPTION, "port", &port, "UDP port on the loopback interface" },
		{ 0 },
	};
	parse_arguments(argc, argv, parameters, "the outside client of pool");
	for (long i = 1; i < clients; i++)
		start_thread(demand, NULL);
	demand(NULL);
}
