// What is done inside the target. See handover.h.

#define _GNU_SOURCE
#include "handover.h"
#include "injected.h"
#include "landing.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
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
	char control[64];
	struct kernel_sigaction action;
	struct msghdr message;
	struct iovec vector;
	char byte;
};

_Static_assert(offsetof(struct scratch, control) == SCRATCH_CONTROL, "the landing reads it there");
_Static_assert(SCRATCH_CONTROL + CMSG_LEN(0) == SCRATCH_RECEIVED, "and this");
_Static_assert(SCRATCH_SIZE == PAGE, "it is mapped as one page");

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

static void name_descriptor(pid_t pid, int number, char name[DESCRIPTOR_NAME])
{
	char path[64];
	ssize_t size;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
	size = readlink(path, name, DESCRIPTOR_NAME - 1);
	name[size > 0 ? size : 0] = 0;
}

// The table's descriptor reaches the target through a socket pair that only the two of us have.
static int pass_table(struct injection *x)
{
	struct scratch image;
	struct cmsghdr header;
	int i;
	long result = CALL(x, SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, x->scratch + AT(sockets), 0, 0);

	if (x->how != OK || result)
		return refuse(x, "socketpair", result);
	if (take(x, AT(sockets), x->sockets, sizeof(x->sockets)))
		return -1;
	for (i = 0; i < 2; i++)
		name_descriptor(x->thread.pid, x->sockets[i], x->socket_names[i]);
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
	memcpy(&header, image.control, sizeof(header));
	if (header.cmsg_type != SCM_RIGHTS) // at its limit of open files
		return refuse(x, "receiving the table", -EMFILE);
	memcpy(&x->received, image.control + CMSG_LEN(0), sizeof(int));
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

// Memory that names no descriptor yet, so that the landing may look there.
static int map_scratch(struct injection *x)
{
	static const int none[] = {-1, -1};
	long result = CALL(x, SYS_mmap, 0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1UL, 0);

	if (x->how != OK || failed(result))
		return refuse(x, "mmap", result);
	x->scratch = result;
	if (put(x, SCRATCH_SOCKETS, none, sizeof(none)) || put(x, SCRATCH_RECEIVED, none, sizeof(none[0])))
		return -1;
	if (x->thread.landing && tell_landing(&x->thread, x->scratch))
		return refuse(x, "writing its memory", -errno);
	return 0;
}

static void close_one_by_one(struct injection *x)
{
	const int descriptors[] = {x->received, x->sockets[0], x->sockets[1]};
	int i;

	for (i = 0; i < 3; i++)
		if (descriptors[i] >= 0)
			CALL(x, SYS_close, descriptors[i], 0, 0, 0, 0, 0);
	CALL(x, SYS_munmap, x->scratch, PAGE, 0, 0, 0, 0);
}

// Whatever became of the rest, the target keeps no descriptor and no scratch memory.
static void clean_up(struct injection *x)
{
	enum outcome how = x->how;

	if (x->ours >= 0)
		close(x->ours);
	if (!x->scratch || (how != OK && how != REFUSED))
		return;
	x->how = OK;
	if (x->thread.landing)
		x->how = clean_up_in(&x->thread);
	else
		close_one_by_one(x);
	if (x->how == OK)
		x->how = how;
}

void hand_over(struct injection *x)
{
	if (!map_scratch(x) && !choose_signal(x) && !pass_table(x) && !map_area(x) && !write_code(x))
		install_handler(x);
	clean_up(x);
}

unsigned long handler_address(const struct injection *x)
{
	return x->area + offset_of(causal_handler);
}

// --- children forked meanwhile --------------------------------------------------------------------------------------

static void close_in_child(struct injection *x, pid_t child)
{
	struct injection y = {.thread = {.pid = child, .tid = child}, .sockets = {-1, -1}};
	char path[64], name[DESCRIPTOR_NAME];
	int i;

	name_descriptor(child, x->sockets[1], name); // the last one that is closed
	if (x->sockets[1] < 0 || !name[0] || strcmp(name, x->socket_names[1]))
		return;
	snprintf(path, sizeof(path), "/proc/%d/mem", child);
	y.thread.memory = open(path, O_RDWR | O_CLOEXEC);
	if (y.thread.memory < 0)
		return;
	y.how = hold(&y.thread);
	if (y.how == OK)
		y.how = prepare(&y.thread);
	if (y.how == OK) {
		for (i = 0; i < 2; i++) {
			name_descriptor(child, x->sockets[i], name);
			if (!strcmp(name, x->socket_names[i]))
				CALL(&y, SYS_close, x->sockets[i], 0, 0, 0, 0, 0);
		}
		name_descriptor(child, x->received, name);
		if (x->received >= 0 && !strncmp(name, "anon_inode:bpf-map", 18))
			CALL(&y, SYS_close, x->received, 0, 0, 0, 0, 0);
		if (y.how == OK)
			let_go(&y.thread, y.thread.mask_before);
	}
	close(y.thread.memory);
}

void close_in_children(struct injection *x)
{
	char path[96];
	DIR *tasks = open_tasks(x->thread.pid);
	pid_t tid;
	int child;

	while (tasks && (tid = next_thread(tasks))) {
		FILE *children;
		snprintf(path, sizeof(path), "/proc/%d/task/%d/children", x->thread.pid, tid);
		children = fopen(path, "r");
		while (children && fscanf(children, "%d", &child) == 1)
			close_in_child(x, child);
		if (children)
			fclose(children);
	}
	if (tasks)
		closedir(tasks);
}
