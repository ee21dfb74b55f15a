// The handler that `causal-bpf attach` injects: it does what the preloaded library does, in a process that has no such
// library. The injector copies the section "handler" into the target and fills in the header, so nothing here may refer
// to anything outside of the section; tests/unit/test_injector.py checks that.

#include "pausing.h"
#include "injected.h"

#define IN_HANDLER __attribute__((section("handler"), used, visibility("hidden")))

extern const struct injected causal_injected __attribute__((visibility("hidden")));

// The header is written in assembler because a C compiler keeps data and code in sections of their own. `next` is
// where the program's own handler is that has to see each signal too (Go counts on its SIGURG).
__asm__(".section handler, \"ax\", @progbits\n"
	".balign 64\n"
	".hidden causal_injected\n"
	".globl causal_injected\n"
	"causal_injected:\n"
	"	.quad " INJECTED_MAGIC_TEXT "\n"
	"	.quad 0, 0, 0, 0, 0, 0, 0\n"
	".hidden causal_restorer\n"
	".globl causal_restorer\n"
	".balign 16\n"
	"causal_restorer:\n"
	"	" RESTORER_TEXT
	".hidden causal_handler\n"
	".globl causal_handler\n"
	".balign 16\n"
	"causal_handler:\n"
	"	push %rdi\n"
	"	push %rsi\n"
	"	push %rdx\n"
	"	call causal_pause\n"
	"	pop %rdx\n"
	"	pop %rsi\n"
	"	pop %rdi\n"
	"	mov causal_injected + 32(%rip), %rax\n" // next
	"	test %rax, %rax\n"
	"	jnz 1f\n"
	"	ret\n"
	"1:	jmp *%rax\n"
	".text\n");

_Static_assert(__builtin_offsetof(struct injected, next) == 32, "the assembler above reads it there");

void causal_pause(void);

IN_HANDLER void causal_pause(void)
{
	const volatile struct injected *here = &causal_injected;

	pause_as_told((const struct answer *)here->answers, here->lines);
}
