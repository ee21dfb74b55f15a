// Split debug information: units whose entries are in .dwo files, or in one .dwp file that was made of them.
//
// DWARF 5, sections 3.1.2, 3.1.3 and 7.3; for version 4 https://gcc.gnu.org/wiki/DebugFission. The file itself keeps a
// skeleton of each unit, with the line program and the addresses.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

static int by_id(const void *a, const void *b)
{
	const struct skeleton *x = a, *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->unit < y->unit ? -1 : x->unit > y->unit;
}

static struct unit *skeleton_of(const struct reader *r, u64 id)
{
	const struct skeleton *skeletons = r->skeletons.data;
	u64 low = 0, high = r->skeletons.count;

	while (low < high) {
		u64 middle = (low + high) / 2;
		if (skeletons[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	if (low >= r->skeletons.count || skeletons[low].id != id)
		return NULL;
	return (struct unit *)r->units.data + skeletons[low].unit;
}

// Behind the header that tables of version 5 have.
static u64 behind_header(const struct unit *u, u64 offset, u64 size)
{
	return u->version < 5 ? offset : offset + size + (u->offset_size == 8 ? 8 : 0);
}

static bool join(struct reader *r, struct unit *u, const struct contribution *c)
{
	struct unit *skeleton;

	u->abbrev_offset += c->abbrev;
	u->strings = c->strings;
	u->info = c->info;
	u->str_offsets_base = behind_header(u, c->str_offsets, 8);
	u->rnglists_base = behind_header(u, c->rnglists, 12);
	if (!read_root(r, u))
		return false;
	skeleton = skeleton_of(r, u->split_id);
	if (!skeleton || skeleton->passed_over)
		return true;
	u->low_pc = skeleton->low_pc;
	u->line_offset = skeleton->line_offset;
	u->has_lines = skeleton->has_lines;
	u->addr_base = skeleton->addr_base;
	u->ranges_base = skeleton->ranges_base;
	u->comp_dir = skeleton->comp_dir;
	skeleton->passed_over = true;
	u->passed_over = false;
	r->split_units--;
	return true;
}

static void add_contribution(struct reader *r, const struct contribution *given)
{
	struct cursor c = cursor_at(&r->sections[S_SPLIT_INFO], given->info);

	if (c.bad || given->info_size > (u64)(c.end - c.at))
		return;
	c.end = c.at + given->info_size;
	while (!c.bad && c.at < c.end) {
		struct unit *slot = grow(r, &r->units, sizeof(*slot), 1);
		// until its skeleton is found there is nothing to say what its addresses are
		struct unit unit = {.part = P_SPLIT, .passed_over = true};
		if (!slot)
			return;
		if (!read_unit_header(r, &c, r->sections[S_SPLIT_INFO].data, &unit))
			continue;
		if (!join(r, &unit, given)) {
			r->skipped_units++;
			continue;
		}
		*slot = unit;
		r->units.count++;
	}
}

// The entries of skeletons, once: `sections` from S_SPLIT_INFO on, contributions in the order of `info`. False when
// memory ran out.
bool reader_split(struct reader *r, const struct section *sections, const struct contribution *given, u64 count)
{
	u64 end = 0;

	memcpy(&r->sections[S_SPLIT_INFO], sections, (SECTIONS - S_SPLIT_INFO) * sizeof(*sections));
	for (int i = S_SPLIT_INFO; i < SECTIONS; i++)
		r->budget += 32 * r->sections[i].size;
	sort(&r->skeletons, sizeof(struct skeleton), by_id);
	for (u64 i = 0; i < count && !r->out_of_memory; i++) {
		// Overlapping ones would be read more often than there are bytes.
		if (given[i].info < end || given[i].info_size > ~(u64)0 - given[i].info)
			continue;
		end = given[i].info + given[i].info_size;
		add_contribution(r, &given[i]);
	}
	return !r->out_of_memory;
}
