// What every workload shares: work of a fixed size, arguments, rounds, and the closing line.
//
// Work is a chain of multiply-adds in which every step needs the one before it, so it takes the same
// time whatever else the core could do in parallel. One unit is a fixed number of steps (about a
// microsecond on a 3 GHz machine) and is never calibrated at start: two runs do the same work.
#ifndef WORKLOADS_COMMON_H
#define WORKLOADS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef WORKLOADS_COZ
#include <coz.h>
#endif

#define NS_PER_S 1000000000L
#define NS_PER_US 1000L
#define DEFAULT_UNIT_ITERATIONS 750

// A region of its own: never inlined, cloned, or merged with a twin that has the same body.
#ifdef __clang__
#define REGION __attribute__((noinline, used))
#else
#define REGION __attribute__((noinline, noipa, used))
#endif

static long unit_iterations = DEFAULT_UNIT_ITERATIONS;
static long rounds_wanted; // 0: forever
static double seconds_wanted; // 0: forever

// Each thread and process has its own sink, so that work shares no cache line.
static __thread volatile uint64_t work_sink;

// ---- work ----

// A macro, so that a worker's whole loop lies on the line that names it: profilers of lines tell workers apart.
#define CHAIN(x, iterations)                                                  \
	for (long step = 0, steps = (iterations); step < steps; step++) {     \
		(x) = (x) * 6364136223846793005UL + 1442695040888963407UL;    \
		__asm__ volatile("" : "+r"(x)); /* keeps the chain a chain */ \
	}

static inline __attribute__((always_inline)) uint64_t chain(uint64_t x, long iterations)
{
	CHAIN(x, iterations)
	return x;
}

// The body of a worker: a named function that does nothing but work.
#define WORKER(name)                              \
	REGION void name(long units);             \
	REGION void name(long units)              \
	{                                         \
		uint64_t x = work_sink;           \
		CHAIN(x, units * unit_iterations) \
		work_sink = x;                    \
	}

// ---- progress ----

#ifndef PROGRESS
#define PROGRESS progress // a program may give its round a better name
#endif

// Called once per round. Its first instruction is a nop, which uprobes emulate instead of single-stepping.
REGION __attribute__((patchable_function_entry(1))) void PROGRESS(void);
void PROGRESS(void)
{
#ifdef WORKLOADS_COZ
	COZ_PROGRESS_NAMED("progress");
#endif
	__asm__ volatile("" ::: "memory");
}

static inline int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int64_t started_ns;
static int64_t first_round_ns;
static long rounds_done;
static pthread_mutex_t finish_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*at_finish)(void); // lets a program stop and reap what it started
static int finish_status;
static bool finishes_on_sigterm;

// The rate counts from the first round, so that filling a queue or starting threads is not in it.
__attribute__((noreturn)) static void finish(long rounds)
{
	pthread_mutex_lock(&finish_lock); // held until the end: only one thread prints
	int64_t now = now_ns();
	double steady_s = (double)(now - first_round_ns) / NS_PER_S;

	printf("rounds %ld seconds %.6f rate %.6f\n", rounds, (double)(now - started_ns) / NS_PER_S,
	       rounds > 1 && steady_s > 0 ? (double)(rounds - 1) / steady_s : 0.0);
	if (at_finish)
		at_finish();
	fflush(stdout);
	_exit(finish_status);
}

// Call before any thread is started: SIGTERM then ends the program at its next round, with its closing lines.
// The signal stays blocked and is asked for, so that it interrupts no system call.
static inline void finish_on_sigterm(void)
{
	sigset_t terminate;

	sigemptyset(&terminate);
	sigaddset(&terminate, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &terminate, NULL);
	finishes_on_sigterm = true;
}

static inline bool sigterm_came(void)
{
	struct timespec at_once = { 0, 0 };
	sigset_t terminate;

	sigemptyset(&terminate);
	sigaddset(&terminate, SIGTERM);
	return sigtimedwait(&terminate, NULL, &at_once) == SIGTERM;
}

static inline void count_round(void)
{
	PROGRESS();

	long done = __atomic_add_fetch(&rounds_done, 1, __ATOMIC_RELAXED);

	if (done == 1)
		__atomic_store_n(&first_round_ns, now_ns(), __ATOMIC_RELAXED);
	if ((rounds_wanted && done >= rounds_wanted) || (finishes_on_sigterm && sigterm_came()))
		finish(done);
	if (seconds_wanted > 0 && done > 1 && (double)(now_ns() - started_ns) >= seconds_wanted * NS_PER_S)
		finish(done);
}

// ---- arguments ----

enum parameter_kind { AMOUNT, OPTION, FLAG };

// An AMOUNT is positional and optional, an OPTION is --name VALUE, a FLAG is --name.
struct parameter {
	enum parameter_kind kind;
	const char *name;
	long *value;
	const char *help;
};

static const char *program_name;

static void print_synopsis(FILE *out, const struct parameter *parameters)
{
	fprintf(out, "usage: %s", program_name);
	for (const struct parameter *p = parameters; p->name; p++)
		if (p->kind == AMOUNT)
			fprintf(out, " [%s]", p->name);
	fprintf(out, " [options]\n");
}

