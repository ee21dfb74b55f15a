// Functions and the calls that were inlined into them: which code belongs to which, and how they are called.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

enum {
	TAG_INLINED_SUBROUTINE = 0x1d, TAG_SUBPROGRAM = 0x2e,

	AT_NAME = 0x03, AT_LOW_PC = 0x11, AT_HIGH_PC = 0x12, AT_ABSTRACT_ORIGIN = 0x31, AT_SPECIFICATION = 0x47,
	AT_RANGES = 0x55, AT_CALL_FILE = 0x58, AT_CALL_LINE = 0x59, AT_LINKAGE_NAME = 0x6e, AT_MIPS_LINKAGE_NAME = 0x2007,

	FORM_ADDR = 0x01, FORM_REF_ADDR = 0x10, FORM_REF1 = 0x11, FORM_REF_UDATA = 0x15, FORM_REF_SUP4 = 0x1c,
	FORM_RNGLISTX = 0x23, FORM_REF_SUP8 = 0x24, FORM_GNU_REF_ALT = 0x1f20,

	RLE_END = 0, RLE_BASE_ADDRESSX, RLE_STARTX_ENDX, RLE_STARTX_LENGTH, RLE_OFFSET_PAIR, RLE_BASE_ADDRESS,
	RLE_START_END, RLE_START_LENGTH,
};

#define PART_SHIFT 62
#define OFFSET_MASK (((u64)1 << PART_SHIFT) - 1)
#define MAX_HOPS 8

struct scope {
	u32 instance, depth;
};

static bool add_range(struct reader *r, u64 start, u64 end, u32 instance, u32 depth)
{
	struct inline_range *range;

	if (!in_code(r, start, end))
		return true;
	range = grow(r, &r->ranges, sizeof(*range), 1);
	if (!range)
		return false;
	*range = (struct inline_range){start, end, instance, depth};
	r->ranges.count++;
	return true;
}

static bool old_ranges(struct reader *r, const struct unit *u, u64 offset, u32 instance, u32 depth)
{
	// Those of a skeleton itself are not relative to the base that it gives.
	struct cursor c = cursor_at(&r->sections[S_RANGES], offset + (u->part == P_SPLIT ? u->ranges_base : 0));
	u64 base = u->low_pc, highest = u->address_size == 8 ? ~(u64)0 : 0xffffffff;

	while (spend(r, 1)) {
		u64 low = get_fixed(&c, u->address_size), high = get_fixed(&c, u->address_size);
		if (c.bad)
			return false;
		if (!low && !high)
			return true;
		if (low == highest)
			base = high;
		else if (!add_range(r, base + low, base + high, instance, depth))
			return false;
	}
	return false;
}

static bool indexed_address(const struct reader *r, const struct unit *u, u64 index, u64 *address)
{
	struct value v = {0x1b, index, NULL};

	return value_address(r, u, &v, address);
}

static const struct section *lists_of(const struct reader *r, const struct unit *u)
{
	return &r->sections[u->part == P_SPLIT ? S_SPLIT_RNGLISTS : S_RNGLISTS];
}

static bool new_ranges(struct reader *r, const struct unit *u, u64 offset, u32 instance, u32 depth)
{
	struct cursor c = cursor_at(lists_of(r, u), offset);
	u64 base = u->low_pc, low, high;

	while (spend(r, 1) && !c.bad) {
		bool fine = true;
		switch (get_fixed(&c, 1)) {
		case RLE_END:
			return !c.bad;
		case RLE_BASE_ADDRESSX:
			if (!indexed_address(r, u, get_uleb(&c), &base))
				return false;
			continue;
		case RLE_BASE_ADDRESS:
			base = get_fixed(&c, u->address_size);
			continue;
		case RLE_STARTX_ENDX:
			fine = indexed_address(r, u, get_uleb(&c), &low) && indexed_address(r, u, get_uleb(&c), &high);
			break;
		case RLE_STARTX_LENGTH:
			fine = indexed_address(r, u, get_uleb(&c), &low);
			high = low + get_uleb(&c);
			break;
		case RLE_OFFSET_PAIR:
			low = base + get_uleb(&c);
			high = base + get_uleb(&c);
			break;
		case RLE_START_END:
			low = get_fixed(&c, u->address_size);
			high = get_fixed(&c, u->address_size);
			break;
		case RLE_START_LENGTH:
			low = get_fixed(&c, u->address_size);
			high = low + get_uleb(&c);
			break;
		default:
			return false;
		}
		if (!fine || c.bad || !add_range(r, low, high, instance, depth))
			return false;
	}
	return false;
}

static bool listed_ranges(struct reader *r, const struct unit *u, const struct value *v, u32 instance, u32 depth)
{
	u64 offset = v->number;

	if (u->version < 5)
		return old_ranges(r, u, offset, instance, depth);
	if (v->form == FORM_RNGLISTX) {
		struct cursor c;
		if (offset > lists_of(r, u)->size)
			return false;
		c = cursor_at(lists_of(r, u), u->rnglists_base + offset * u->offset_size);
		offset = u->rnglists_base + get_fixed(&c, u->offset_size);
		if (c.bad)
			return false;
	}
	return new_ranges(r, u, offset, instance, depth);
}

