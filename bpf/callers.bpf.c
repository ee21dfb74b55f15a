// Who calls a few functions of the processes under test.
//
// At the first instruction of a function the word at the stack pointer is the return address, so every call is counted
// with its caller exactly. Callers further up come from the chain of frame pointers, for the first STACKS calls of each
// function: walking it costs more than counting. FUNCTIONS, STACKS and CHAINS are given on the command line;
// bpf/traced.h stands in front.

#define DEPTH 16

struct chain {
	u32 function;
	u32 walked; // 0: nothing is known of callers further up
	u64 ip;
	u64 caller;
	u64 ips[DEPTH]; // from the function itself upwards, as the kernel walks it; 0 behind the last one
};
BPF_TABLE("hash", struct chain, u64, chains, CHAINS);
BPF_PERCPU_ARRAY(scratch, struct chain, 1);
BPF_ARRAY(walks, u64, FUNCTIONS);
BPF_ARRAY(lost, u64, FUNCTIONS); // calls for whose chain there was no room

static __always_inline void walk(struct pt_regs *ctx, struct chain *c)
{
	u64 *taken = walks.lookup((int *)&c->function);

	if (!taken || *taken >= STACKS)
		return;
	__sync_fetch_and_add(taken, 1);
	c->walked = 1;
	// What it does not fill stays 0: the scratch was cleared.
	bpf_get_stack(ctx, c->ips, sizeof(c->ips), BPF_F_USER_STACK);
}

int on_call(struct pt_regs *ctx)
{
	int zero = 0;
	u64 one = 1, *count;
	struct chain *c;

	if (!is_traced())
		return 0;
	c = scratch.lookup(&zero);
	if (!c)
		return 0;
	__builtin_memset(c, 0, sizeof(*c));
	c->function = attach_cookie(ctx);
	c->ip = ctx->ip;
	bpf_probe_read_user(&c->caller, sizeof(c->caller), (void *)ctx->sp);
	walk(ctx, c);
	count = chains.lookup(c);
	if (count) {
		__sync_fetch_and_add(count, 1);
		return 0;
	}
	// Another CPU may have been first; then its count is there.
	if (chains.insert(c, &one)) {
		count = chains.lookup(c);
		if (!count)
			count = lost.lookup((int *)&c->function);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}
