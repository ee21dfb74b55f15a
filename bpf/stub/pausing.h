// How a thread pauses inside the handler; the same for the preloaded library and for the injected handler.
//
// The protocol with bpf/pause.h: gettid(ASK_MAGIC, nonce) asks "how long still?"; the answer is this thread's line of
// the table, carrying the nonce. No such line means that nobody answered (the profiler is gone), or that the signal was
// somebody else's: leave at once. Threads of several pid namespaces may have the same number, hence the nonce decides.

#include "x86_64.h"

#define ASK_MAGIC 0x63617573616c2101UL
#define REGISTER_MAGIC 0x63617573616c2102UL

#define PR_SET_TIMERSLACK 29
#define PR_GET_TIMERSLACK 30

// A pause is slept in slices, each ended by a new question, so that a pause outlives its reason by one slice at most.
#define SLICE_NS 5000000L
#define MAX_SLICES 400
#define PROBES 32 // as in bpf/pause.h

struct answer {
	u64 nonce;
	s64 remaining_ns;
	u32 tid;   // as the thread itself sees it
	u32 owner; // as the host sees it
};

struct timespec {
	long seconds, nanoseconds;
};

// How long this thread still has to sleep; 0 when nobody says so.
static inline s64 ask(const struct answer *answers, u64 lines)
{
	u64 nonce = fresh_nonce();
	u32 tid = system_call(SYS_GETTID, ASK_MAGIC, nonce, 0, 0, 0, 0);
	u32 i;

	for (i = 0; i < PROBES; i++) {
		const volatile struct answer *a = &answers[(tid + i) % lines];
		if (a->tid == tid && a->nonce == nonce)
			return a->remaining_ns;
	}
	return 0;
}

static inline void pause_as_told(const struct answer *answers, u64 lines)
{
	s64 remaining = ask(answers, lines);
	long slack = 0;
	int slices;

	if (remaining <= 0)
		return;
	// The default slack of 50 us would round every pause up.
	slack = system_call(SYS_PRCTL, PR_GET_TIMERSLACK, 0, 0, 0, 0, 0);
	if (slack > 0)
		system_call(SYS_PRCTL, PR_SET_TIMERSLACK, 1, 0, 0, 0, 0);
	for (slices = 0; slices < MAX_SLICES && remaining > 0; slices++) {
		struct timespec slice = {0, remaining < SLICE_NS ? remaining : SLICE_NS};
		system_call(SYS_NANOSLEEP, (u64)&slice, 0, 0, 0, 0, 0);
		remaining = ask(answers, lines);
	}
	if (slack > 0)
		system_call(SYS_PRCTL, PR_SET_TIMERSLACK, slack, 0, 0, 0, 0);
}
