// Reads call-frame information (.eh_frame, .debug_frame): which instructions of a file have which rule for finding the
// caller. Called by causal/unwind/table.py. As with the rest of DWARF, the input may be damaged or hostile.

#ifndef CAUSAL_FRAMES_H
#define CAUSAL_FRAMES_H

#include "reader.h"

// As in causal/unwind/rules.py and bpf/unwind.h.
enum rule_kind {
	K_NOTHING, K_STACK_POINTER, K_FRAME_POINTER, K_LINKAGE, K_UNKNOWN, K_SIGNAL, K_REALIGNED, K_END, K_SAVED
};

// From `pc` on (relative to the module's first page) this rule holds.
struct frame_row {
	u64 pc;
	u32 rule, pad;
};

struct function {
	u64 start, end; // relative to the module's first page
};

// What is known of a saved register.
enum saved { UNCHANGED, AT_OFFSET, AT_FRAME, ELSEWHERE, UNDEFINED };

// Registers at one address: CFA = register + offset, or an expression; saved registers relative to the CFA.
struct frame_state {
	u64 reg;
	s64 offset;
	const u8 *expression; // NULL: none
	u64 expression_size;
	s64 fp;
	u8 fp_saved, ra_saved;
};

// A common information entry: what the entries of functions have in common.
struct common {
	u64 at; // its offset
	u64 code_factor;
	s64 data_factor;
	struct frame_state state;
	u8 encoding;
	bool augmented, usable;
};

struct frames {
	const u8 *data;
	u64 size, address;
	bool is_debug;
	u64 base;
	const u64 *code;  // pairs, as of struct reader
	u64 code_count;
	const struct function *known; // of a more trustworthy section, sorted
	u64 known_count;

	struct vector commons;   // struct common, by offset
	struct vector functions; // struct function
	struct vector rows;      // struct frame_row
	u64 lost;
	bool out_of_memory;
};

struct range {
	u64 start, size;
	u64 first; // its first row
};

// rules.c: runs a program; false: it makes no sense from some point on. `to` NULL: only the state counts.
bool run_program(struct frames *f, const struct common *common, struct cursor c, struct frame_state *state,
		 const struct range *to);
u64 read_uleb(struct cursor *c);
s64 read_sleb(struct cursor *c);

#endif
