// jobs: one thread accepts jobs, two others run them, and a third one finishes them; forever. A job's size is from -5 to
// 40; `step` is called once for each of its size (for 0 and below never), `twist` as often, by a second part.
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline, noclone))

struct job {
	int size;
	struct job *next;
};

struct queue {
	struct job *first;
	pthread_mutex_t lock;
	pthread_cond_t filled;
};

static struct queue to_run = { .lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER };
static struct queue to_finish = { .lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER };
static volatile unsigned long sink;

NOINLINE static void step(void)
{
	sink++;
}

NOINLINE static void twist(void)
{
	sink += 3;
}

static void put(struct queue *queue, struct job *job)
{
	pthread_mutex_lock(&queue->lock);
	job->next = queue->first;
	queue->first = job;
	pthread_cond_signal(&queue->filled);
	pthread_mutex_unlock(&queue->lock);
}

static struct job *take(struct queue *queue)
{
	struct job *job;

	pthread_mutex_lock(&queue->lock);
	while (!queue->first)
		pthread_cond_wait(&queue->filled, &queue->lock);
	job = queue->first;
	queue->first = job->next;
	pthread_mutex_unlock(&queue->lock);
	return job;
}

NOINLINE static void accept_job(struct job *job)
{
	sink += 5;
	put(&to_run, job);
}

// The key is another argument here, and `size` one whose register has more bits than it.
NOINLINE static void run_job(double weight, int size, struct job *job)
{
	sink += weight + job->size;
	for (int i = 0; i < size; i++)
		step();
}

NOINLINE static void polish_job(struct job *job)
{
	for (int i = 0; i < job->size; i++)
		twist();
}

NOINLINE static void finish_job(struct job *job)
{
	sink += 7;
	free(job);
}

static void *run(void *unused)
{
	for (;;) {
		struct job *job = take(&to_run);
		run_job(1.5, job->size, job);
		put(&to_finish, job);
	}
	return unused;
}

static void *finish(void *unused)
{
	for (;;) {
		struct job *job = take(&to_finish);
		polish_job(job);
		finish_job(job);
		step(); // for no job
	}
	return unused;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, run, NULL);
	pthread_create(&thread, NULL, run, NULL);
	pthread_create(&thread, NULL, finish, NULL);
	for (int n = 0;; n = (n + 1) % 46) {
		struct job *job = malloc(sizeof(*job));
		job->size = n - 5;
		accept_job(job);
		step(); // for no job
		nanosleep(&(struct timespec){ .tv_nsec = 2500000 }, NULL);
	}
}