static u64 die_at(u64 offset, enum part part)
{
	return (offset & OFFSET_MASK) | (u64)part << PART_SHIFT;
}

// Where a reference leads: an offset and the part it is in; 0 when it is none.
static u64 reference(const struct unit *u, const struct value *v)
{
	if (v->form >= FORM_REF1 && v->form <= FORM_REF_UDATA)
		return die_at(u->offset + v->number, u->part);
	if (v->form == FORM_REF_ADDR)
		return die_at(u->info + v->number, u->part);
	if (v->form == FORM_GNU_REF_ALT || v->form == FORM_REF_SUP4 || v->form == FORM_REF_SUP8)
		return die_at(v->number, P_SUP);
	return 0;
}

struct scope_entry {
	struct value low, high, ranges;
	u64 origin, call_file, call_line;
};

static void read_scope(const struct reader *r, const struct unit *u, struct cursor *c, const struct abbrev *abbrev,
		       struct scope_entry *e)
{
	const struct attribute *attributes = (struct attribute *)r->attributes.data + abbrev->first;

	memset(e, 0, sizeof(*e));
	for (u32 i = 0; i < abbrev->count && !c->bad; i++) {
		struct value v;
		read_value(u, c, attributes[i].form, attributes[i].constant, &v);
		switch (attributes[i].name) {
		case AT_LOW_PC:
			e->low = v;
			break;
		case AT_HIGH_PC:
			e->high = v;
			break;
		case AT_RANGES:
			e->ranges = v;
			break;
		case AT_ABSTRACT_ORIGIN:
			e->origin = reference(u, &v);
			break;
		case AT_CALL_FILE:
			e->call_file = v.number;
			break;
		case AT_CALL_LINE:
			e->call_line = v.number;
			break;
		}
	}
}

static bool place_scope(struct reader *r, const struct unit *u, const struct scope_entry *e, u32 instance, u32 depth)
{
	u64 low, high;

	if (e->ranges.form)
		return listed_ranges(r, u, &e->ranges, instance, depth);
	if (!value_address(r, u, &e->low, &low))
		return true;
	// An offset from the beginning, unless it is an address (before version 4).
	if (!value_address(r, u, &e->high, &high))
		high = low + e->high.number;
	return add_range(r, low, high, instance, depth);
}

static void skip_entry(const struct reader *r, const struct unit *u, struct cursor *c, const struct abbrev *abbrev)
{
	const struct attribute *attributes = (struct attribute *)r->attributes.data + abbrev->first;

	if (abbrev->fixed_size != NONE) {
		skip_bytes(c, abbrev->fixed_size);
		return;
	}
	for (u32 i = 0; i < abbrev->count && !c->bad; i++) {
		struct value v;
		read_value(u, c, attributes[i].form, attributes[i].constant, &v);
	}
}

static bool add_instance(struct reader *r, const struct unit *u, const struct line_header *h, struct scope_entry *e,
			 u64 die, bool inlined, struct scope *inside)
{
	struct instance *instance = grow(r, &r->instances, sizeof(*instance), 1);
	u32 id = r->instances.count, file;

	if (!instance || id >= NONE - 1)
		return false;
	file = inlined && h ? file_id(r, h, e->call_file) : NONE;
	*instance = (struct instance){
		.die = e->origin ? e->origin : die,
		.parent = inlined ? inside->instance : NONE,
		.call_file = file == NONE ? 0 : file + 1,
		.call_line = file == NONE || e->call_line > 0x7fffffff ? 0 : e->call_line,
	};
	r->instances.count++;
	inside->instance = id;
	inside->depth++;
	return place_scope(r, u, e, id, inside->depth);
}

static bool walk_unit(struct reader *r, const struct unit *u)
{
	struct cursor c = unit_cursor(r, u, u->dies);
	const u8 *base = info_of(r, u)->data;
	struct line_header header;
	bool has_header = u->has_lines && read_line_header(r, u->line_offset, &header);
	struct scope outer = {NONE, 0};

	if (!load_abbrevs(r, u) || !spend(r, r->files.count))
		return false;
	r->scopes.count = 0;
	while (c.at < c.end) {
		u64 die = die_at(c.at - base, u->part), code = get_uleb(&c);
		struct scope inside = outer, *slot;
		const struct abbrev *abbrev;
		if (c.bad)
			return false;
		if (!code) {
			if (r->scopes.count)
				outer = ((struct scope *)r->scopes.data)[--r->scopes.count];
			continue;
		}
		abbrev = find_abbrev(r, code);
		if (!abbrev)
			return false;
		if (abbrev->tag == TAG_SUBPROGRAM || abbrev->tag == TAG_INLINED_SUBROUTINE) {
			struct scope_entry e;
			read_scope(r, u, &c, abbrev, &e);
			// A declaration or an abstract instance has no code of its own.
			if (!c.bad && (e.low.form || e.ranges.form) &&
			    !add_instance(r, u, has_header ? &header : NULL, &e, die,
					  abbrev->tag == TAG_INLINED_SUBROUTINE, &inside))
				return false;
		} else {
			skip_entry(r, u, &c, abbrev);
		}
		if (c.bad)
			return false;
		if (abbrev->children) {
			slot = grow(r, &r->scopes, sizeof(*slot), 1);
			if (!slot)
				return false;
			*slot = outer;
			r->scopes.count++;
			outer = inside;
		}
	}
	return true;
}

