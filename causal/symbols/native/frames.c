// The entries of call-frame information, one after the other; see frames.h.

#include <stdlib.h>
#include <string.h>

#include "frames.h"

#define PCREL 0x10
#define OMITTED_BITS 0x70
#define REACH ((u64)1 << 32)

// How many bytes an encoding of pointers takes (Linux Standard Base, Core, 10.5.1), 0: unknown.
static int stored_size(u8 encoding)
{
	switch (encoding & 0x0f) {
	case 0x00: case 0x04: case 0x0c:
		return 8;
	case 0x03: case 0x0b:
		return 4;
	case 0x02: case 0x0a:
		return 2;
	}
	return 0;
}

static u64 stored(struct cursor *c, u8 encoding)
{
	int size = stored_size(encoding);
	u64 value = get_fixed(c, size);

	if (encoding & 8 && size == 4)
		return (s64)(int32_t)value;
	if (encoding & 8 && size == 2)
		return (s64)(int16_t)value;
	return value;
}

static void *append(struct frames *f, struct vector *v, size_t item)
{
	if (v->count == v->room) {
		u64 room = v->room ? v->room * 2 : 1024;
		void *data = realloc(v->data, room * item);
		if (!data) {
			f->out_of_memory = true;
			return NULL;
		}
		v->data = data;
		v->room = room;
	}
	return (u8 *)v->data + v->count++ * item;
}

// How the entries of functions write addresses, from the augmentation of their common entry.
static bool read_augmentation(struct cursor *c, const char *letters, u8 *encoding)
{
	u64 size = read_uleb(c);
	struct cursor inner = *c;

	skip_bytes(c, size);
	if (c->bad)
		return false;
	inner.end = c->at;
	for (; *letters; letters++) {
		if (*letters == 'R') {
			*encoding = get_fixed(&inner, 1);
		} else if (*letters == 'L') {
			get_fixed(&inner, 1);
		} else if (*letters == 'P') {
			u8 personality = get_fixed(&inner, 1);
			if (!stored_size(personality))
				return false;
			get_fixed(&inner, stored_size(personality));
		} else if (*letters != 'S' && *letters != 'B') {
			return false;
		}
	}
	return !inner.bad;
}

static bool read_common(struct frames *f, struct cursor c, struct common *common)
{
	u8 version = get_fixed(&c, 1);
	const char *letters = get_string(&c);

	common->state = (struct frame_state){.reg = 7, .offset = 8};
	if (!letters || (version != 1 && version != 3 && version != 4) || (*letters && *letters != 'z'))
		return false;
	if (version == 4 && get_fixed(&c, 2) != 8) // the size of addresses, and of segment selectors
		return false;
	common->code_factor = read_uleb(&c);
	common->data_factor = read_sleb(&c);
	if (version == 1)
		get_fixed(&c, 1);
	else
		read_uleb(&c);
	common->augmented = *letters;
	if (common->augmented && !read_augmentation(&c, letters + 1, &common->encoding))
		return false;
	return !c.bad && run_program(f, common, c, &common->state, NULL);
}

static bool add_common(struct frames *f, u64 at, struct cursor c)
{
	struct common common = {.at = at};

	common.usable = read_common(f, c, &common);
	struct common *kept = append(f, &f->commons, sizeof(common));
	if (kept)
		*kept = common;
	return common.usable;
}

