// Programs that a profiler could easily break, each with results of its own that are the same every time:
//     oddities MODE ROUNDS
// short-threads   a thousand threads a second, each for a moment
// coroutines      code on stacks of its own making, without an alternate signal stack
// raw-clone       threads that no C library knows of
// signalfd        a thread that reads all signals from a descriptor while another one sends some
// io-uring        time-outs waited for in io_uring_enter
// seccomp-later   a filter that comes while it runs
// vandal          fills the table of pauses with garbage, if it was started with the descriptor
#include "../../workloads/common.h"
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/time_types.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <ucontext.h>

WORKER(work_a)
WORKER(work_b)

enum { TABLE_SIZE = 8192 * 24 };
static volatile long sum;

// --- short-threads --------------------------------------------------------------------------------------------------

static void *add_one(void *unused)
{
	work_b(100);
	__atomic_fetch_add(&sum, 1, __ATOMIC_RELAXED);
	return unused;
}

static void short_threads(long rounds)
{
	pthread_t thread;

	for (long i = 0; i < rounds; i++) {
		if (pthread_create(&thread, NULL, add_one, NULL))
			die("pthread_create");
		work_a(700);
		progress();
		pthread_join(thread, NULL);
	}
}

// --- coroutines -----------------------------------------------------------------------------------------------------

static ucontext_t caller, routine;

static void coroutine(void)
{
	for (;;) {
		work_a(300);
		sum++;
		swapcontext(&routine, &caller);
	}
}

static void coroutines(long rounds)
{
	static char stack[65536];

	if (getcontext(&routine))
		die("getcontext");
	routine.uc_stack.ss_sp = stack;
	routine.uc_stack.ss_size = sizeof(stack);
	makecontext(&routine, coroutine, 0);
	start_thread((void *(*)(void *))(void *)add_one, NULL);
	for (long i = 0; i < rounds; i++) {
		swapcontext(&caller, &routine);
		work_b(300);
		progress();
	}
}

// --- raw-clone ------------------------------------------------------------------------------------------------------

static volatile int ended;

// No thread-local storage of its own: only what needs none.
static void raw_thread(long rounds)
{
	uint64_t x = 1;

	for (long i = 0; i < rounds; i++) {
		x = chain(x, 300 * DEFAULT_UNIT_ITERATIONS);
		__atomic_fetch_add(&sum, 1 + (x == 0), __ATOMIC_RELAXED);
	}
}

static void raw_clone(long rounds)
{
	enum { STACK = 65536 };
	const long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	register long top __asm__("rsi") = (long)(stack + STACK - 64), result;

	if (stack == MAP_FAILED)
		die("mmap");
	__asm__ volatile("mov %[flags], %%rdi\n\t"
			 "xor %%edx, %%edx\n\txor %%r10d, %%r10d\n\txor %%r8d, %%r8d\n\t"
			 "mov %[clone], %%eax\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %[rounds], %%rdi\n\t"
			 "call raw_thread_entry\n\t"
			 "1:"
			 : "=a"(result), "+r"(top)
			 : [flags] "r"(flags), [clone] "i"(SYS_clone), [rounds] "b"(rounds)
			 : "rdi", "rdx", "r10", "r8", "rcx", "r11", "memory");
	if (result < 0)
		die("clone");
	for (long i = 0; i < rounds; i++) {
		work_a(300);
		progress();
	}
	while (!ended)
		usleep(1000);
}

__attribute__((used)) void raw_thread_entry(long rounds);
__attribute__((used)) void raw_thread_entry(long rounds)
{
	raw_thread(rounds);
	ended = 1;
	__asm__ volatile("xor %%edi, %%edi\n\tmov $60, %%eax\n\tsyscall" ::: "memory");
	__builtin_unreachable();
}

// --- signalfd -------------------------------------------------------------------------------------------------------

static void *send_signals(void *count)
{
	for (long i = 0; i < *(long *)count; i++) {
		work_b(300);
		kill(getpid(), i % 2 ? SIGURG : SIGUSR1);
		usleep(500);
	}
	usleep(50000);
	kill(getpid(), SIGTERM);
	return NULL;
}

