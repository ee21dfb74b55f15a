// A closed-loop HTTP client: `http_load PORT CONNECTIONS` asks for / again and again, one thread per connection, each
// waiting for the whole answer before it asks again. Runs until it is killed.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int port;

static int connect_to_server(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	int descriptor = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (descriptor < 0 || connect(descriptor, (struct sockaddr *)&address, sizeof(address))) {
		perror("connect");
		exit(1);
	}
	return descriptor;
}

// Reads one answer; its end is the last chunk. Returns 0 when the connection is gone.
static int read_answer(int descriptor)
{
	static const char end[] = "\r\n0\r\n\r\n";
	char buffer[65536];
	size_t size = 0;

	for (;;) {
		ssize_t got = read(descriptor, buffer + size, sizeof(buffer) - size);
		if (got <= 0)
			return 0;
		size += got;
		if (size >= sizeof(end) - 1 && !memcmp(buffer + size - (sizeof(end) - 1), end, sizeof(end) - 1))
			return 1;
		if (size == sizeof(buffer))
			size = 0;
	}
}

static void *ask(void *unused)
{
	static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n";

	for (;;) {
		int descriptor = connect_to_server();
		while (write(descriptor, request, sizeof(request) - 1) == sizeof(request) - 1 && read_answer(descriptor))
			;
		close(descriptor);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int connections = argc == 3 ? atoi(argv[2]) : 0;

	port = argc == 3 ? atoi(argv[1]) : 0;
	for (int i = 0; i < connections; i++)
		if (pthread_create(&thread, NULL, ask, NULL))
			return 1;
	for (;;)
		pause();
}
