// Entries of .debug_info: attribute values, abbreviations, and the headers and first entries of units.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

enum {
	AT_NAME = 0x03, AT_STMT_LIST = 0x10, AT_LOW_PC = 0x11, AT_COMP_DIR = 0x1b,
	AT_STR_OFFSETS_BASE = 0x72, AT_ADDR_BASE = 0x73, AT_RNGLISTS_BASE = 0x74, AT_DWO_NAME = 0x76,
	AT_GNU_DWO_NAME = 0x2130, AT_GNU_DWO_ID, AT_GNU_RANGES_BASE, AT_GNU_ADDR_BASE,

	FORM_ADDR = 0x01, FORM_BLOCK2 = 0x03, FORM_BLOCK4, FORM_DATA2, FORM_DATA4, FORM_DATA8, FORM_STRING,
	FORM_BLOCK, FORM_BLOCK1, FORM_DATA1, FORM_FLAG, FORM_SDATA, FORM_STRP, FORM_UDATA, FORM_REF_ADDR,
	FORM_REF1, FORM_REF2, FORM_REF4, FORM_REF8, FORM_REF_UDATA, FORM_INDIRECT, FORM_SEC_OFFSET,
	FORM_EXPRLOC, FORM_FLAG_PRESENT, FORM_STRX, FORM_ADDRX, FORM_REF_SUP4, FORM_STRP_SUP, FORM_DATA16,
	FORM_LINE_STRP, FORM_REF_SIG8, FORM_IMPLICIT_CONST, FORM_LOCLISTX, FORM_RNGLISTX, FORM_REF_SUP8,
	FORM_STRX1, FORM_STRX2, FORM_STRX3, FORM_STRX4, FORM_ADDRX1, FORM_ADDRX2, FORM_ADDRX3, FORM_ADDRX4,
	FORM_GNU_ADDR_INDEX = 0x1f01, FORM_GNU_STR_INDEX = 0x1f02, FORM_GNU_REF_ALT = 0x1f20,
	FORM_GNU_STRP_ALT = 0x1f21,

	UT_TYPE = 2, UT_SKELETON = 4, UT_SPLIT_COMPILE, UT_SPLIT_TYPE,
};

// Bytes of a form that always has as many; -1: it varies; -2: unknown.
static int form_size(const struct unit *u, u32 form)
{
	switch (form) {
	case FORM_FLAG_PRESENT: case FORM_IMPLICIT_CONST:
		return 0;
	case FORM_DATA1: case FORM_REF1: case FORM_FLAG: case FORM_STRX1: case FORM_ADDRX1:
		return 1;
	case FORM_DATA2: case FORM_REF2: case FORM_STRX2: case FORM_ADDRX2:
		return 2;
	case FORM_STRX3: case FORM_ADDRX3:
		return 3;
	case FORM_DATA4: case FORM_REF4: case FORM_REF_SUP4: case FORM_STRX4: case FORM_ADDRX4:
		return 4;
	case FORM_DATA8: case FORM_REF8: case FORM_REF_SIG8: case FORM_REF_SUP8:
		return 8;
	case FORM_DATA16:
		return 16;
	case FORM_ADDR:
		return u->address_size;
	case FORM_REF_ADDR:
		return u->version == 2 ? u->address_size : u->offset_size;
	case FORM_STRP: case FORM_LINE_STRP: case FORM_SEC_OFFSET: case FORM_STRP_SUP:
	case FORM_GNU_REF_ALT: case FORM_GNU_STRP_ALT:
		return u->offset_size;
	case FORM_BLOCK1: case FORM_BLOCK2: case FORM_BLOCK4: case FORM_BLOCK: case FORM_EXPRLOC:
	case FORM_STRING: case FORM_SDATA: case FORM_UDATA: case FORM_REF_UDATA: case FORM_INDIRECT:
	case FORM_STRX: case FORM_ADDRX: case FORM_LOCLISTX: case FORM_RNGLISTX:
	case FORM_GNU_ADDR_INDEX: case FORM_GNU_STR_INDEX:
		return -1;
	}
	return -2;
}