static void read_signals(long rounds)
{
	struct signalfd_siginfo info;
	long foreign = 0;
	sigset_t all;
	int descriptor;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	descriptor = signalfd(-1, &all, SFD_CLOEXEC);
	start_thread(send_signals, &rounds);
	while (read(descriptor, &info, sizeof(info)) == sizeof(info) && info.ssi_signo != SIGTERM) {
		work_a(100);
		progress();
		if (info.ssi_signo != SIGURG && info.ssi_signo != SIGUSR1)
			foreign++;
		if (info.ssi_pid != (uint32_t)getpid())
			foreign++; // the kernel's, not ours
	}
	sum = foreign;
}

// --- io-uring -------------------------------------------------------------------------------------------------------

static void wait_in_ring(long rounds)
{
	struct io_uring_params p = { 0 };
	int ring = (int)syscall(SYS_io_uring_setup, 4, &p);

	if (ring < 0) { // switched off on this machine
		sum = rounds;
		return;
	}
	size_t sq_size = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
	size_t cq_size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *sq = mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqes = mmap(NULL, p.sq_entries * sizeof(*sqes), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
					 IORING_OFF_SQES);
	struct __kernel_timespec wait = { 0, 2000000 };

	if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
		die("mmap");
	for (long i = 0; i < rounds; i++) {
		uint32_t *tail = (uint32_t *)(sq + p.sq_off.tail), *head = (uint32_t *)(cq + p.cq_off.head);
		uint32_t slot = *tail & *(uint32_t *)(sq + p.sq_off.ring_mask);
		int64_t before = now_ns();

		memset(&sqes[slot], 0, sizeof(*sqes));
		sqes[slot].opcode = IORING_OP_TIMEOUT;
		sqes[slot].addr = (uint64_t)(uintptr_t)&wait;
		sqes[slot].len = 1;
		((uint32_t *)(sq + p.sq_off.array))[slot] = slot;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) != 1)
			die("io_uring_enter");
		if (syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0 &&
		    *head != __atomic_load_n((uint32_t *)(cq + p.cq_off.tail), __ATOMIC_ACQUIRE) &&
		    now_ns() - before >= 2000000)
			sum++;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
		work_a(500);
		progress();
	}
}

// --- seccomp-later --------------------------------------------------------------------------------------------------

static void *also_work(void *unused)
{
	for (;;)
		work_b(1000);
	return unused;
}

static void confine_later(long rounds)
{
	// Sleeping by nanosleep kills: only the handler does that.
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, filter };

	start_thread(also_work, NULL);
	for (long i = 0; i < rounds; i++) {
		if (i == rounds / 2 && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
					syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)))
			die("seccomp");
		work_a(1000);
		progress();
		sum++;
	}
}

// --- vandal ---------------------------------------------------------------------------------------------------------

static void *open_table(void)
{
	char path[32], target[64];

	for (int descriptor = 3; descriptor < 1024; descriptor++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
		ssize_t length = readlink(path, target, sizeof(target) - 1);
		if (length > 0 && (target[length] = 0, strstr(target, "bpf-map")))
			return mmap(NULL, TABLE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	}
	return MAP_FAILED;
}

static void *fill_table(void *table)
{
	uint64_t *words = table, x = 88172645463325252UL;

	for (;;) {
		for (size_t i = 0; i < TABLE_SIZE / sizeof(*words); i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			words[i] = i % 3 == 1 ? 1UL << 62 : x; // a pause without end
		}
		work_b(100);
	}
	return NULL;
}

static void vandal(long rounds)
{
	void *table = open_table();

	if (table != MAP_FAILED)
		start_thread(fill_table, table);
	for (long i = 0; i < rounds; i++) {
		work_a(1000);
		progress();
		sum++;
	}
}

// --------------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(long rounds);
	} modes[] = {
		{ "short-threads", short_threads }, { "coroutines", coroutines },  { "raw-clone", raw_clone },
		{ "signalfd", read_signals },       { "io-uring", wait_in_ring }, { "seccomp-later", confine_later },
		{ "vandal", vandal },
	};

	for (size_t i = 0; argc == 3 && i < sizeof(modes) / sizeof(*modes); i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		modes[i].run(atol(argv[2]));
		printf("%s %ld\n", argv[1], sum);
		fflush(stdout);
		_exit(0);
	}
	fprintf(stderr, "usage: oddities MODE ROUNDS\n");
	return 2;
}
