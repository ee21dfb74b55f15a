// The architecture's part of what runs inside the target: system calls, and the return from a signal handler.

#if !defined(__x86_64__)
#error "only x86-64 is supported so far"
#endif

typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;

enum {
	SYS_MMAP = 9,
	SYS_RT_SIGACTION = 13,
	SYS_NANOSLEEP = 35,
	SYS_READLINK = 89,
	SYS_PRCTL = 157,
	SYS_GETTID = 186,
};

static inline long system_call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

// A number that no other question of this thread has had.
static inline u64 fresh_nonce(void)
{
	return __builtin_ia32_rdtsc() | 1;
}

// What a handler returns to: rt_sigreturn.
#define RESTORER_TEXT "mov $15, %eax\n\tsyscall\n"
