// The architecture's part of the injector: registers, restarts, restartable sequences. See tracee.h.

#define _GNU_SOURCE
#include "landing.h"
#include "tracee.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "only x86-64 is supported so far"
#endif

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
#define CODE_SEGMENT_64 0x33
#define KERNEL_ERESTARTNOHAND 514
#define SYSTEM_CALL_STOP (SIGTRAP | 0x80)
#define NUMBER_OF_CLOSE 3

struct rseq_configuration {
	unsigned long address;
	unsigned int size, signature, flags, pad;
};

struct rseq_section {
	unsigned int version, flags;
	unsigned long start, length, abort;
};

int read_from(const struct tracee *t, unsigned long address, void *to, size_t size)
{
	return pread(t->memory, to, size, address) == (ssize_t)size ? 0 : -1;
}

// Protections do not matter to a tracer. Where the kernel is told otherwise for /proc/PID/mem, it still obeys POKEDATA.
int write_to(const struct tracee *t, unsigned long address, const void *from, size_t size)
{
	size_t done;

	if (pwrite(t->memory, from, size, address) == (ssize_t)size)
		return 0;
	for (done = 0; done < size; done += sizeof(long)) {
		size_t part = size - done < sizeof(long) ? size - done : sizeof(long);
		long word = 0;
		if (part < sizeof(long) && read_from(t, address + done, &word, sizeof(word)))
			return -1;
		memcpy(&word, (const char *)from + done, part);
		if (ptrace(PTRACE_POKEDATA, t->tid, address + done, word))
			return -1;
	}
	return 0;
}

// The caller has a timer running whose signal ends a wait that takes too long.
static enum outcome wait_for_stop(struct tracee *t, int *status)
{
	struct itimerval limit = {{0, 100000}, {3, 0}}, none = {{0, 0}, {0, 0}};
	int got;

	setitimer(ITIMER_REAL, &limit, NULL);
	got = waitpid(t->tid, status, __WALL);
	setitimer(ITIMER_REAL, &none, NULL);
	if (got < 0)
		return errno == EINTR ? TIMED_OUT : GONE;
	return WIFSTOPPED(*status) ? OK : GONE;
}

static int is_event_stop(int status)
{
	return status >> 16 == PTRACE_EVENT_STOP;
}

// Signals that come first are delivered as they would have been.
static enum outcome go_to_event_stop(struct tracee *t)
{
	int status = 0;

	for (;;) {
		enum outcome how = wait_for_stop(t, &status);
		if (how != OK)
			return how;
		if (is_event_stop(status)) {
			t->in_event_stop = 1;
			return OK;
		}
		if (ptrace(PTRACE_CONT, t->tid, 0, WSTOPSIG(status) & 0x80 ? 0 : WSTOPSIG(status)))
			return GONE;
	}
}

static void leave_restartable_sequence(struct tracee *t)
{
	struct rseq_configuration rseq;
	struct rseq_section section;
	unsigned long address = 0;

	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, t->tid, sizeof(rseq), &rseq) != sizeof(rseq) || !rseq.address)
		return;
	if (read_from(t, rseq.address + 8, &address, sizeof(address)) || !address)
		return;
	if (read_from(t, address, &section, sizeof(section)))
		return;
	if (t->before.rip - section.start >= section.length)
		return;
	t->before.rip = section.abort; // and the kernel forgets the section when it finds the thread outside of it
}

static void undo_interruption(struct tracee *t)
{
	long number = t->before.orig_rax;

	if (number < 0)
		leave_restartable_sequence(t);
	else if ((long)t->before.rax == -EINTR && number != NUMBER_OF_CLOSE)
		t->before.rax = -(long)KERNEL_ERESTARTNOHAND;
}

static enum outcome give_back(struct tracee *t, enum outcome how)
{
	ptrace(PTRACE_SETREGS, t->tid, 0, &t->before);
	ptrace(PTRACE_DETACH, t->tid, 0, 0);
	return how;
}

enum outcome hold(struct tracee *t)
{
	enum outcome how;

