// Which thread of the target is stopped the least harmfully, and what its threads block and wait for.

#ifndef CAUSAL_THREADS_H
#define CAUSAL_THREADS_H

#include <dirent.h>
#include <sys/types.h>

// How much a short stop could disturb a thread there; the least is best, UNSUITABLE only when there is no other.
enum { RUNS, RESTARTS, RESTARTS_ITS_TIME, UNKNOWN, UNSUITABLE, HOPELESS };

// Does the process still run, and is it the one that began then (field 22 of its stat file)?
int is_still(pid_t pid, unsigned long long start);

int blocks(pid_t pid, pid_t tid, int signal);

// A program that reads the signal from a signalfd (PostgreSQL its SIGURG) blocks it and wants it to itself.
int has_signalfd(pid_t pid, int signal);

// The system call a thread is in, -1 when it runs, -2 when that cannot be said; and its second argument.
long system_call_of(pid_t pid, pid_t tid, unsigned long *second);

DIR *open_tasks(pid_t pid);
pid_t next_thread(DIR *tasks); // 0: there is no other

pid_t best_thread(pid_t pid, pid_t except, int *how_good);

#endif
