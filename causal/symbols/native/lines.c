// Line programs (DWARF 5, section 6.2; versions 2 to 5): from opcodes to sorted rows of address, file and line.

#include <stdlib.h>
#include <string.h>

#include "reader.h"

#define PATH_ROOM 8192

enum {
	LNS_COPY = 1, LNS_ADVANCE_PC, LNS_ADVANCE_LINE, LNS_SET_FILE, LNS_SET_COLUMN, LNS_NEGATE_STMT,
	LNS_SET_BASIC_BLOCK, LNS_CONST_ADD_PC, LNS_FIXED_ADVANCE_PC,
	LNE_END_SEQUENCE = 1, LNE_SET_ADDRESS, LNE_DEFINE_FILE,
	LNCT_PATH = 1, LNCT_DIRECTORY = 2,
};

static bool add_directory(struct reader *r, const char *name)
{
	const char **slot = grow(r, &r->directories, sizeof(*slot), 1);

	if (slot) {
		*slot = name;
		r->directories.count++;
	}
	return slot;
}

static bool add_file(struct reader *r, const char *name, u64 directory)
{
	struct file_entry *file = grow(r, &r->files, sizeof(*file), 1);

	if (file) {
		*file = (struct file_entry){name, directory, NONE};
		r->files.count++;
	}
	return file;
}

