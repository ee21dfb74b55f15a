// A just-in-time compiler in small: it makes functions in anonymous memory and writes a map of them as perf wants it. The
// second function is made after a while.
#include "common.h"

#include <stdio.h>
#include <sys/mman.h>

static long late_ms = 500;
static FILE *map;

typedef void (*loop)(long);

// A loop that counts down, with a frame pointer.
static loop compile(unsigned char *at, const char *name)
{
	static const unsigned char code[] = {
		0x55, 0x48, 0x89, 0xe5,       // push %rbp; mov %rsp, %rbp
		0x48, 0xff, 0xcf, 0x75, 0xfb, // 1: dec %rdi; jnz 1b
		0x5d, 0xc3,                   // pop %rbp; ret
	};

	memcpy(at, code, sizeof(code));
	fprintf(map, "%lx %zx %s\n", (unsigned long)at, sizeof(code), name);
	fflush(map);
	return (loop)at;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "LATE_MS", &late_ms, "when the second function is made" },
		{ 0 },
	};
	unsigned char *memory;
	loop early, late;
	char path[64];
	long began;

	parse_arguments(argc, argv, parameters, "functions made at run time, in /tmp/perf-PID.map");
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!map || memory == MAP_FAILED)
		return 1;
	early = compile(memory, "JS:*early function.js:1:1");
	for (began = now_ns(); now_ns() - began < late_ms * 1000000L;)
		early(100000);
	late = compile(memory + 256, "late");
	for (;;) {
		early(1000000);
		late(3000000);
		count_round();
	}
}
