// causal-inject: brings the pause handler into a running process. The profiler starts it once per process; it finishes
// its work also when the profiler is killed meanwhile, because a thread abandoned half-way would crash.
//
//     causal-inject PID START DESCRIPTOR LINES CHAIN
//
// START is the start time of PID (field 22 of /proc/PID/stat), so that another process that got its number is left alone;
// DESCRIPTOR is the table of answers (a BPF map of LINES lines); CHAIN is 1 when the program's own handler of the signal
// must go on seeing it (Go). Prints one line: `ok key=value ...` or `error REASON text`.
//
// It needs no libc in the target, no file and no name: one thread executes a dozen system calls. See tracee.h for how.

#define _GNU_SOURCE
#include "injected.h"
#include "tracee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_SIZE 24UL
#define REGISTER_MAGIC 0x63617573616c2102UL
#define PAGE 4096UL
#define CODE_SIZE PAGE
#define KERNEL_SA_RESTORER 0x04000000UL
#define HANDLES_NOTHING(action) ((action).handler <= 1) // SIG_DFL, SIG_IGN

extern const char __start_handler[], __stop_handler[], causal_injected[], causal_restorer[], causal_handler[];

struct kernel_sigaction {
	unsigned long handler, flags, restorer, mask;
};

// What the target's memory holds while it receives the descriptor.
struct scratch {
	int sockets[2];
	struct kernel_sigaction action;
	struct msghdr message;
	struct iovec vector;
	char control[64];
	char byte;
};

struct injection {
	struct tracee thread;
	int pidfd, table, chain, reused;
	unsigned long lines;
	unsigned long scratch, area, next; // addresses in the target
	int sockets[2], received, ours;    // descriptors: of the target, of the target, of this process
	int signal;
	enum outcome how;
	char failed[64]; // which step, when how is REFUSED
	int error;
};

static void fail(const char *reason, const char *format, ...)
{
	va_list rest;

	printf("error %s ", reason);
	va_start(rest, format);
	vprintf(format, rest);
	va_end(rest);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

// --- what /proc says -----------------------------------------------------------------------------------------------

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

static int is_still(pid_t pid, unsigned long long start)
{
	char path[64], state;
	unsigned long long found;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	return !read_stat(path, &state, &found) && found == start && state != 'Z' && state != 'X';
}

static int blocks(pid_t pid, pid_t tid, int signal)
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
static long system_call_of(pid_t pid, pid_t tid, unsigned long *second)
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

// How much a short stop could disturb a thread there; the least is best, UNSUITABLE only when there is no other.
enum { RUNS, RESTARTS, RESTARTS_ITS_TIME, UNKNOWN, UNSUITABLE, HOPELESS };

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

static pid_t next_thread(DIR *tasks)
{
	struct dirent *entry;

	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			return atoi(entry->d_name);
	return 0;
}

static DIR *open_tasks(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	return opendir(path);
}

static pid_t best_thread(pid_t pid, pid_t except, int *how_good)
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

// --- system calls in the target -------------------------------------------------------------------------------------

#define CALL(x, what, ...) call(x, what, (const unsigned long[6]){__VA_ARGS__})

static long call(struct injection *x, long number, const unsigned long arguments[6])
{
	long result = -1;

	if (x->how == OK)
		x->how = call_in(&x->thread, number, arguments, &result);
	return result;
}

static int refuse(struct injection *x, const char *step, long result)
{
	if (x->how == OK) {
		x->how = REFUSED;
		x->error = -result;
		snprintf(x->failed, sizeof(x->failed), "%s", step);
	}
	return -1;
}

static int failed(long result)
{
	return result < 0 && result > -4096;
}

static int put(struct injection *x, unsigned long offset, const void *from, size_t size)
{
	return write_to(&x->thread, x->scratch + offset, from, size) ? refuse(x, "writing its memory", -errno) : 0;
}

static int take(struct injection *x, unsigned long offset, void *to, size_t size)
{
	return read_from(&x->thread, x->scratch + offset, to, size) ? refuse(x, "reading its memory", -errno) : 0;
}

#define AT(member) offsetof(struct scratch, member)

static int send_table(struct injection *x)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &x->table, sizeof(int));
	return sendmsg(x->ours, &message, 0) == 1 ? 0 : -1;
}

