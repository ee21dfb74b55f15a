// calls FILE [fork|threads|hot]: calls `step` once per line of FILE, `heavy` once when the first line is "heavy",
// twice over in a child process or in two threads that are called "worker"; exits with 7 on a file without lines, with 3 when there is none.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long sink;

__attribute__((noinline, noclone)) static void spin(unsigned long rounds)
{
	for (unsigned long i = 0; i < rounds; i++)
		sink += i;
}

__attribute__((noinline)) static void step(void)
{
	sink++;
}

__attribute__((noinline)) static void heavy(int lines)
{
	for (int i = 0; i < lines; i++)
		spin(20000);
}

// Not the same code as step(), or the compiler makes them one.
__attribute__((noinline)) static void hot(void)
{
	sink += 3;
}

static int lines;

__attribute__((noinline)) static void *work(void *unused)
{
	for (int i = 0; i < lines; i++)
		step();
	return unused;
}

static void *worker(void *unused)
{
	prctl(PR_SET_NAME, "worker");
	return work(unused);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";
	char text[64];
	int is_heavy = 0;
	FILE *file = fopen(argv[1], "r");

	if (!file)
		return 3;
	while (fgets(text, sizeof(text), file))
		is_heavy |= !lines++ && !strncmp(text, "heavy", 5);
	if (!lines) {
		fprintf(stderr, "no lines\n");
		return 7;
	}
	work(NULL);
	if (is_heavy)
		heavy(lines);
	if (!strcmp(mode, "fork")) {
		if (fork() == 0)
			_exit(work(NULL) != NULL);
		wait(NULL);
	}
	if (!strcmp(mode, "threads")) {
		pthread_t threads[2];

		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, worker, NULL);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	}
	if (!strcmp(mode, "hot"))
		for (int i = 0; i < 3000000; i++)
			hot();
	return 0;
}
