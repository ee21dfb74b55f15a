// Load for memcached: connections that send gets and sets over the text protocol, each waiting for its answer
// before the next request (a closed loop). It ends by itself when the server goes away.
#define PROGRESS request_done
#include "common.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define MAX_VALUE 8192
#define LINE 256

static long port = 21211, connections = 8, keys = 10000, value_bytes = 512, get_percent = 90, patience_s = 30;

struct client {
	int fd;
	uint64_t random;
	size_t filled; // bytes in the buffer that were not used yet
	char buffer[MAX_VALUE + 2 * LINE];
};

static long random_below(struct client *client, long limit)
{
	client->random ^= client->random << 13;
	client->random ^= client->random >> 7;
	client->random ^= client->random << 17;
	return (long)(client->random % (uint64_t)limit);
}

__attribute__((noreturn)) static void server_gone(void)
{
	if (rounds_done == 0) {
		fprintf(stderr, "mc_load: the server closed the connection\n");
		_exit(3);
	}
	finish(rounds_done);
}

__attribute__((noreturn)) static void bad_answer(struct client *client)
{
	fprintf(stderr, "mc_load: unexpected answer: %.60s\n", client->buffer);
	_exit(3);
}

// Reads until the buffer ends with the given end of an answer; one request is in flight, so nothing follows it.
static void receive(struct client *client, const char *end)
{
	size_t length = strlen(end);

	client->filled = 0;
	do {
		size_t room = sizeof(client->buffer) - 1 - client->filled;
		ssize_t n = room ? read(client->fd, client->buffer + client->filled, room) : -1;

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			server_gone();
		client->filled += (size_t)n;
		client->buffer[client->filled] = 0;
		if (strstr(client->buffer, "ERROR"))
			bad_answer(client);
	} while (client->filled < length || memcmp(client->buffer + client->filled - length, end, length));
}

static void set(struct client *client, long key)
{
	char request[MAX_VALUE + LINE];
	int head = snprintf(request, LINE, "set key:%ld 0 0 %ld\r\n", key, value_bytes);

	memset(request + head, 'a' + (int)(key % 26), (size_t)value_bytes);
	memcpy(request + head + value_bytes, "\r\n", 2);
	if (!transfer(true, client->fd, request, (size_t)(head + value_bytes + 2)))
		server_gone();
	receive(client, "STORED\r\n");
}

static void get(struct client *client, long key)
{
	char request[LINE];
	int length = snprintf(request, sizeof(request), "get key:%ld\r\n", key);

	if (!transfer(true, client->fd, request, (size_t)length))
		server_gone();
	receive(client, "END\r\n");
	if (strncmp(client->buffer, "VALUE ", 6) && strncmp(client->buffer, "END", 3))
		bad_answer(client);
}

static int try_connect(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	if (fd < 0)
		die("socket");
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

// The server may still be starting, so connecting is tried for a while.
static struct client *new_client(long number)
{
	struct client *client = calloc(1, sizeof(*client));
	int64_t give_up_ns = now_ns() + patience_s * NS_PER_S;

	if (!client)
		die("calloc");
	client->random = 88172645463325252UL + (uint64_t)number;
	while ((client->fd = try_connect()) < 0) {
		if (now_ns() > give_up_ns)
			die("connect");
		sleep_us(50000);
	}
	return client;
}

static void *requests(void *client_pointer)
{
	struct client *client = client_pointer;

	for (;;) {
		long key = random_below(client, keys);

		if (random_below(client, 100) < get_percent)
			get(client, key);
		else
			set(client, key);
		count_round();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ OPTION, "port", &port, "port of the server on the loopback interface" },
		{ OPTION, "connections", &connections, "connections, each with a thread" },
		{ OPTION, "keys", &keys, "keys, all stored before the load begins" },
		{ OPTION, "value-bytes", &value_bytes, "size of a value" },
		{ OPTION, "get-percent", &get_percent, "share of gets, the rest are sets" },
		{ OPTION, "patience", &patience_s, "seconds to wait for the server" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "gets and sets for memcached over the text protocol");
	if (value_bytes > MAX_VALUE || connections < 1 || keys < 1)
		usage_error(parameters, "connections and keys must be at least 1, value-bytes at most 8192", "");
	struct client *first = new_client(0);
	for (long key = 0; key < keys; key++)
		set(first, key);
	started_ns = now_ns();
	for (long i = 1; i < connections; i++)
		start_thread(requests, new_client(i));
	requests(first);
}