static int by_place(const void *a, const void *b)
{
	const struct inline_range *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	if (x->depth != y->depth)
		return x->depth < y->depth ? -1 : 1;
	return x->instance < y->instance ? -1 : x->instance > y->instance;
}

static bool push_piece(struct reader *r, u64 address, u32 instance)
{
	struct piece *piece = grow(r, &r->pieces, sizeof(*piece), 1);

	if (!piece)
		return false;
	if (r->pieces.count && piece[-1].address == address) {
		piece[-1].instance = instance;
		return true;
	}
	if (r->pieces.count && piece[-1].instance == instance)
		return true;
	*piece = (struct piece){address, instance, 0};
	r->pieces.count++;
	return true;
}

// Nested ranges become a list of disjoint pieces: each byte belongs to the innermost instance around it.
static bool flatten(struct reader *r)
{
	const struct inline_range *ranges = r->ranges.data;
	u64 *open = NULL, depth = 0;

	sort(&r->ranges, sizeof(*ranges), by_place);
	open = malloc((r->ranges.count + 1) * sizeof(*open));
	if (!open || !push_piece(r, 0, NONE)) {
		free(open);
		r->out_of_memory = true;
		return false;
	}
	for (u64 i = 0; i <= r->ranges.count; i++) {
		u64 next = i < r->ranges.count ? ranges[i].start : ~(u64)0;
		while (depth && ranges[open[depth - 1]].end <= next) {
			u64 end = ranges[open[--depth]].end;
			while (depth && ranges[open[depth - 1]].end <= end)
				depth--;
			push_piece(r, end, depth ? ranges[open[depth - 1]].instance : NONE);
		}
		if (i < r->ranges.count) {
			open[depth++] = i;
			push_piece(r, ranges[i].start, ranges[i].instance);
		}
	}
	free(open);
	return !r->out_of_memory;
}

// Read all units into `instances` and `pieces`. False when memory ran out.
bool reader_inlines(struct reader *r)
{
	const struct unit *units = r->units.data;

	for (u64 i = 0; i < r->units.count && !r->out_of_memory; i++) {
		if (units[i].part == P_SUP || units[i].passed_over)
			continue;
		if (!walk_unit(r, &units[i]))
			r->skipped_units++;
	}
	return !r->out_of_memory && flatten(r);
}

static const struct unit *unit_at(const struct reader *r, u64 offset, enum part part)
{
	const struct unit *units = r->units.data;
	u64 low = 0, high = r->units.count;

	// One part after the other, and each is in order.
	while (low < high) {
		u64 middle = (low + high) / 2;
		const struct unit *u = &units[middle];
		if (u->part < part || (u->part == part && u->end <= offset))
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->units.count && units[low].part == part && units[low].dies <= offset ? &units[low] : NULL;
}

// The name of the entry at `die`: that of the linker where there is one, so that it is complete.
static const char *name_of(struct reader *r, u64 die)
{
	const char *name = NULL;

	for (int hop = 0; hop < MAX_HOPS && die; hop++) {
		u64 offset = die & OFFSET_MASK, next = 0;
		const struct unit *u = unit_at(r, offset, die >> PART_SHIFT);
		const struct attribute *attributes;
		const struct abbrev *abbrev;
		struct cursor c;
		if (!u || !load_abbrevs(r, u))
			return name;
		c = unit_cursor(r, u, offset);
		abbrev = find_abbrev(r, get_uleb(&c));
		if (c.bad || !abbrev)
			return name;
		attributes = (struct attribute *)r->attributes.data + abbrev->first;
		for (u32 i = 0; i < abbrev->count; i++) {
			struct value v;
			read_value(u, &c, attributes[i].form, attributes[i].constant, &v);
			if (c.bad)
				return name;
			switch (attributes[i].name) {
			case AT_LINKAGE_NAME: case AT_MIPS_LINKAGE_NAME: {
				const char *linkage = value_string(r, u, &v);
				if (linkage && *linkage)
					return linkage;
				break;
			}
			case AT_NAME:
				if (!name)
					name = value_string(r, u, &v);
				break;
			case AT_SPECIFICATION: case AT_ABSTRACT_ORIGIN:
				next = reference(u, &v);
				break;
			}
		}
		die = next;
	}
	return name;
}

// For each of `count` entries the number of its name in `names`, or NONE; fastest when they are sorted.
bool reader_names(struct reader *r, const u64 *dies, u64 count, u32 *ids)
{
	for (u64 i = 0; i < count; i++) {
		const char *name = name_of(r, dies[i]);
		ids[i] = name ? intern(r, &r->names, name, strlen(name)) : NONE;
	}
	return !r->out_of_memory;
}