// The table's descriptor reaches the target through a socket pair that only the two of us have.
static int pass_table(struct injection *x)
{
	struct scratch image;
	struct cmsghdr *header = (struct cmsghdr *)image.control;
	long result = CALL(x, SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, x->scratch + AT(sockets), 0, 0);

	if (x->how != OK || result)
		return refuse(x, "socketpair", result);
	if (take(x, AT(sockets), x->sockets, sizeof(x->sockets)))
		return -1;
	x->ours = syscall(SYS_pidfd_getfd, x->pidfd, x->sockets[1], 0);
	if (x->ours < 0 || send_table(x))
		return refuse(x, "passing the table", -errno);
	memset(&image, 0, sizeof(image));
	image.vector = (struct iovec){(void *)(x->scratch + AT(byte)), 1};
	image.message.msg_iov = (void *)(x->scratch + AT(vector));
	image.message.msg_iovlen = 1;
	image.message.msg_control = (void *)(x->scratch + AT(control));
	image.message.msg_controllen = CMSG_SPACE(sizeof(int));
	if (put(x, AT(message), (char *)&image + AT(message), sizeof(image) - AT(message)))
		return -1;
	result = CALL(x, SYS_recvmsg, x->sockets[0], x->scratch + AT(message), MSG_CMSG_CLOEXEC | MSG_DONTWAIT, 0, 0, 0);
	if (x->how != OK || result != 1)
		return refuse(x, "recvmsg", result);
	if (take(x, AT(control), image.control, sizeof(image.control)))
		return -1;
	if (header->cmsg_type != SCM_RIGHTS) // at its limit of open files
		return refuse(x, "receiving the table", -EMFILE);
	memcpy(&x->received, CMSG_DATA(header), sizeof(int));
	return 0;
}

static int read_action(struct injection *x, int signal, struct kernel_sigaction *action)
{
	long result = CALL(x, SYS_rt_sigaction, signal, 0, x->scratch + AT(action), 8, 0, 0);

	if (x->how != OK || result)
		return refuse(x, "rt_sigaction", result);
	return take(x, AT(action), action, sizeof(*action));
}

static unsigned long offset_of(const char *symbol)
{
	return (unsigned long)symbol - (unsigned long)__start_handler;
}

static unsigned long code_size(void)
{
	return offset_of(__stop_handler);
}

// Is this handler one that an earlier attach has injected? Then *header is how it is set up.
static int is_injected(struct injection *x, unsigned long handler, struct injected *header)
{
	unsigned long start = handler - offset_of(causal_handler);

	return !read_from(&x->thread, start, header, sizeof(*header)) && header->magic == INJECTED_MAGIC &&
	       header->size == code_size();
}

// Is it that of the preloaded library, left from an earlier `run --keep-running`?
static int is_preloaded(struct injection *x, unsigned long handler)
{
	char path[64], line[4400];
	unsigned long low, high;
	int found = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", x->thread.pid);
	maps = fopen(path, "r");
	while (maps && !found && fgets(line, sizeof(line), maps))
		found = sscanf(line, "%lx-%lx", &low, &high) == 2 && handler >= low && handler < high &&
			strstr(line, "/libcausal-stub.so");
	if (maps)
		fclose(maps);
	return found;
}

// A program that reads the signal from a signalfd (PostgreSQL its SIGURG) blocks it and wants it to itself.
static int has_signalfd(pid_t pid, int signal)
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

// Which signal, and is our code there already? Both candidates are ignored by default, so that no race can kill.
static int choose_signal(struct injection *x)
{
	static const int candidates[] = {SIGURG, SIGWINCH};
	struct kernel_sigaction actions[2];
	struct injected header;
	int i, taken[2];

	for (i = 0; i < 2; i++) {
		if (read_action(x, candidates[i], &actions[i]))
			return -1;
		taken[i] = has_signalfd(x->thread.pid, candidates[i]);
	}
	for (i = 0; i < 2; i++) {
		if (taken[i] || HANDLES_NOTHING(actions[i]) || !is_injected(x, actions[i].handler, &header) || header.lines != x->lines)
			continue;
		x->signal = candidates[i];
		x->area = actions[i].handler - offset_of(causal_handler);
		x->next = header.next;
		x->reused = 1;
		return 0;
	}
	for (i = 0; i < 2; i++) {
		if (!taken[i] && (HANDLES_NOTHING(actions[i]) || is_preloaded(x, actions[i].handler))) {
			x->signal = candidates[i];
			return 0;
		}
	}
	if (!x->chain || taken[0])
		return refuse(x, "choosing a signal", -EBUSY);
	x->signal = SIGURG;
	x->next = actions[0].handler;
	return 0;
}

