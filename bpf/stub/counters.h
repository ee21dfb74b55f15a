// Counters that the program itself adds to: what programs built with COZ's header or with causal.h ask for by name.
//
// They live in a table that all processes of the target and the profiler map (`macros` of bpf/progress.h): nothing is
// lost when a process ends, and a count costs the program one atomic addition.

#define MACRO_NAME 232

struct macro {
	u64 count;
	u64 backoff;
	u32 state; // FREE, FILLING or READY
	u32 kind;
	char name[MACRO_NAME];
};

_Static_assert(sizeof(struct macro) == 256, "the profiler has the same layout");

enum { FREE, FILLING, READY };

// A process that dies while it fills a line in must not hold up the others for good.
#define MACRO_PATIENCE 1000000

static struct macro *macros; // written once, by the constructor
static u64 n_macros;
static struct macro spare; // for counters that nobody reads: no profiler, no free line

static int same_name(const char *name, const char *other)
{
	int i;

	for (i = 0; i < MACRO_NAME; i++) {
		if (name[i] != other[i])
			return 0;
		if (!name[i])
			return 1;
	}
	return 1;
}

// Names are often paths: of a long one the end says more.
static const char *end_of(const char *name)
{
	u64 length = 0;

	while (name[length])
		length++;
	return length < MACRO_NAME ? name : name + length - MACRO_NAME + 1;
}

static int is_filled_in(struct macro *m)
{
	int i;

	for (i = 0; i < MACRO_PATIENCE; i++) {
		if (__atomic_load_n(&m->state, __ATOMIC_ACQUIRE) == READY)
			return 1;
		__asm__ volatile("pause");
	}
	return 0;
}

static struct macro *find_macro(u32 kind, const char *name)
{
	u64 i;
	int at;

	name = end_of(name);
	for (i = 0; i < n_macros; i++) {
		struct macro *m = &macros[i];
		u32 state = FREE;

		if (__atomic_compare_exchange_n(&m->state, &state, FILLING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			m->kind = kind;
			for (at = 0; at < MACRO_NAME - 1 && name[at]; at++)
				m->name[at] = name[at];
			__atomic_store_n(&m->state, READY, __ATOMIC_RELEASE);
			return m;
		}
		if (is_filled_in(m) && m->kind == kind && same_name(m->name, name))
			return m;
	}
	return &spare;
}

#define EXPORTED __attribute__((visibility("default")))

// What coz.h looks up by name: a counter of a kind (1 throughput, 2 begin, 3 end) and a name.
EXPORTED u64 *_coz_get_counter(int kind, const char *name)
{
	return name ? &find_macro(kind, name)->count : &spare.count;
}

// Programs may call these around what blocks. The kernel sees for itself who waits for whom.
EXPORTED void _coz_add_delays(void)
{
}

EXPORTED void _coz_pre_block(void)
{
}

EXPORTED void _coz_post_block(int skip_delays)
{
	(void)skip_delays;
}
