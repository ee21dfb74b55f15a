// requests [nested|stuck|hot|spin]: two threads handle requests without end, each of a size from 0 to 40 and with a name
// of as many letters; `step` is called once for each of the size, `heavy` once where it is odd.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile unsigned long sink;
static const char *mode = "";
static int left = -1;

NOINLINE static void step(void)
{
	sink++;
}

NOINLINE static void heavy(short offset, int rounds)
{
	for (int i = offset; i < rounds; i++)
		sink += i;
}

NOINLINE static void hot(void)
{
	sink += 3;
}

NOINLINE static void send_reply(void)
{
	sink += 5;
}

NOINLINE static void handle(int size, const char *name)
{
	for (int i = 0; i < size; i++)
		step();
	if (size % 2)
		heavy(-size, 20000);
	if (!strcmp(mode, "hot"))
		for (int i = 0; i < 20000; i++)
			hot();
	if (!strcmp(mode, "nested") && size == 40)
		handle(2, name);
	if (strcmp(mode, "stuck") || size % 4)
		send_reply();
}

static void *serve(void *unused)
{
	char name[64];

	for (int n = 0; left < 0 || n < left; n = n + 1) {
		int size = n % 41;
		memset(name, 'x', size);
		name[size] = 0;
		handle(size, name);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc > 1)
		mode = argv[1];
	if (!strcmp(mode, "ends"))
		left = 2000;
	pthread_create(&thread, NULL, serve, NULL);
	serve(NULL);
	pthread_join(thread, NULL);
	return 0;
}