// Code and table in one stretch of addresses; a later attach puts its table in place of this one.
static int map_area(struct injection *x)
{
	unsigned long table = (x->lines * ANSWER_SIZE + PAGE - 1) / PAGE * PAGE;
	long result;

	if (!x->area) {
		result = CALL(x, SYS_mmap, 0, CODE_SIZE + table, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0);
		if (x->how != OK || failed(result))
			return refuse(x, "mmap", result);
		x->area = result;
	}
	result = CALL(x, SYS_mmap, x->area + CODE_SIZE, table, PROT_READ, MAP_SHARED | MAP_FIXED, x->received, 0);
	if (x->how != OK || failed(result))
		return refuse(x, "mmap of the table", result);
	return 0;
}

static int write_code(struct injection *x)
{
	size_t size = code_size();
	struct injected header = {INJECTED_MAGIC, x->area + CODE_SIZE, x->lines, size, x->next, {0, 0, 0}};
	char code[CODE_SIZE];

	if (x->reused)
		return 0; // it is the same, and may be running
	if (size > sizeof(code))
		return refuse(x, "writing the handler", -E2BIG);
	memcpy(code, __start_handler, size);
	memcpy(code + offset_of(causal_injected), &header, sizeof(header));
	if (write_to(&x->thread, x->area, code, size))
		return refuse(x, "writing the handler", -errno);
	return 0;
}

static int install_handler(struct injection *x)
{
	struct kernel_sigaction action = {
		x->area + offset_of(causal_handler), SA_RESTART | SA_ONSTACK | SA_SIGINFO | KERNEL_SA_RESTORER,
		x->area + offset_of(causal_restorer), ~0UL,
	};
	long result;

	if (put(x, AT(action), &action, sizeof(action)))
		return -1;
	result = CALL(x, SYS_rt_sigaction, x->signal, x->scratch + AT(action), 0, 8, 0, 0);
	if (x->how != OK || result)
		return refuse(x, "rt_sigaction", result);
	// The engine, if there is one, learns it from here as from the preloaded library.
	CALL(x, SYS_gettid, REGISTER_MAGIC, action.handler, x->signal, 0, 0, 0);
	return 0;
}

// Whatever became of the rest, the target keeps no descriptor and no scratch memory.
static void clean_up(struct injection *x)
{
	enum outcome how = x->how;
	int i;

	if (how == REFUSED)
		x->how = OK;
	for (i = 0; i < 2; i++)
		if (x->sockets[i] >= 0)
			CALL(x, SYS_close, x->sockets[i], 0, 0, 0, 0, 0);
	if (x->received >= 0)
		CALL(x, SYS_close, x->received, 0, 0, 0, 0, 0);
	if (x->ours >= 0)
		close(x->ours);
	if (x->scratch)
		CALL(x, SYS_munmap, x->scratch, PAGE, 0, 0, 0, 0);
	if (how == REFUSED && x->how == OK)
		x->how = REFUSED;
}

static void inject(struct injection *x)
{
	long result = CALL(x, SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0);

	if (x->how != OK || failed(result)) {
		refuse(x, "mmap", result);
		return;
	}
	x->scratch = result;
	if (!choose_signal(x) && !pass_table(x) && !map_area(x) && !write_code(x))
		install_handler(x);
	clean_up(x);
}

// --- threads that block the signal ----------------------------------------------------------------------------------

static int waits_for_signals(pid_t pid, pid_t tid)
{
	unsigned long second;

	return system_call_of(pid, tid, &second) == SYS_rt_sigtimedwait;
}

static int repair_thread(struct injection *x, pid_t tid)
{
	struct tracee t = {.pid = x->thread.pid, .tid = tid, .memory = x->thread.memory};

	if (hold(&t) != OK)
		return 0;
	return let_go(&t, t.mask_before & ~(1UL << (x->signal - 1))) == OK;
}

