// Reads DWARF: what the line programs and the inlined calls of a file say about its code.
//
// Called by causal/symbols/native.py. Everything that is read may be damaged or hostile: each access goes through a
// cursor that cannot leave its section, each loop consumes input or a budget, and a unit that makes no sense is
// counted and left out.

#ifndef CAUSAL_READER_H
#define CAUSAL_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#define NONE 0xffffffffu

// In the order of native.py.
enum section_name {
	S_INFO, S_ABBREV, S_LINE, S_STR, S_LINE_STR, S_STR_OFFSETS, S_ADDR, S_RANGES, S_RNGLISTS,
	S_SUP_INFO, S_SUP_ABBREV, S_SUP_STR, // of the alternate file that dwz makes
	// of .dwo files or a .dwp file; those there are from the beginning end here
	S_SPLIT_INFO, S_SPLIT_ABBREV, S_SPLIT_STR, S_SPLIT_STR_OFFSETS, S_SPLIT_RNGLISTS,
	SECTIONS
};

struct section {
	const u8 *data;
	u64 size;
};

// Where a unit is: in the file itself, in its alternate file, in a file of split debug information.
enum part { P_MAIN, P_SUP, P_SPLIT };

struct cursor {
	const u8 *at, *end;
	bool bad;
};

struct vector {
	void *data;
	u64 count, room;
};

struct abbrev {
	u64 code;
	u32 first, count; // its attributes
	u32 fixed_size;   // of all attributes, NONE: it varies
	u16 tag;
	bool children;
};

struct attribute {
	u32 name, form;
	s64 constant;
};

struct unit {
	u64 offset, end;    // in its section
	u64 dies;           // where its entries begin
	u64 abbrev_offset;
	u64 low_pc, line_offset;
	u64 str_offsets_base, addr_base, rnglists_base, ranges_base;
	u64 strings;        // where those of its own file begin among the split ones
	u64 info;           // where its file begins among the split ones
	u64 split_id;       // which skeleton belongs to which unit of another file
	const char *comp_dir;
	u8 version, address_size, offset_size, part;
	bool has_lines;
	bool passed_over;   // its functions: a skeleton whose entries were found, entries whose skeleton was not
};

// For Python: a skeleton's entries are in the file `name`, from `directory`; strings by number, or NONE.
struct skeleton {
	u64 id;
	u32 name, directory, unit, pad;
};

// From Python: one .dwo file among the split sections, or what a .dwp file took from one.
struct contribution {
	u64 info, info_size, abbrev, strings, str_offsets, rnglists;
};

// One entry of the line table: from here on it is this line of this file. File 0 with line 0: no line.
struct row {
	u64 address;
	u32 file, line;
};

struct sequence {
	u64 start, end;
	u64 first, count; // its rows
};

// A function (parent NONE) or a call of one that was inlined into its parent.
struct instance {
	u64 die; // the entry with its name; the part in the two highest bits
	u32 parent;
	u32 call_file, call_line;
	u32 pad;
};

struct inline_range {
	u64 start, end;
	u32 instance, depth;
};

// From here on the code is part of this instance.
struct piece {
	u64 address;
	u32 instance, pad;
};

struct file_entry {
	const char *name;
	u64 directory;
	u32 id; // when asked for, else NONE
};

struct line_header {
	u8 version, offset_size, address_size;
	u8 min_instruction, default_statement, line_range, opcode_base;
	int line_base;
	u8 lengths[256];
	struct cursor program;
	const char *comp_dir;
};

struct interner {
	struct vector text;    // all strings, each with its NUL
	struct vector offsets; // u64 per string
	u32 *slots;
	u64 slot_count;
};

struct reader {
	struct section sections[SECTIONS];
	const u64 *code; // pairs: first address of a piece of code, and the one behind it; sorted
	u64 code_count;

	struct vector units;       // struct unit, by part
	struct vector by_line;     // u32 indices of units, by line_offset
	struct vector skeletons;   // struct skeleton
	struct vector rows;        // struct row
	struct vector instances;   // struct instance
	struct vector pieces;      // struct piece
	struct interner paths, names;

	// scratch
	struct vector raw_rows, sequences, directories, files, ranges, abbrevs, attributes, scopes;
	u64 abbrev_offset;
	bool abbrev_valid;
	u8 abbrev_part, abbrev_shape;

	u64 skipped_lines;   // line programs left out, wholly or from some point on
	u64 skipped_units;   // units whose entries could not be read to the end
	u64 split_units;     // whose entries are in another file (.dwo) that was not found
	u64 budget;          // of repeated work
	bool out_of_memory;
};

// basics.c
u64 get_fixed(struct cursor *c, int size);
u64 get_uleb(struct cursor *c);
s64 get_sleb(struct cursor *c);
void skip_bytes(struct cursor *c, u64 count);
const char *get_string(struct cursor *c);
u64 get_length(struct cursor *c, u8 *offset_size);
struct cursor cursor_at(const struct section *s, u64 offset);
const char *string_at(const struct section *s, u64 offset);
bool in_code(const struct reader *r, u64 start, u64 end);
bool spend(struct reader *r, u64 work);
void *grow(struct reader *r, struct vector *v, size_t item, u64 more);
void sort(struct vector *v, size_t item, int (*compare)(const void *, const void *));
u32 intern(struct reader *r, struct interner *in, const char *text, size_t length);

// entries.c
struct value {
	u32 form;
	u64 number;
	const char *text; // of an inline string
};
void read_value(const struct unit *u, struct cursor *c, u32 form, s64 constant, struct value *v);
const char *value_string(const struct reader *r, const struct unit *u, const struct value *v);
bool value_address(const struct reader *r, const struct unit *u, const struct value *v, u64 *address);
bool load_abbrevs(struct reader *r, const struct unit *u);
const struct abbrev *find_abbrev(const struct reader *r, u64 code);
const struct section *info_of(const struct reader *r, const struct unit *u);
struct cursor unit_cursor(const struct reader *r, const struct unit *u, u64 offset);
bool read_unit_header(struct reader *r, struct cursor *c, const u8 *base, struct unit *u);
bool read_root(struct reader *r, struct unit *u);
void find_units(struct reader *r);

// lines.c
bool read_line_header(struct reader *r, u64 offset, struct line_header *h);
u32 file_id(struct reader *r, const struct line_header *h, u64 index);

#endif