static const struct common *find_common(const struct frames *f, u64 at)
{
	const struct common *all = f->commons.data;
	u64 low = 0, high = f->commons.count;

	// Nearly always the last one.
	if (high && all[high - 1].at == at)
		return &all[high - 1];
	while (low < high) {
		u64 middle = (low + high) / 2;
		if (all[middle].at == at)
			return &all[middle];
		if (all[middle].at < at)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

// The linker leaves entries of functions it has thrown away at address 0.
static bool is_code(const struct frames *f, u64 address)
{
	if (address <= f->base || address - f->base >= REACH)
		return false;
	for (u64 i = 0; i < f->code_count; i++)
		if (address >= f->code[2 * i] && address < f->code[2 * i + 1])
			return true;
	return false;
}

static bool is_known(const struct frames *f, u64 start)
{
	u64 low = 0, high = f->known_count;

	while (low < high) {
		u64 middle = (low + high) / 2;
		if (f->known[middle].start <= start)
			low = middle + 1;
		else
			high = middle;
	}
	return low && start < f->known[low - 1].end;
}

static bool add_function(struct frames *f, struct cursor c, u64 where)
{
	const struct common *common = find_common(f, where);
	struct frame_state state;
	struct range range;
	struct function *function;
	u64 at = f->address + (c.at - f->data), start, size;

	if (!common || !common->usable || !stored_size(common->encoding))
		return false;
	if ((common->encoding & OMITTED_BITS) != 0 && (common->encoding & OMITTED_BITS) != PCREL)
		return false;
	start = stored(&c, common->encoding);
	if (common->encoding & PCREL)
		start += at;
	size = stored(&c, common->encoding & 7);
	if (common->augmented)
		skip_bytes(&c, read_uleb(&c));
	if (c.bad)
		return false;
	if (!size || !is_code(f, start) || is_known(f, start - f->base))
		return true;
	start -= f->base;
	size = size < REACH ? size : REACH - 1;
	function = append(f, &f->functions, sizeof(*function));
	if (!function)
		return false;
	*function = (struct function){start, start + size};
	range = (struct range){start, size, f->rows.count};
	state = common->state;
	return run_program(f, common, c, &state, &range);
}

static bool read_entry(struct frames *f, u64 at, u64 end)
{
	struct cursor c = {f->data + at + 4, f->data + end, false};
	u32 common = get_fixed(&c, 4);

	if (c.bad)
		return false;
	if (common == (f->is_debug ? 0xffffffff : 0))
		return add_common(f, at, c);
	return add_function(f, c, f->is_debug ? common : at + 4 - common);
}

// Goes through all entries. `bounded`: `data` is exactly the section, else it ends somewhere in there.
static void read_entries(struct frames *f, bool bounded)
{
	u64 at = 0, length;

	while (at + 8 <= f->size && !f->out_of_memory) {
		struct cursor c = {f->data + at, f->data + f->size, false};

		length = get_fixed(&c, 4);
		if (!length) {
			if (!bounded)
				return;
			at += 4; // a terminator of one of the linked files
			continue;
		}
		if (length >= 0xfffffff0 || at + 4 + length > f->size) {
			f->lost++; // 64-bit lengths: no compiler writes them on x86-64
			return;
		}
		if (!read_entry(f, at, at + 4 + length))
			f->lost++;
		at += 4 + length;
	}
}

// `code`: pairs of addresses. `known`: functions of another section that are left out here, sorted. NULL: no memory.
struct frames *frames_read(const struct section *section, u64 address, u32 flags, u64 base, const u64 *code,
			   u64 code_count, const struct function *known, u64 known_count)
{
	struct frames *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->data = section->data;
	f->size = section->size;
	f->address = address;
	f->is_debug = flags & 1;
	f->base = base;
	f->code = code;
	f->code_count = code_count;
	f->known = known;
	f->known_count = known_count;
	read_entries(f, flags & 2);
	return f;
}

// 0: rows, 1: functions; `count` also tells the entries that make no sense (2), and whether memory was short (3).
const void *frames_array(const struct frames *f, int which, u64 *count)
{
	const struct vector *arrays[] = {&f->rows, &f->functions};

	if (which >= 2) {
		*count = which == 2 ? f->lost : f->out_of_memory;
		return NULL;
	}
	*count = arrays[which]->count;
	return arrays[which]->data;
}

void frames_free(struct frames *f)
{
	if (!f)
		return;
	free(f->commons.data);
	free(f->functions.data);
	free(f->rows.data);
	free(f);
}