// The value of an attribute; moves the cursor behind it. An unknown form spoils the cursor.
void read_value(const struct unit *u, struct cursor *c, u32 form, s64 constant, struct value *v)
{
	int size = form_size(u, form);

	*v = (struct value){form, 0, NULL};
	if (form == FORM_IMPLICIT_CONST) {
		v->number = (u64)constant;
	} else if (form == FORM_DATA16) {
		skip_bytes(c, 16);
	} else if (size >= 0) {
		v->number = form == FORM_FLAG_PRESENT ? 1 : get_fixed(c, size);
	} else if (size == -2) {
		c->bad = true;
	} else {
		switch (form) {
		case FORM_STRING:
			v->text = get_string(c);
			break;
		case FORM_SDATA:
			v->number = (u64)get_sleb(c);
			break;
		case FORM_BLOCK1:
			skip_bytes(c, get_fixed(c, 1));
			break;
		case FORM_BLOCK2:
			skip_bytes(c, get_fixed(c, 2));
			break;
		case FORM_BLOCK4:
			skip_bytes(c, get_fixed(c, 4));
			break;
		case FORM_BLOCK: case FORM_EXPRLOC:
			skip_bytes(c, get_uleb(c));
			break;
		case FORM_INDIRECT:
			form = get_uleb(c);
			// once: a form that leads to itself would never end
			if (form == FORM_INDIRECT || form == FORM_IMPLICIT_CONST)
				c->bad = true;
			else
				read_value(u, c, form, 0, v);
			break;
		default:
			v->number = get_uleb(c);
		}
	}
}

const struct section *info_of(const struct reader *r, const struct unit *u)
{
	static const u8 names[] = {S_INFO, S_SUP_INFO, S_SPLIT_INFO};

	return &r->sections[names[u->part]];
}

static const char *own_string(const struct reader *r, const struct unit *u, u64 offset)
{
	static const u8 names[] = {S_STR, S_SUP_STR, S_SPLIT_STR};
	const struct section *s = &r->sections[names[u->part]];

	return offset > s->size ? NULL : string_at(s, offset + u->strings);
}

static const char *indexed_string(const struct reader *r, const struct unit *u, u64 index)
{
	const struct section *offsets = &r->sections[u->part == P_SPLIT ? S_SPLIT_STR_OFFSETS : S_STR_OFFSETS];
	struct cursor c;

	if (index > offsets->size)
		return NULL;
	c = cursor_at(offsets, u->str_offsets_base + index * u->offset_size);
	index = get_fixed(&c, u->offset_size);
	return c.bad ? NULL : own_string(r, u, index);
}

const char *value_string(const struct reader *r, const struct unit *u, const struct value *v)
{
	switch (v->form) {
	case FORM_STRING:
		return v->text;
	case FORM_STRP:
		return own_string(r, u, v->number);
	case FORM_LINE_STRP:
		return string_at(&r->sections[S_LINE_STR], v->number);
	case FORM_STRP_SUP: case FORM_GNU_STRP_ALT:
		return string_at(&r->sections[S_SUP_STR], v->number);
	case FORM_STRX: case FORM_STRX1: case FORM_STRX2: case FORM_STRX3: case FORM_STRX4: case FORM_GNU_STR_INDEX:
		return indexed_string(r, u, v->number);
	}
	return NULL;
}

bool value_address(const struct reader *r, const struct unit *u, const struct value *v, u64 *address)
{
	struct cursor c;

	switch (v->form) {
	case FORM_ADDR:
		*address = v->number;
		return true;
	case FORM_ADDRX: case FORM_ADDRX1: case FORM_ADDRX2: case FORM_ADDRX3: case FORM_ADDRX4:
	case FORM_GNU_ADDR_INDEX:
		if (v->number > r->sections[S_ADDR].size)
			return false;
		c = cursor_at(&r->sections[S_ADDR], u->addr_base + v->number * u->address_size);
		*address = get_fixed(&c, u->address_size);
		return !c.bad;
	}
	return false;
}

static int by_code(const void *a, const void *b)
{
	const struct abbrev *x = a, *y = b;

	return x->code < y->code ? -1 : x->code > y->code;
}

