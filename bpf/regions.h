// From an address in a process to a region.

// The tables that user space fills are mapped there and written by numpy (causal/engine.py has the same layouts).
struct mapping {
	u64 start, end; // addresses in the process
	u64 offset;     // of `start` in the file
	u32 lo, hi;     // its slice of `ranges`
	u32 region;     // the whole mapping is this region, 0: it is not
	u32 sampled;    // its slice of `stretches` (sampled.h): first and count, 16 bits each
	u32 module;     // its slice of the unwind tables, 0: none
	u32 pc;         // where those have `start`
	u32 guessed;    // frames in it that were left by their frame pointer; see bpf/unwind.h
	u32 pages;      // where those of its ranges begin in `range_pages`, 0: none
};
BPF_F_TABLE("array", u32, struct mapping, mappings, MAX_MAPPINGS, BPF_F_MMAPABLE);

struct space {
	u32 first, count; // its slice of `mappings`, sorted
};
BPF_F_TABLE("array", u32, struct space, spaces, MAX_SPACES, BPF_F_MMAPABLE);

struct range {
	u64 start, end; // file offsets
	u32 region;
	u32 pad;
};
BPF_F_TABLE("array", u32, struct range, ranges, MAX_RANGES, BPF_F_MMAPABLE);

// Which ranges there are in each page (256 bytes) of a mapping: a search of all ranges touches twenty places far from
// each other, which are in no cache, and that is what it costs.
#define RANGE_PAGE_BITS 8
struct range_page {
	u32 lo, hi;
};
BPF_F_TABLE("array", u32, struct range_page, range_pages, MAX_RANGE_PAGES, BPF_F_MMAPABLE);

// What is kept of a region; number 0 stands for everything outside of regions.
struct region_state {
	u64 samples;
	u64 serial; // the same, each shared among the threads that could run then: in 1/SERIAL_UNIT of a sample
	u64 given;  // per mille: a speedup that it has in all arms, set by user space (--given)
};
BPF_F_TABLE("array", u32, struct region_state, region_states, MAX_REGIONS, BPF_F_MMAPABLE);
#define SERIAL_UNIT 65536
BPF_TABLE("hash", u32, u32, thread_regions, MAX_THREADS); // unit `thread`: given out by user space

#define NO_MAPPING 0xffffffff

static __always_inline u32 find_mapping(u64 ip, struct space *s)
{
	u32 lo = s->first, hi = s->first + s->count;
	struct mapping *m;
	int i;

	for (i = 0; i < MAPPING_STEPS; i++) {
		u32 mid = (lo + hi) / 2;
		if (lo >= hi)
			return NO_MAPPING;
		m = mappings.lookup(&mid);
		if (!m)
			return NO_MAPPING;
		if (ip < m->start)
			hi = mid;
		else if (ip >= m->end)
			lo = mid + 1;
		else
			return mid;
	}
	return NO_MAPPING;
}

static __always_inline u32 find_range(u64 offset, u32 lo, u32 hi)
{
	struct range *r;
	int i;

	for (i = 0; i < RANGE_STEPS; i++) {
		u32 mid = (lo + hi) / 2;
		if (lo >= hi)
			return 0;
		r = ranges.lookup(&mid);
		if (!r)
			return 0;
		if (offset < r->start)
			hi = mid;
		else if (offset >= r->end)
			lo = mid + 1;
		else
			return r->region;
	}
	return 0;
}

static __always_inline u32 region_in(u32 mapping, u64 ip)
{
	struct mapping *m = mappings.lookup(&mapping);
	struct range_page *part;
	u32 lo, hi, page;

	if (!m)
		return 0;
	if (m->region)
		return m->region;
	lo = m->lo;
	hi = m->hi;
	if (m->pages) {
		page = m->pages + (u32)((ip - m->start) >> RANGE_PAGE_BITS);
		part = range_pages.lookup(&page);
		if (part) {
			lo = part->lo;
			hi = part->hi;
		}
	}
	return find_range(ip - m->start + m->offset, lo, hi);
}

// What a region is besides the innermost frame in scope; as causal/windows.py has it.
#define BY_INNERMOST 0
#define BY_CALL_SITE 1 // ... and the next frame in scope above it
#define BY_ANY_FRAME 2 // any frame in scope

#if ATTRIBUTION == BY_CALL_SITE
// Regions that turn up while the target runs. User space asks for their names.
struct site {
	u32 region, caller;
};
BPF_TABLE("hash", struct site, u32, sites, MAX_SITES);
BPF_ARRAY(site_count, u64, 1);

static __always_inline u32 region_of_site(u32 region, u32 caller)
{
	struct site key = { region, caller };
	u32 *known = sites.lookup(&key), fresh;
	int zero = 0;
	u64 *number;

	if (known)
		return *known;
	number = site_count.lookup(&zero);
	if (!number || *number >= MAX_SITES)
		return 0;
	fresh = FIRST_SITE + __sync_fetch_and_add(number, 1);
	// Another core may have been faster: then its number counts.
	sites.insert(&key, &fresh);
	known = sites.lookup(&key);
	return known ? *known : 0;
}
#endif

#if ATTRIBUTION == BY_ANY_FRAME
// Which look has counted a region last: recursion must not count it twice.
BPF_ARRAY(seen_by, u64, MAX_REGIONS);

static __always_inline void count_frame(u32 region, u64 look)
{
	u64 *seen = seen_by.lookup(&region);
	struct region_state *state;

	if (!seen || *seen == look)
		return;
	*seen = look;
	state = region_states.lookup(&region);
	if (state)
		__sync_fetch_and_add(&state->samples, 1);
}
#endif