	t->in_event_stop = 0;
	t->landing = 0;
	if (ptrace(PTRACE_SEIZE, t->tid, 0, PTRACE_O_TRACESYSGOOD))
		return errno == ESRCH ? GONE : DENIED;
	if (ptrace(PTRACE_INTERRUPT, t->tid, 0, 0))
		return GONE;
	how = go_to_event_stop(t);
	if (how != OK)
		return how;
	if (ptrace(PTRACE_GETREGS, t->tid, 0, &t->before))
		return GONE;
	undo_interruption(t);
	if (ptrace(PTRACE_SETREGS, t->tid, 0, &t->before))
		return GONE;
	if (t->before.cs != CODE_SEGMENT_64)
		return give_back(t, UNFIT);
	// With the mask of a call that brought its own (ppoll), it is the thread's own that is saved here; the call sets
	// its own again when it is restarted.
	if (ptrace(PTRACE_GETSIGMASK, t->tid, sizeof(t->mask_before), &t->mask_before))
		return give_back(t, DENIED);
	return OK;
}

enum outcome prepare(struct tracee *t)
{
	enum outcome how = prepare_landing(t);

	return how == OK ? OK : give_back(t, how);
}

// The mask first: until the registers are its own again the thread would land, and with this mask.
enum outcome let_go(struct tracee *t, unsigned long mask)
{
	enum outcome how;

	if (!t->in_event_stop) {
		if (ptrace(PTRACE_INTERRUPT, t->tid, 0, 0) || ptrace(PTRACE_CONT, t->tid, 0, 0))
			return GONE;
		how = go_to_event_stop(t);
		if (how != OK)
			return how;
	}
	if (ptrace(PTRACE_SETSIGMASK, t->tid, sizeof(mask), &mask) || ptrace(PTRACE_SETREGS, t->tid, 0, &t->before))
		return GONE;
	how = ptrace(PTRACE_DETACH, t->tid, 0, 0) ? GONE : OK;
	remove_landing(t);
	return how;
}

// To the next entry or exit of a system call. A SIGSTOP that arrives is passed on: it takes effect when we have left.
static enum outcome step(struct tracee *t)
{
	int status = 0, pass = 0;

	for (;;) {
		enum outcome how;
		if (ptrace(PTRACE_SYSCALL, t->tid, 0, pass))
			return GONE;
		how = wait_for_stop(t, &status);
		if (how != OK)
			return how;
		t->in_event_stop = is_event_stop(status);
		pass = 0;
		if (WSTOPSIG(status) == SYSTEM_CALL_STOP)
			return OK;
		if (t->in_event_stop)
			continue;
		if (WSTOPSIG(status) != SIGSTOP)
			return UNFIT; // SIGSYS and the like, caused by our call: it is swallowed
		pass = SIGSTOP;
	}
}

enum outcome call_in(struct tracee *t, long number, const unsigned long arguments[6], long *result)
{
	struct user_regs_struct regs = t->before;
	enum outcome how;

	regs.rip = t->entry;
	regs.orig_rax = -1UL;
	regs.rax = number;
	regs.rdi = arguments[0];
	regs.rsi = arguments[1];
	regs.rdx = arguments[2];
	regs.r10 = arguments[3];
	regs.r8 = arguments[4];
	regs.r9 = arguments[5];
	if (ptrace(PTRACE_SETREGS, t->tid, 0, &regs))
		return GONE;
	how = step(t);
	if (how == OK)
		how = step(t);
	if (how == OK && ptrace(PTRACE_GETREGS, t->tid, 0, &regs))
		how = GONE;
	*result = how == OK ? (long)regs.rax : -1;
	return how;
}

enum outcome clean_up_in(struct tracee *t)
{
	struct user_regs_struct regs = t->before;
	enum outcome how = OK;
	int i;

	regs.rip = landing_start(t);
	regs.orig_rax = -1UL;
	if (ptrace(PTRACE_SETREGS, t->tid, 0, &regs))
		return GONE;
	for (i = 0; i < 2 * CLEAN_UP_CALLS && how == OK; i++)
		how = step(t);
	return how;
}