static bool read_attributes(struct reader *r, const struct unit *u, struct cursor *c, struct abbrev *abbrev)
{
	u64 fixed = 0;

	while (!c->bad) {
		struct attribute *attribute = grow(r, &r->attributes, sizeof(*attribute), 1);
		u64 name = get_uleb(c), form = get_uleb(c);
		int size;
		if (!attribute || c->bad || name > NONE || form > NONE)
			return false;
		*attribute = (struct attribute){name, form, form == FORM_IMPLICIT_CONST ? get_sleb(c) : 0};
		if (!name && !form)
			break;
		size = form_size(u, form);
		fixed = size < 0 || fixed > 1 << 30 ? NONE : fixed + size;
		r->attributes.count++;
		abbrev->count++;
	}
	abbrev->fixed_size = fixed;
	return !c->bad;
}

// Make the abbreviations of a unit the current ones.
bool load_abbrevs(struct reader *r, const struct unit *u)
{
	static const u8 names[] = {S_ABBREV, S_SUP_ABBREV, S_SPLIT_ABBREV};
	struct cursor c = cursor_at(&r->sections[names[u->part]], u->abbrev_offset);
	u8 shape = u->address_size << 4 | u->offset_size | (u->version == 2);
	const u8 *start = c.at;
	bool sorted = true;
	u64 before = 0;

	if (r->abbrev_valid && r->abbrev_offset == u->abbrev_offset && r->abbrev_part == u->part &&
	    r->abbrev_shape == shape)
		return true;
	r->abbrev_valid = false;
	r->abbrevs.count = r->attributes.count = 0;
	while (!c.bad) {
		struct abbrev *abbrev = grow(r, &r->abbrevs, sizeof(*abbrev), 1);
		u64 code = get_uleb(&c), tag;
		if (!abbrev)
			return false;
		if (!code)
			break;
		tag = get_uleb(&c);
		*abbrev = (struct abbrev){code, r->attributes.count, 0, 0, tag, get_fixed(&c, 1)};
		r->abbrevs.count++;
		sorted = sorted && code > before;
		before = code;
		if (!read_attributes(r, u, &c, abbrev))
			return false;
	}
	if (c.bad || !spend(r, c.at - start))
		return false;
	if (!sorted)
		sort(&r->abbrevs, sizeof(struct abbrev), by_code);
	r->abbrev_offset = u->abbrev_offset;
	r->abbrev_part = u->part;
	r->abbrev_shape = shape;
	r->abbrev_valid = true;
	return true;
}

const struct abbrev *find_abbrev(const struct reader *r, u64 code)
{
	const struct abbrev *abbrevs = r->abbrevs.data, key = {.code = code};

	if (code && code <= r->abbrevs.count && abbrevs[code - 1].code == code)
		return &abbrevs[code - 1];
	return r->abbrevs.count ? bsearch(&key, abbrevs, r->abbrevs.count, sizeof(key), by_code) : NULL;
}

struct cursor unit_cursor(const struct reader *r, const struct unit *u, u64 offset)
{
	struct cursor c = cursor_at(info_of(r, u), offset);

	if (offset < u->dies || offset > u->end)
		c.bad = true;
	else if (!c.bad)
		c.end = info_of(r, u)->data + u->end;
	return c;
}

// The header of a unit; the cursor is then behind the unit. False: it is not one of code, or unreadable.
bool read_unit_header(struct reader *r, struct cursor *c, const u8 *base, struct unit *u)
{
	struct cursor inner;
	u64 length;
	u8 kind = 0;

	u->offset = c->at - base;
	length = get_length(c, &u->offset_size);
	inner = *c;
	skip_bytes(c, length);
	if (c->bad) {
		r->skipped_units++;
		return false;
	}
	inner.end = c->at;
	u->end = c->at - base;
	u->version = get_fixed(&inner, 2);
	if (u->version >= 5) {
		kind = get_fixed(&inner, 1);
		u->address_size = get_fixed(&inner, 1);
		u->abbrev_offset = get_fixed(&inner, u->offset_size);
		if (kind == UT_SKELETON || kind == UT_SPLIT_COMPILE)
			u->split_id = get_fixed(&inner, 8);
	} else {
		u->abbrev_offset = get_fixed(&inner, u->offset_size);
		u->address_size = get_fixed(&inner, 1);
	}
	u->dies = inner.at - base;
	if (inner.bad || u->version < 2 || u->version > 5 || (u->address_size != 8 && u->address_size != 4)) {
		r->skipped_units++;
		return false;
	}
	return kind != UT_TYPE && kind != UT_SPLIT_TYPE;
}

