// What /proc says about the target's threads. See threads.h.

#define _GNU_SOURCE
#include "threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

// Fields of a stat file after the command's name, which may contain anything.
static int read_stat(const char *path, char *state, unsigned long long *start)
{
	char text[1024], *rest;
	FILE *file = fopen(path, "r");
	size_t size;

	if (!file)
		return -1;
	size = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[size] = 0;
	rest = strrchr(text, ')');
	if (!rest)
		return -1;
	*start = 0;
	return sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
		      state, start) == 2 ? 0 : -1;
}

int is_still(pid_t pid, unsigned long long start)
{
	char path[64], state;
	unsigned long long found;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return !read_stat(path, &state, &found) && found == start && state != 'Z' && state != 'X';
}

int blocks(pid_t pid, pid_t tid, int signal)
{
	char path[96], line[256];
	unsigned long long mask = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, tid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "SigBlk: %llx", &mask) == 1)
			break;
	if (file)
		fclose(file);
	return mask >> (signal - 1) & 1;
}

// The system call a thread is in, -1 when it runs, -2 when that cannot be said; and its second argument.
long system_call_of(pid_t pid, pid_t tid, unsigned long *second)
{
	char path[96], text[64] = "";
	FILE *file;
	long number = -2;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", pid, tid);
	file = fopen(path, "r");
	if (!file)
		return -2;
	*second = 0;
	if (fgets(text, sizeof(text), file) && sscanf(text, "%ld %*s %lx", &number, second) < 1)
		number = strncmp(text, "running", 7) ? -2 : -1;
	fclose(file);
	return number;
}

static int suitability(pid_t pid, pid_t tid)
{
	char path[96], state = 'X';
	unsigned long long start;
	unsigned long second;
	long number;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	if (read_stat(path, &state, &start) || state == 'Z' || state == 'X')
		return HOPELESS;
	number = system_call_of(pid, tid, &second);
	switch (number) {
	case -1:
		return state == 'D' ? UNSUITABLE : RUNS;
	case SYS_futex: case SYS_nanosleep: case SYS_clock_nanosleep: case SYS_poll: case SYS_ppoll: case SYS_select:
	case SYS_pselect6: case SYS_read: case SYS_accept: case SYS_accept4: case SYS_wait4: case SYS_waitid:
	case SYS_pause: case SYS_rt_sigsuspend: case SYS_restart_syscall:
		return RESTARTS;
	case SYS_epoll_wait: case SYS_epoll_pwait: case SYS_epoll_pwait2: case SYS_rt_sigtimedwait: case SYS_recvfrom:
	case SYS_recvmsg: case SYS_msgrcv: case SYS_semop: case SYS_semtimedop:
		return RESTARTS_ITS_TIME;
	// What has done a part of its work returns that part when it is stopped: a short count.
	case SYS_write: case SYS_writev: case SYS_pwrite64: case SYS_pwritev: case SYS_sendto: case SYS_sendmsg:
	case SYS_sendmmsg: case SYS_recvmmsg: case SYS_sendfile: case SYS_splice: case SYS_tee: case SYS_vmsplice:
	case SYS_io_getevents: case SYS_io_pgetevents: case SYS_connect: case SYS_close:
	case SYS_vfork: case SYS_clone: case SYS_execve: case SYS_exit: case SYS_exit_group:
		return UNSUITABLE;
	case SYS_io_uring_enter: // what has submitted something returns how much
		return second ? UNSUITABLE : RESTARTS_ITS_TIME;
	}
	return state == 'D' ? UNSUITABLE : UNKNOWN;
}

pid_t next_thread(DIR *tasks)
{
	struct dirent *entry;

	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			return atoi(entry->d_name);
	return 0;
}

DIR *open_tasks(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	return opendir(path);
}

pid_t best_thread(pid_t pid, pid_t except, int *how_good)
{
	DIR *tasks = open_tasks(pid);
	pid_t tid, best = 0;

	*how_good = HOPELESS;
	while (tasks && (tid = next_thread(tasks))) {
		int good = tid == except ? HOPELESS : suitability(pid, tid);
		if (good < *how_good) {
			*how_good = good;
			best = tid;
		}
		if (good == RUNS)
			break;
	}
	if (tasks)
		closedir(tasks);
	return best;
}

// A program that reads the signal from a signalfd (PostgreSQL its SIGURG) blocks it and wants it to itself.
int has_signalfd(pid_t pid, int signal)
{
	char path[64], line[256];
	unsigned long long mask = 0;
	struct dirent *entry;
	int found = 0;
	DIR *entries;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo", pid);
	entries = opendir(path);
	while (entries && !found && (entry = readdir(entries))) {
		FILE *file;
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/fdinfo/%.16s", pid, entry->d_name);
		file = fopen(path, "r");
		while (file && fgets(line, sizeof(line), file))
			if (sscanf(line, "sigmask: %llx", &mask) == 1 && mask >> (signal - 1) & 1)
				found = 1;
		if (file)
			fclose(file);
	}
	if (entries)
		closedir(entries);
	return found;
}
