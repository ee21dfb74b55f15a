/*
 * Progress points in the source, for C and C++:
 *
 *     CAUSAL_PROGRESS("request");         a unit of work is done
 *     CAUSAL_BEGIN("request");            ... begins: latency is measured between the two, which may
 *     CAUSAL_END("request");              ... ends    happen in different threads and processes
 *
 * They are statements, for any place where there may be one. Copy this file into the project: there is nothing to link.
 * Names are string literals; points of one name are one point, wherever they are.
 *
 * Under `causal-bpf run` (or COZ) a visit costs one relaxed atomic addition; else one load and a branch never taken. Each
 * point is a USDT point too (causal_progress:request, causal_begin, causal_end), which is a nop: by these `attach` and
 * static programs count.
 */
#ifndef CAUSAL_H
#define CAUSAL_H

#if defined(__linux__) && defined(__GNUC__)

#include <dlfcn.h>

/* So that nothing has to be linked where dlsym() has a library of its own, and static programs stay without. */
#pragma weak dlsym

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((unused, noinline, cold)) static unsigned long *causal_find_counter(int kind, const char *name)
{
	typedef unsigned long *(*find_t)(int, const char *);
	union {
		void *address;
		find_t call;
	} find;

	find.address = dlsym ? dlsym((void *)0, "_coz_get_counter") : (void *)0; /* NULL is RTLD_DEFAULT */
	return find.address ? find.call(kind, name) : (unsigned long *)0;
}

#ifdef __cplusplus
}
#endif

/* The note that <sys/sdt.h> makes for a point without arguments: provider, name and where the nop is. */
#if defined(__LP64__)
#define CAUSAL_MARK(provider, name)                                                                              \
	__asm__ __volatile__("990: nop\n"                                                                        \
			     ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                       \
			     ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                       \
			     "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                         \
			     "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n"                               \
			     ".asciz \"" provider "\"\n.asciz " #name "\n.asciz \"\"\n994: .balign 4\n"          \
			     ".popsection\n"                                                                     \
			     ".ifndef _.stapsdt.base\n"                                                          \
			     ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"             \
			     ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"          \
			     ".size _.stapsdt.base, 1\n.popsection\n.endif\n")
#else
#define CAUSAL_MARK(provider, name) ((void)0)
#endif

#define CAUSAL_VISIT(kind, provider, name)                                                         \
	do {                                                                                       \
		static unsigned long *causal_counter;                                              \
		static unsigned char causal_known;                                                 \
		CAUSAL_MARK(provider, name);                                                       \
		if (__builtin_expect(!__atomic_load_n(&causal_known, __ATOMIC_ACQUIRE), 0)) {      \
			__atomic_store_n(&causal_counter, causal_find_counter(kind, "" name ""),   \
					 __ATOMIC_RELAXED);                                        \
			__atomic_store_n(&causal_known, 1, __ATOMIC_RELEASE);                      \
		}                                                                                  \
		if (__builtin_expect(__atomic_load_n(&causal_counter, __ATOMIC_RELAXED) != 0, 0))  \
			__atomic_fetch_add(__atomic_load_n(&causal_counter, __ATOMIC_RELAXED), 1,  \
					   __ATOMIC_RELAXED);                                      \
	} while (0)

#else
#define CAUSAL_VISIT(kind, provider, name) do { } while (0)
#endif

#define CAUSAL_PROGRESS(name) CAUSAL_VISIT(1, "causal_progress", name)
#define CAUSAL_BEGIN(name) CAUSAL_VISIT(2, "causal_begin", name)
#define CAUSAL_END(name) CAUSAL_VISIT(3, "causal_end", name)

#endif
