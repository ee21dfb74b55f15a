// Makes the death of the injector harmless, whenever it comes.
//
// A thread whose tracer dies runs on with the registers it has, and these are ours while it executes our system calls.
// So what follows our system-call instruction is a landing: code that closes the descriptors of the injection, gives
// back its memory, sets the signal mask and the registers as they were, and jumps to where the thread came from; a
// system call that the stop interrupted is begun again, as the kernel would have done. One PTRACE_SETREGS leads into
// it, and one out of it, so there is no moment between. Injections that end well clean up by the same code.
//
// It needs executable memory before there is any: it stands in the part of the vDSO's last page that the image leaves
// empty (each process gets a page of its own when it is written to).

#define _GNU_SOURCE
#include "landing.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <time.h>
#include <unistd.h>

#define SLOT_SIZE 384UL // with 6.18 there is room for three
#define NUMBER_OF_RESTART_SYSCALL 219
#define ABANDONED_NS 2000000000UL

// As the assembler below has it.
struct landing_data {
	unsigned long owner, since_ns; // thread id; CLOCK_MONOTONIC
	unsigned long scratch, mask, rip;
	unsigned long rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
};

extern const char landing_begin[], landing_clean_up[], landing_values[], landing_end[];

// Flags are left alone by all of this (jrcxz, no test), and the stack pointer is the thread's own throughout, so a
// signal that comes once the mask is as it was finds an ordinary thread.
__asm__(".pushsection .rodata\n"
	".balign 16\n"
	"landing_begin:\n"
	"	syscall\n"
	"landing_clean_up:\n"
	"	mov landing_values + 16(%rip), %rcx\n" // scratch
	"	jrcxz 1f\n"
	"	mov %rcx, %rbx\n"
	"	mov 24(%rbx), %edi\n" // SCRATCH_RECEIVED first: who has inherited it has the sockets too, by which it is known
	"	mov $3, %eax\n"
	"	syscall\n" // close
	"	mov 0(%rbx), %edi\n"
	"	mov $3, %eax\n"
	"	syscall\n"
	"	mov 4(%rbx), %edi\n"
	"	mov $3, %eax\n"
	"	syscall\n"
	"	mov %rbx, %rdi\n"
	"	mov $4096, %esi\n"
	"	mov $11, %eax\n"
	"	syscall\n" // munmap
	"1:	mov $2, %edi\n" // SIG_SETMASK
	"	lea landing_values + 24(%rip), %rsi\n"
	"	mov $0, %edx\n"
	"	mov $8, %r10d\n"
	"	mov $14, %eax\n"
	"	syscall\n" // rt_sigprocmask
	"	mov landing_values + 40(%rip), %rax\n"
	"	mov landing_values + 48(%rip), %rbx\n"
	"	mov landing_values + 56(%rip), %rcx\n"
	"	mov landing_values + 64(%rip), %rdx\n"
	"	mov landing_values + 72(%rip), %rsi\n"
	"	mov landing_values + 80(%rip), %rdi\n"
	"	mov landing_values + 88(%rip), %rbp\n"
	"	mov landing_values + 96(%rip), %r8\n"
	"	mov landing_values + 104(%rip), %r9\n"
	"	mov landing_values + 112(%rip), %r10\n"
	"	mov landing_values + 120(%rip), %r11\n"
	"	mov landing_values + 128(%rip), %r12\n"
	"	mov landing_values + 136(%rip), %r13\n"
	"	mov landing_values + 144(%rip), %r14\n"
	"	mov landing_values + 152(%rip), %r15\n"
	"	jmp *landing_values + 32(%rip)\n"
	"	.balign 8\n"
	"landing_values:\n"
	"	.fill 20, 8, 0\n"
	"landing_end:\n"
	".popsection\n");

_Static_assert(sizeof(struct landing_data) == 160, "the assembler above reserves so much");
_Static_assert(SCRATCH_SOCKETS == 0 && SCRATCH_RECEIVED == 24 && SCRATCH_SIZE == 4096, "and reads this");

static unsigned long offset_in_landing(const char *symbol)
{
	return (uintptr_t)symbol - (uintptr_t)landing_begin;
}

static unsigned long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000UL + t.tv_nsec;
}

static void find_vdso(pid_t pid, unsigned long *low, unsigned long *high)
{
	char path[64], line[512];
	FILE *maps;

	*low = *high = 0;
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "r");
	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", low, high) == 2)
			break;
	if (maps)
		fclose(maps);
}

