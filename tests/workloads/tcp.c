// A client and a server process that talk over TCP on the loopback interface.
#include "common.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>

WORKER(client_work)
WORKER(server_work)

#define MAX_BYTES 65536

static long client_us = 3000, server_us = 3000, bytes = 64;
static int connection = -1;
static pid_t server;

static void no_delay(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void serve(int listener)
{
	char buffer[MAX_BYTES];
	int fd = accept(listener, NULL, NULL);

	if (fd < 0)
		die("accept");
	no_delay(fd);
	while (transfer(false, fd, buffer, (size_t)bytes)) {
		server_work(server_us);
		if (!transfer(true, fd, buffer, (size_t)bytes))
			break;
	}
	_exit(0);
}

static void reap(void)
{
	close(connection);
	waitpid(server, NULL, 0);
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "CLIENT_US", &client_us, "client_work per request" },
		{ AMOUNT, "SERVER_US", &server_us, "server_work per request" },
		{ OPTION, "bytes", &bytes, "size of a request and of a response" },
		{ 0 },
	};
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	char buffer[MAX_BYTES] = { 0 };

	parse_arguments(argc, argv, parameters, "a client and a server process on loopback TCP");
	if (bytes < 1 || bytes > MAX_BYTES)
		usage_error(parameters, "bytes must be 1 to 65536", "");
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		die("listen");
	server = fork();
	if (server < 0)
		die("fork");
	if (server == 0)
		serve(listener);
	close(listener);
	connection = socket(AF_INET, SOCK_STREAM, 0);
	if (connection < 0 || connect(connection, (struct sockaddr *)&address, length))
		die("connect");
	no_delay(connection);
	at_finish = reap;
	for (;;) {
		client_work(client_us);
		if (!transfer(true, connection, buffer, (size_t)bytes) ||
		    !transfer(false, connection, buffer, (size_t)bytes))
			die("server has gone");
		count_round();
	}
}