// Many programs block everything in their worker threads. Twice seen blocked: libc blocks all signals for a moment here
// and there. New threads inherit the mask, so until nothing changes.
static int repair_masks(struct injection *x)
{
	int round, repaired = 0;
	pid_t pid = x->thread.pid, tid, seen[4096];

	for (round = 0; round < 4; round++) {
		int count = 0, done = 0, i;
		DIR *tasks = open_tasks(pid);
		while (tasks && count < 4096 && (tid = next_thread(tasks)))
			if (blocks(pid, tid, x->signal) && !waits_for_signals(pid, tid))
				seen[count++] = tid;
		if (tasks)
			closedir(tasks);
		if (!count)
			break;
		usleep(3000);
		for (i = 0; i < count; i++)
			if (blocks(pid, seen[i], x->signal) && !waits_for_signals(pid, seen[i]))
				done += repair_thread(x, seen[i]);
		repaired += done;
		if (!done)
			break;
	}
	return repaired;
}

// --- the program ----------------------------------------------------------------------------------------------------

static void ignore(int number)
{
	(void)number;
}

static void outlive_everybody(void)
{
	static const int fatal[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2};
	struct sigaction alarm = {.sa_handler = ignore}; // without SA_RESTART: it ends a wait
	size_t i;

	setsid();
	for (i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
		signal(fatal[i], SIG_IGN);
	sigaction(SIGALRM, &alarm, NULL);
}

static void hold_some_thread(struct injection *x)
{
	pid_t except = 0;
	int patience, how_good, attempts;

	for (attempts = 0; attempts < 3; attempts++) {
		for (patience = 0; patience < 40; patience++) {
			x->thread.tid = best_thread(x->thread.pid, except, &how_good);
			if (how_good < UNSUITABLE)
				break;
			usleep(5000);
		}
		if (!x->thread.tid) {
			x->how = GONE;
			return;
		}
		x->how = hold(&x->thread);
		if (x->how != TIMED_OUT && x->how != GONE)
			return;
		except = x->thread.tid;
	}
}

static void report(const struct injection *x, double stopped_us)
{
	switch (x->how) {
	case OK:
		printf("ok signal=%d handler=%lx reused=%d stopped_us=%.0f repaired=%d\n", x->signal,
		       x->area + offset_of(causal_handler), x->reused, stopped_us, repair_masks((struct injection *)x));
		break;
	case REFUSED:
		fail(x->error == EBUSY ? "busy" : "refused", "%s: %s", x->failed, strerror(x->error));
		break;
	case GONE:
		fail("gone", "it ended, or executed another program");
		break;
	case DENIED:
		fail("denied", "%s", strerror(errno));
		break;
	case TIMED_OUT:
		fail("stuck", "it did not stop");
		break;
	case UNFIT:
		fail("unfit", "no 64-bit system call could be made in it");
		break;
	}
	fflush(stdout);
}

int main(int count, char **words)
{
	struct injection x = {.sockets = {-1, -1}, .received = -1, .ours = -1};
	unsigned long long start;
	char path[64];
	double began;

	if (count != 6) {
		fprintf(stderr, "usage: causal-inject PID START DESCRIPTOR LINES CHAIN (started by causal-bpf)\n");
		return 2;
	}
	x.thread.pid = atoi(words[1]);
	start = strtoull(words[2], NULL, 10);
	x.table = atoi(words[3]);
	x.lines = strtoul(words[4], NULL, 10);
	x.chain = atoi(words[5]);
	outlive_everybody();
	x.pidfd = syscall(SYS_pidfd_open, x.thread.pid, 0);
	if (x.pidfd < 0 || !is_still(x.thread.pid, start))
		fail("gone", "no such process any more");
	snprintf(path, sizeof(path), "/proc/%d/mem", x.thread.pid);
	x.thread.memory = open(path, O_RDWR | O_CLOEXEC);
	if (x.thread.memory < 0)
		fail("denied", "%s", strerror(errno));
	hold_some_thread(&x);
	began = now_us();
	if (x.how == OK) {
		// From here on nothing may end this program before the thread is let go.
		enum outcome how;
		inject(&x);
		if (x.how == OK || x.how == REFUSED || x.how == UNFIT) {
			how = let_go(&x.thread, x.thread.mask_before);
			if (x.how == OK)
				x.how = how;
		}
	}
	report(&x, now_us() - began);
	return 0;
}
