// Cursors that cannot leave their section, growing arrays, and strings kept once.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

u64 get_fixed(struct cursor *c, int size)
{
	u64 value = 0;

	if (c->bad || size > 8 || c->end - c->at < size) {
		c->bad = true;
		return 0;
	}
	for (int i = 0; i < size; i++)
		value |= (u64)c->at[i] << 8 * i;
	c->at += size;
	return value;
}

u64 get_uleb(struct cursor *c)
{
	u64 value = 0;
	unsigned shift = 0;

	while (!c->bad && c->at < c->end) {
		u8 byte = *c->at++;
		if (shift < 64)
			value |= (u64)(byte & 0x7f) << shift;
		shift += 7;
		if (!(byte & 0x80))
			return value;
	}
	c->bad = true;
	return 0;
}

s64 get_sleb(struct cursor *c)
{
	u64 value = 0;
	unsigned shift = 0;

	while (!c->bad && c->at < c->end) {
		u8 byte = *c->at++;
		if (shift < 64)
			value |= (u64)(byte & 0x7f) << shift;
		shift += 7;
		if (!(byte & 0x80)) {
			if (shift < 64 && (byte & 0x40))
				value |= ~(u64)0 << shift;
			return (s64)value;
		}
	}
	c->bad = true;
	return 0;
}

void skip_bytes(struct cursor *c, u64 count)
{
	if (c->bad || (u64)(c->end - c->at) < count)
		c->bad = true;
	else
		c->at += count;
}

const char *get_string(struct cursor *c)
{
	const u8 *start = c->at, *nul;

	if (c->bad)
		return NULL;
	nul = memchr(start, 0, c->end - start);
	if (!nul) {
		c->bad = true;
		return NULL;
	}
	c->at = nul + 1;
	return (const char *)start;
}

u64 get_length(struct cursor *c, u8 *offset_size)
{
	u64 length = get_fixed(c, 4);

	*offset_size = 4;
	if (length == 0xffffffff) {
		*offset_size = 8;
		length = get_fixed(c, 8);
	} else if (length >= 0xfffffff0) {
		c->bad = true;
	}
	return length;
}

struct cursor cursor_at(const struct section *s, u64 offset)
{
	struct cursor c = {s->data, s->data + s->size, false};

	if (offset > s->size || !s->data) {
		c.bad = true;
		c.at = c.end;
	} else {
		c.at += offset;
	}
	return c;
}

const char *string_at(const struct section *s, u64 offset)
{
	struct cursor c = cursor_at(s, offset);

	return get_string(&c);
}

// Whether some of the program's code begins at `start` and has room up to `end`. What the linker threw away keeps its
// debug information, at addresses near 0 or at the very top.
bool in_code(const struct reader *r, u64 start, u64 end)
{
	for (u64 i = 0; i < r->code_count; i++)
		if (r->code[2 * i] <= start && start < r->code[2 * i + 1])
			return start < end && end <= r->code[2 * i + 1];
	return false;
}

bool spend(struct reader *r, u64 work)
{
	if (r->budget < work) {
		r->budget = 0;
		return false;
	}
	r->budget -= work;
	return true;
}

// Room for `more` items behind those there are; NULL when there is no memory.
void *grow(struct reader *r, struct vector *v, size_t item, u64 more)
{
	u64 need = v->count + more;

	if (need > v->room) {
		u64 room = v->room + v->room / 2 > need ? v->room + v->room / 2 : need + 16;
		void *data = room > SIZE_MAX / item ? NULL : realloc(v->data, room * item);
		if (!data) {
			r->out_of_memory = true;
			return NULL;
		}
		v->data = data;
		v->room = room;
	}
	return (u8 *)v->data + v->count * item;
}

void sort(struct vector *v, size_t item, int (*compare)(const void *, const void *))
{
	if (v->count > 1)
		qsort(v->data, v->count, item, compare);
}

static u64 hash(const char *text, size_t length)
{
	u64 h = 0xcbf29ce484222325;

	for (size_t i = 0; i < length; i++)
		h = (h ^ (u8)text[i]) * 0x100000001b3;
	return h ^ h >> 29;
}

static bool rehash(struct reader *r, struct interner *in)
{
	u64 count = in->slot_count ? in->slot_count * 2 : 1024;
	u32 *slots = malloc(count * sizeof(*slots));
	const u64 *offsets = in->offsets.data;

	if (!slots) {
		r->out_of_memory = true;
		return false;
	}
	memset(slots, 0xff, count * sizeof(*slots));
	for (u64 id = 0; id < in->offsets.count; id++) {
		const char *text = (const char *)in->text.data + offsets[id];
		u64 slot = hash(text, strlen(text)) & (count - 1);
		while (slots[slot] != NONE)
			slot = (slot + 1) & (count - 1);
		slots[slot] = id;
	}
	free(in->slots);
	in->slots = slots;
	in->slot_count = count;
	return true;
}

// The number of a string, the same for the same string; NONE when there is no memory.
u32 intern(struct reader *r, struct interner *in, const char *text, size_t length)
{
	const u64 *offsets = in->offsets.data;
	u64 slot, *offset;
	char *copy;

	if (in->offsets.count * 2 >= in->slot_count && !rehash(r, in))
		return NONE;
	slot = hash(text, length) & (in->slot_count - 1);
	for (; in->slots[slot] != NONE; slot = (slot + 1) & (in->slot_count - 1)) {
		const char *known = (const char *)in->text.data + offsets[in->slots[slot]];
		if (!strncmp(known, text, length) && !known[length])
			return in->slots[slot];
	}
	copy = grow(r, &in->text, 1, length + 1);
	offset = grow(r, &in->offsets, sizeof(*offset), 1);
	if (!copy || !offset)
		return NONE;
	memcpy(copy, text, length);
	copy[length] = 0;
	*offset = in->text.count;
	in->text.count += length + 1;
	in->slots[slot] = in->offsets.count;
	return in->offsets.count++;
}
