// One thread of the target, held for a fraction of a millisecond: stopped so that it notices nothing, made to execute
// system calls of ours, and let go.
//
// What keeps it unharmed:
// - Registers are restored in a PTRACE_EVENT_STOP, that is, where the kernel is about to decide about signals and
//   restarts. A system call that the stop interrupted is restarted by the kernel itself, or fails with EINTR when a
//   signal with a handler has arrived meanwhile, exactly as without us.
// - Calls that are not restartable (epoll_wait, sigtimedwait, ...) have failed with EINTR by then, and nobody but us is
//   the reason: the result is turned into -ERESTARTNOHAND, to which the same rule applies.
// - All signals are blocked meanwhile; they stay pending and are delivered afterwards.
// - At no moment does it depend on us: when this program dies, it finds its way back by itself (landing_x86_64.c).
// - A restartable sequence that was interrupted is aborted, as the kernel would on preemption: it looks at the program
//   counter, which is ours while it runs our calls.

#ifndef CAUSAL_TRACEE_H
#define CAUSAL_TRACEE_H

#include <sys/types.h>
#include <sys/user.h>

struct tracee {
	pid_t pid, tid;
	int memory;                    // /proc/PID/mem
	unsigned long entry;           // address of a system-call instruction
	unsigned long landing;         // see landing.h
	struct user_regs_struct before;
	unsigned long mask_before;
	int in_event_stop;
};

enum outcome {
	OK,
	GONE,      // it has ended, or executed another program
	DENIED,    // the kernel does not let us trace it
	TIMED_OUT, // it does not stop: uninterruptible
	UNFIT,     // 32-bit code, or no system-call instruction to be found
	TAKEN,     // other injectors have died in it a moment ago, and their places are not free yet
	REFUSED,   // a system call of ours failed in the target
};

// Stop a thread. On anything but OK it is not traced, or will not be once this program ends.
enum outcome hold(struct tracee *t);

// Make it ready to execute system calls of ours.
enum outcome prepare(struct tracee *t);

// Let it go on where it was, with this signal mask.
enum outcome let_go(struct tracee *t, unsigned long mask);

// Execute one system call in it; the result goes to *result (-errno on failure).
enum outcome call_in(struct tracee *t, long number, const unsigned long arguments[6], long *result);

// Have it close what the injection opened and return its memory (see landing.h), in one go.
enum outcome clean_up_in(struct tracee *t);

int read_from(const struct tracee *t, unsigned long address, void *to, size_t size);
int write_to(const struct tracee *t, unsigned long address, const void *from, size_t size);

#endif