static const struct unit *unit_of_lines(const struct reader *r, u64 offset)
{
	const u32 *order = r->by_line.data;
	const struct unit *units = r->units.data;
	u64 low = 0, high = r->by_line.count;

	while (low < high) {
		u64 middle = (low + high) / 2;
		if (units[order[middle]].line_offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < r->by_line.count && units[order[low]].line_offset == offset ? &units[order[low]] : NULL;
}

// Versions 2 to 4: directories, then files numbered from 1.
static void read_old_tables(struct reader *r, struct cursor *c, const char *comp_dir)
{
	const char *name;

	add_directory(r, comp_dir);
	add_file(r, NULL, 0);
	while ((name = get_string(c)) && *name)
		if (!add_directory(r, name))
			return;
	while ((name = get_string(c)) && *name) {
		u64 directory = get_uleb(c);
		get_uleb(c); // time
		get_uleb(c); // length
		if (c->bad || !add_file(r, name, directory))
			return;
	}
}


// Version 5: entries of directories and files describe themselves.
static bool read_new_table(struct reader *r, const struct unit *u, struct cursor *c, bool files)
{
	u64 formats[256][2], count;
	unsigned format_count = get_fixed(c, 1);

	for (unsigned i = 0; i < format_count; i++) {
		formats[i][0] = get_uleb(c);
		formats[i][1] = get_uleb(c);
	}
	count = get_uleb(c);
	if (c->bad || (count && !format_count) || count > (u64)(c->end - c->at))
		return false;
	for (u64 i = 0; i < count && !c->bad; i++) {
		const char *name = NULL;
		u64 directory = 0;
		for (unsigned j = 0; j < format_count; j++) {
			struct value v;
			read_value(u, c, formats[j][1], 0, &v);
			if (formats[j][0] == LNCT_PATH)
				name = value_string(r, u, &v);
			else if (formats[j][0] == LNCT_DIRECTORY)
				directory = v.number;
		}
		if (!(files ? add_file(r, name, directory) : add_directory(r, name)))
			return false;
	}
	return !c->bad;
}

// Header, directories and files of the line program at `offset`; false when it cannot be used.
bool read_line_header(struct reader *r, u64 offset, struct line_header *h)
{
	struct cursor c = cursor_at(&r->sections[S_LINE], offset);
	const struct unit *unit = unit_of_lines(r, offset);
	struct unit plain = {0};
	u64 length, header_length;
	u8 operations = 1;

	r->directories.count = r->files.count = 0;
	memset(h, 0, sizeof(*h));
	length = get_length(&c, &h->offset_size);
	if (c.bad || length > (u64)(c.end - c.at))
		return false;
	c.end = c.at + length;
	h->version = get_fixed(&c, 2);
	h->address_size = 8;
	if (h->version < 2 || h->version > 5)
		return false;
	if (h->version == 5) {
		h->address_size = get_fixed(&c, 1);
		get_fixed(&c, 1); // segment selectors: none on any machine of today
	}
	header_length = get_fixed(&c, h->offset_size);
	if (c.bad || header_length > (u64)(c.end - c.at))
		return false;
	h->program = (struct cursor){c.at + header_length, c.end, false};
	h->min_instruction = get_fixed(&c, 1);
	if (h->version >= 4)
		operations = get_fixed(&c, 1);
	h->default_statement = get_fixed(&c, 1);
	h->line_base = (signed char)get_fixed(&c, 1);
	h->line_range = get_fixed(&c, 1);
	h->opcode_base = get_fixed(&c, 1);
	for (int i = 1; i < h->opcode_base; i++)
		h->lengths[i] = get_fixed(&c, 1);
	if (c.bad || c.at > h->program.at || operations > 1 || !h->line_range || !h->opcode_base)
		return false;
	c.end = h->program.at;
	h->comp_dir = unit ? unit->comp_dir : NULL;
	plain.version = h->version;
	plain.offset_size = h->offset_size;
	plain.address_size = h->address_size;
	if (unit)
		plain.str_offsets_base = unit->str_offsets_base;
	if (h->version < 5) {
		read_old_tables(r, &c, h->comp_dir);
		return !c.bad && !r->out_of_memory;
	}
	return read_new_table(r, &plain, &c, false) && read_new_table(r, &plain, &c, true);
}

static bool append(char *path, size_t *length, const char *part)
{
	size_t more = strlen(part);

	if (*length + more + 2 > PATH_ROOM)
		return false;
	if (*length && path[*length - 1] != '/')
		path[(*length)++] = '/';
	memcpy(path + *length, part, more);
	*length += more;
	return true;
}

// The number of the path of a file of this line program; NONE when it has none.
u32 file_id(struct reader *r, const struct line_header *h, u64 index)
{
	const char **directories = r->directories.data, *directory = NULL;
	struct file_entry *file;
	char path[PATH_ROOM];
	size_t length = 0;

	if (index >= r->files.count)
		return NONE;
	file = (struct file_entry *)r->files.data + index;
	if (!file->name)
		return NONE;
	if (file->id != NONE)
		return file->id;
	if (file->directory < r->directories.count)
		directory = directories[file->directory];
	if (file->name[0] != '/') {
		if ((!directory || directory[0] != '/') && h->comp_dir && !append(path, &length, h->comp_dir))
			return NONE;
		// version 5 lists the directory of the compilation among the others
		if (directory && (directory[0] == '/' || directory != h->comp_dir) &&
		    !append(path, &length, directory))
			return NONE;
	}
	if (!append(path, &length, file->name))
		return NONE;
	file->id = intern(r, &r->paths, path, length);
	return file->id;
}

struct machine {
	u64 address, file, start, last;
	s64 line;
	u64 first_row; // of the sequence
	u64 known_file; // whose id is `id`
	u32 id;
	bool open, backwards;
};

static void restart(struct reader *r, struct machine *m)
{
	r->raw_rows.count = m->first_row;
	*m = (struct machine){.file = 1, .line = 1, .first_row = m->first_row, .known_file = ~(u64)0};
}

static bool emit(struct reader *r, const struct line_header *h, struct machine *m)
{
	struct row *row = grow(r, &r->raw_rows, sizeof(*row), 1), *before;
	bool first = r->raw_rows.count == m->first_row;

	if (!row)
		return false;
	before = first ? row : row - 1;
	if (!m->open) {
		m->open = true;
		m->start = m->last = m->address;
	}
	if (m->address < m->last)
		m->backwards = true;
	m->last = m->address;
	if (m->known_file != m->file) {
		m->known_file = m->file;
		m->id = file_id(r, h, m->file);
	}
	*row = (struct row){m->address, m->id, m->line};
	if (m->line <= 0 || m->line > 0x7fffffff || m->id == NONE)
		row->file = row->line = 0;
	else
		row->file++; // 0 is no file
	// Of several rows at one address the last counts.
	if (!first && before->address == row->address) {
		*before = *row;
		if (r->raw_rows.count - 1 > m->first_row && before[-1].file == row->file && before[-1].line == row->line)
			r->raw_rows.count--;
		return true;
	}
	if (first || before->file != row->file || before->line != row->line)
		r->raw_rows.count++;
	return true;
}

static bool end_sequence(struct reader *r, struct machine *m)
{
	struct sequence *s;
	u64 count = r->raw_rows.count - m->first_row;

	if (count && !m->backwards && m->address >= m->last && in_code(r, m->start, m->address)) {
		s = grow(r, &r->sequences, sizeof(*s), 1);
		if (!s)
			return false;
		*s = (struct sequence){m->start, m->address, m->first_row, count};
		r->sequences.count++;
		m->first_row = r->raw_rows.count;
	}
	restart(r, m);
	return true;
}

static bool extended(struct reader *r, const struct line_header *h, struct machine *m, struct cursor *c)
{
	u64 length = get_uleb(c);
	struct cursor inner = *c;
	(void)h;

	skip_bytes(c, length);
	if (c->bad || !length)
		return !c->bad;
	inner.end = c->at;
	switch (get_fixed(&inner, 1)) {
	case LNE_END_SEQUENCE:
		return end_sequence(r, m);
	case LNE_SET_ADDRESS:
		m->address = get_fixed(&inner, length - 1 >= 8 ? 8 : 4);
		break;
	case LNE_DEFINE_FILE: {
		const char *name = get_string(&inner);
		add_file(r, name, get_uleb(&inner));
		break;
	}
	}
	return !inner.bad;
}

static bool standard(const struct line_header *h, struct machine *m, struct cursor *c, u8 opcode)
{
	switch (opcode) {
	case LNS_ADVANCE_PC:
		m->address += get_uleb(c) * h->min_instruction;
		break;
	case LNS_ADVANCE_LINE:
		m->line = (s64)((u64)m->line + (u64)get_sleb(c));
		break;
	case LNS_SET_FILE:
		m->file = get_uleb(c);
		break;
	case LNS_CONST_ADD_PC:
		m->address += (u64)((255 - h->opcode_base) / h->line_range) * h->min_instruction;
		break;
	case LNS_FIXED_ADVANCE_PC:
		m->address += get_fixed(c, 2);
		break;
	default:
		for (int i = 0; i < h->lengths[opcode]; i++)
			get_uleb(c);
	}
	return !c->bad;
}

static bool run_program(struct reader *r, const struct line_header *h)
{
	struct cursor c = h->program;
	struct machine m = {.first_row = r->raw_rows.count};

	restart(r, &m);
	while (c.at < c.end) {
		u8 opcode = *c.at++;
		bool fine;
		if (opcode >= h->opcode_base) {
			u8 special = opcode - h->opcode_base;
			m.address += (u64)(special / h->line_range) * h->min_instruction;
			m.line = (s64)((u64)m.line + (u64)(s64)(h->line_base + special % h->line_range));
			fine = emit(r, h, &m);
		} else if (opcode == 0) {
			fine = extended(r, h, &m, &c);
		} else if (opcode == LNS_COPY) {
			fine = emit(r, h, &m);
		} else {
			fine = standard(h, &m, &c, opcode);
		}
		if (!fine) {
			restart(r, &m);
			return false;
		}
	}
	restart(r, &m);
	return true;
}

static int by_start(const void *a, const void *b)
{
	const struct sequence *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	if (x->end != y->end)
		return x->end > y->end ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

static bool push_row(struct reader *r, u64 address, u32 file, u32 line)
{
	struct row *row = grow(r, &r->rows, sizeof(*row), 1);

	if (!row)
		return false;
	if (r->rows.count && row[-1].file == file && row[-1].line == line)
		return true;
	*row = (struct row){address, file, line};
	r->rows.count++;
	return true;
}

// All sequences behind each other; where two claim the same code (it should not happen) the earlier one keeps it.
static void merge_sequences(struct reader *r)
{
	const struct sequence *sequences = r->sequences.data;
	const struct row *raw = r->raw_rows.data;
	u64 end = 0;

	sort(&r->sequences, sizeof(struct sequence), by_start);
	if (!grow(r, &r->rows, sizeof(struct row), r->raw_rows.count + r->sequences.count + 1))
		return;
	for (u64 i = 0; i < r->sequences.count; i++) {
		const struct sequence *s = &sequences[i];
		if (s->end <= end)
			continue;
		if (s->start > end)
			push_row(r, end, 0, 0);
		for (u64 j = 0; j < s->count; j++) {
			const struct row *row = &raw[s->first + j];
			u64 next = j + 1 < s->count ? row[1].address : s->end;
			if (next > end && next > row->address)
				push_row(r, row->address > end ? row->address : end, row->file, row->line);
		}
		end = s->end;
	}
	push_row(r, end, 0, 0);
}

// Decode all line programs into `rows`. False when memory ran out.
bool reader_lines(struct reader *r)
{
	struct cursor c = cursor_at(&r->sections[S_LINE], 0);
	struct line_header h;

	while (!c.bad && c.at < c.end) {
		u64 offset = c.at - r->sections[S_LINE].data;
		u8 offset_size;
		u64 length = get_length(&c, &offset_size);
		skip_bytes(&c, length);
		if (c.bad) {
			r->skipped_lines++;
			break;
		}
		if (!read_line_header(r, offset, &h) || !run_program(r, &h))
			r->skipped_lines++;
		if (r->out_of_memory)
			return false;
	}
	merge_sequences(r);
	return !r->out_of_memory;
}