static void use_root_attribute(struct unit *u, u32 name, const struct value *v)
{
	switch (name) {
	case AT_STMT_LIST:
		u->line_offset = v->number;
		u->has_lines = u->part == P_MAIN;
		break;
	case AT_STR_OFFSETS_BASE:
		u->str_offsets_base = v->number;
		break;
	case AT_ADDR_BASE: case AT_GNU_ADDR_BASE:
		u->addr_base = v->number;
		break;
	case AT_RNGLISTS_BASE:
		u->rnglists_base = v->number;
		break;
	case AT_GNU_RANGES_BASE:
		u->ranges_base = v->number;
		break;
	case AT_GNU_DWO_ID:
		u->split_id = v->number;
		break;
	}
}

static bool add_skeleton(struct reader *r, const struct unit *u, const char *name)
{
	struct skeleton *skeleton = grow(r, &r->skeletons, sizeof(*skeleton), 1);

	if (!skeleton)
		return false;
	*skeleton = (struct skeleton){
		.id = u->split_id,
		.name = name ? intern(r, &r->names, name, strlen(name)) : NONE,
		.directory = u->comp_dir ? intern(r, &r->names, u->comp_dir, strlen(u->comp_dir)) : NONE,
		.unit = r->units.count,
	};
	r->skeletons.count++;
	r->split_units++;
	return true;
}

// What the first entry of a unit says; indices into tables wait until the tables' bases are known.
bool read_root(struct reader *r, struct unit *u)
{
	struct cursor c = unit_cursor(r, u, u->dies);
	struct value low_pc = {0}, comp_dir = {0}, split_name = {0};
	const struct attribute *attributes;
	const struct abbrev *abbrev;

	if (!load_abbrevs(r, u))
		return false;
	abbrev = find_abbrev(r, get_uleb(&c));
	if (c.bad || !abbrev)
		return false;
	attributes = (struct attribute *)r->attributes.data + abbrev->first;
	for (u32 i = 0; i < abbrev->count; i++) {
		struct value v;
		read_value(u, &c, attributes[i].form, attributes[i].constant, &v);
		if (c.bad)
			return false;
		if (attributes[i].name == AT_LOW_PC)
			low_pc = v;
		else if (attributes[i].name == AT_COMP_DIR)
			comp_dir = v;
		else if (attributes[i].name == AT_DWO_NAME || attributes[i].name == AT_GNU_DWO_NAME)
			split_name = v;
		else
			use_root_attribute(u, attributes[i].name, &v);
	}
	value_address(r, u, &low_pc, &u->low_pc);
	u->comp_dir = value_string(r, u, &comp_dir);
	if (split_name.form && u->part == P_MAIN)
		return add_skeleton(r, u, value_string(r, u, &split_name));
	return true;
}

static void find_units_in(struct reader *r, enum section_name name, enum part part)
{
	struct cursor c = cursor_at(&r->sections[name], 0);

	while (!c.bad && c.at < c.end) {
		struct unit *u = grow(r, &r->units, sizeof(*u), 1), unit = {.part = part};
		if (!u)
			return;
		if (!read_unit_header(r, &c, r->sections[name].data, &unit))
			continue;
		if (!read_root(r, &unit)) {
			r->skipped_units++;
			continue;
		}
		*u = unit;
		r->units.count++;
	}
}

static const struct unit *sorted_units;

static int by_line_offset(const void *a, const void *b)
{
	const struct unit *x = sorted_units + *(const u32 *)a, *y = sorted_units + *(const u32 *)b;

	if (x->line_offset != y->line_offset)
		return x->line_offset < y->line_offset ? -1 : 1;
	// The one that knows its directory answers for the partial units that share its line program.
	return (y->comp_dir != NULL) - (x->comp_dir != NULL);
}

// Fills `units` and `by_line`.
void find_units(struct reader *r)
{
	const struct unit *units;

	find_units_in(r, S_INFO, P_MAIN);
	find_units_in(r, S_SUP_INFO, P_SUP);
	units = r->units.data;
	for (u64 i = 0; i < r->units.count; i++) {
		u32 *index = grow(r, &r->by_line, sizeof(*index), 1);
		if (!index)
			return;
		if (units[i].has_lines) {
			*index = i;
			r->by_line.count++;
		}
	}
	sorted_units = units;
	sort(&r->by_line, sizeof(u32), by_line_offset);
}
