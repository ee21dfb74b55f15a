// What Python calls: make a reader, ask it, take its arrays, free it.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

struct reader *reader_new(const struct section *sections, const u64 *code, u64 code_count)
{
	struct reader *r = calloc(1, sizeof(*r));
	u64 total = 0;

	if (!r)
		return NULL;
	memcpy(r->sections, sections, S_SPLIT_INFO * sizeof(*sections));
	for (int i = 0; i < S_SPLIT_INFO; i++)
		total += sections[i].size;
	r->code = code;
	r->code_count = code_count;
	// Compilers share tables between units, but not many times over.
	r->budget = 32 * total + 1000000;
	find_units(r);
	return r;
}

const void *reader_array(const struct reader *r, int which, u64 *count)
{
	const struct vector *arrays[] = {
		&r->rows, &r->instances, &r->pieces,
		&r->paths.text, &r->paths.offsets, &r->names.text, &r->names.offsets, &r->skeletons,
	};

	*count = arrays[which]->count;
	return arrays[which]->data;
}

void reader_losses(const struct reader *r, u64 *losses)
{
	const struct unit *units = r->units.data;

	losses[0] = r->skipped_lines;
	losses[1] = r->skipped_units;
	losses[2] = r->split_units;
	losses[3] = 0;
	for (u64 i = 0; i < r->units.count; i++)
		losses[3] += units[i].part != P_SPLIT;
}

static void drop(struct vector *v)
{
	free(v->data);
	*v = (struct vector){0};
}

// Frees what only the decoding of lines needed.
void reader_trim(struct reader *r)
{
	drop(&r->raw_rows);
	drop(&r->sequences);
}

void reader_free(struct reader *r)
{
	struct vector *all[] = {
		&r->units, &r->by_line, &r->skeletons, &r->rows, &r->instances, &r->pieces, &r->raw_rows, &r->sequences,
		&r->directories, &r->files, &r->ranges, &r->abbrevs, &r->attributes, &r->scopes,
		&r->paths.text, &r->paths.offsets, &r->names.text, &r->names.offsets,
	};

	if (!r)
		return;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		drop(all[i]);
	free(r->paths.slots);
	free(r->names.slots);
	free(r);
}