__attribute__((noreturn)) static void print_help(const struct parameter *parameters, const char *about)
{
	print_synopsis(stdout, parameters);
	printf("%s\n\n", about);
	for (const struct parameter *p = parameters; p->name; p++)
		printf("  %2s%-18s %s (default %ld)\n", p->kind == AMOUNT ? "" : "--", p->name, p->help, *p->value);
	printf("  --%-18s stop after so many rounds (default 0: never)\n", "rounds");
	printf("  --%-18s stop after so many seconds (default 0: never)\n", "seconds");
	printf("  --%-18s steps of work per unit (default %d, about 1 us)\n", "unit-iterations",
	       DEFAULT_UNIT_ITERATIONS);
	exit(0);
}

__attribute__((noreturn)) static void usage_error(const struct parameter *parameters, const char *what, const char *word)
{
	fprintf(stderr, "%s: %s%s\n", program_name, what, word);
	print_synopsis(stderr, parameters);
	exit(2);
}

static bool parse_number(const char *text, double *number)
{
	char *end;

	*number = strtod(text, &end);
	return *text && !*end && *number >= 0;
}

// Sets the option called name from its text; false if there is no such option or no such value.
static bool set_option(const struct parameter *parameters, const char *name, const char *text)
{
	double number;

	if (!text || !parse_number(text, &number))
		return false;
	if (!strcmp(name, "rounds"))
		return rounds_wanted = (long)number, true;
	if (!strcmp(name, "seconds"))
		return seconds_wanted = number, true;
	if (!strcmp(name, "unit-iterations"))
		return unit_iterations = (long)number, true;
	for (const struct parameter *p = parameters; p->name; p++)
		if (p->kind == OPTION && !strcmp(name, p->name))
			return *p->value = (long)number, true;
	return false;
}

static bool set_flag(const struct parameter *parameters, const char *name)
{
	for (const struct parameter *p = parameters; p->name; p++)
		if (p->kind == FLAG && !strcmp(name, p->name))
			return *p->value = 1, true;
	return false;
}

static bool set_amount(const struct parameter *parameters, int position, const char *text)
{
	double number;

	for (const struct parameter *p = parameters; p->name; p++)
		if (p->kind == AMOUNT && position-- == 0)
			return parse_number(text, &number) && (*p->value = (long)number, true);
	return false;
}

static void parse_arguments(int argc, char **argv, const struct parameter *parameters, const char *about)
{
	int position = 0;

	program_name = argv[0];
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i];

		if (!strcmp(word, "--help") || !strcmp(word, "-h"))
			print_help(parameters, about);
		if (strncmp(word, "--", 2)) {
			if (set_amount(parameters, position++, word))
				continue;
		} else if (set_flag(parameters, word + 2)) {
			continue;
		} else if (set_option(parameters, word + 2, argv[i + 1])) {
			i++;
			continue;
		}
		usage_error(parameters, "bad argument: ", word);
	}
	started_ns = now_ns();
}

// ---- small things ----

__attribute__((noreturn)) static inline void die(const char *what)
{
	perror(what);
	exit(3);
}

static inline pthread_t start_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, body, argument);

	if (error) {
		errno = error;
		die("pthread_create");
	}
	return thread;
}

// The calling thread's name, at most 15 bytes, as profilers and ps show it.
static inline void name_thread(const char *name)
{
	pthread_setname_np(pthread_self(), name);
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

// Confines the process to the first count CPUs that it may use; 0 leaves it alone.
static inline void use_cpus(long count)
{
	cpu_set_t allowed, chosen;

	if (count <= 0 || sched_getaffinity(0, sizeof(allowed), &allowed))
		return;
	CPU_ZERO(&chosen);
	for (int cpu = 0; cpu < CPU_SETSIZE && count > 0; cpu++)
		if (CPU_ISSET(cpu, &allowed)) {
			CPU_SET(cpu, &chosen);
			count--;
		}
	if (sched_setaffinity(0, sizeof(chosen), &chosen))
		die("sched_setaffinity");
}

// Confines this thread to one of the CPUs that it may use, if there are several.
static inline void stay_on_cpu(int which)
{
	cpu_set_t allowed, chosen;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) || CPU_COUNT(&allowed) < 2)
		return;
	CPU_ZERO(&chosen);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && which-- == 0)
			CPU_SET(cpu, &chosen);
	sched_setaffinity(0, sizeof(chosen), &chosen);
}

static inline void sleep_us(long us)
{
	struct timespec t = { us * NS_PER_US / NS_PER_S, us * NS_PER_US % NS_PER_S };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
		;
}

// Reads or writes one whole message; false when the other side has gone.
static inline bool transfer(bool sending, int fd, char *buffer, size_t size)
{
	while (size) {
		ssize_t n = sending ? write(fd, buffer, size) : read(fd, buffer, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		buffer += n;
		size -= (size_t)n;
	}
	return true;
}

#endif