// Is a landing that another injector left behind empty? Threads are there for microseconds, unless they are stopped.
static int is_abandoned(const struct tracee *t, unsigned long slot, const struct landing_data *data)
{
	char path[96], text[256] = "", *last;
	unsigned long at;
	FILE *file;

	if (now_ns() - data->since_ns < ABANDONED_NS)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/task/%lu/syscall", t->pid, data->owner);
	file = fopen(path, "r");
	if (!file)
		return 1;
	if (!fgets(text, sizeof(text), file))
		text[0] = 0;
	fclose(file);
	last = strrchr(text, ' ');
	return !last || sscanf(last, "%lx", &at) != 1 || at - slot >= SLOT_SIZE;
}

// 0: the vDSO has no room at all, or what room there is is taken.
static unsigned long free_slot(const struct tracee *t, unsigned long low, unsigned long high, int *taken)
{
	static const char nothing[SLOT_SIZE];
	char found[SLOT_SIZE];
	unsigned long slot, code = offset_in_landing(landing_values);
	struct landing_data data;

	for (slot = high - SLOT_SIZE; slot > low; slot -= SLOT_SIZE) {
		if (read_from(t, slot, found, SLOT_SIZE))
			return 0;
		if (!memcmp(found, nothing, SLOT_SIZE))
			return slot;
		if (memcmp(found, landing_begin, code))
			return 0; // the image begins here
		memcpy(&data, found + code, sizeof(data));
		if (is_abandoned(t, slot, &data))
			return slot;
		*taken = 1;
	}
	return 0;
}

// Where the thread goes on, as the kernel would decide it when no signal is pending.
static void fill_in(struct landing_data *data, const struct tracee *t)
{
	const struct user_regs_struct *b = &t->before;

	*data = (struct landing_data){
		t->tid, now_ns(), 0, t->mask_before, b->rip, b->rax, b->rbx, b->rcx, b->rdx, b->rsi, b->rdi, b->rbp,
		b->r8, b->r9, b->r10, b->r11, b->r12, b->r13, b->r14, b->r15,
	};
	if ((long)b->orig_rax < 0)
		return;
	switch ((long)b->rax) {
	case -512: case -513: case -514: // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND
		data->rax = b->orig_rax;
		data->rip -= 2;
		break;
	case -516: // ERESTART_RESTARTBLOCK
		data->rax = NUMBER_OF_RESTART_SYSCALL;
		data->rip -= 2;
		break;
	}
}

// The vDSO has a system-call instruction in every process that has a vDSO; else the one the thread came from.
static unsigned long any_system_call(const struct tracee *t, unsigned long low, unsigned long high)
{
	static unsigned char code[1 << 16];
	unsigned long i, size = high - low < sizeof(code) ? high - low : sizeof(code);
	unsigned char here[2] = {0, 0};

	if (size && !read_from(t, low, code, size))
		for (i = 0; i + 1 < size; i++)
			if (code[i] == 0x0f && code[i + 1] == 0x05)
				return low + i;
	if (!read_from(t, t->before.rip - 2, here, 2) && here[0] == 0x0f && here[1] == 0x05)
		return t->before.rip - 2;
	return 0;
}

enum outcome prepare_landing(struct tracee *t)
{
	unsigned long low, high, all = ~0UL, code = offset_in_landing(landing_values);
	struct user_regs_struct regs = t->before;
	struct landing_data data;
	char image[SLOT_SIZE] = {0};
	int taken = 0;

	find_vdso(t->pid, &low, &high);
	t->landing = low && code + sizeof(data) <= SLOT_SIZE ? free_slot(t, low, high, &taken) : 0;
	if (taken && !t->landing)
		return TAKEN;
	fill_in(&data, t);
	memcpy(image, landing_begin, code);
	memcpy(image + code, &data, sizeof(data));
	if (t->landing && write_to(t, t->landing, image, SLOT_SIZE))
		t->landing = 0;
	t->entry = t->landing ? t->landing : any_system_call(t, low, high);
	if (!t->entry)
		return UNFIT;
	if (t->landing) {
		regs.rip = landing_start(t);
		regs.orig_rax = -1UL;
		if (ptrace(PTRACE_SETREGS, t->tid, 0, &regs))
			return GONE;
	}
	return ptrace(PTRACE_SETSIGMASK, t->tid, sizeof(all), &all) ? GONE : OK;
}

int tell_landing(const struct tracee *t, unsigned long scratch)
{
	unsigned long where = t->landing + offset_in_landing(landing_values) + offsetof(struct landing_data, scratch);

	return write_to(t, where, &scratch, sizeof(scratch));
}

unsigned long landing_start(const struct tracee *t)
{
	return t->landing + offset_in_landing(landing_clean_up);
}

void remove_landing(struct tracee *t)
{
	static const char nothing[SLOT_SIZE];

	// Where only a tracer may write, the slot is used again once it is old.
	if (t->landing)
		(void)!pwrite(t->memory, nothing, SLOT_SIZE, t->landing);
	t->landing = 0;
}
