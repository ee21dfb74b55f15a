// Runs the little programs of call-frame information (DWARF 5, section 6.4): address by address, where the caller's
// registers are. Only the stack pointer, frame pointer and return address count here.

#include <stdlib.h>
#include <string.h>

#include "frames.h"

// DWARF's numbers of the x86-64 registers (System V ABI, figure 3.36).
#define FP 6
#define SP 7
#define RA 16

#define OP_DEREF 0x06
#define OP_PLUS 0x23
#define OP_LIT0 0x30
#define OP_BREG_FP (0x70 + FP)
#define OP_BREG_SP (0x70 + SP)
#define SAVED_SP 160 // of struct ucontext on the stack, from where the signal handler's return address was

// States that are remembered within each other. Compilers need one or two.
#define MOST_REMEMBERED 64
// The kernel's tables have fewer.
#define MOST_ROWS (1u << 24)
#define REACH ((u64)1 << 32)

// get_uleb takes any length; here what has no meaning is to be noticed.
u64 read_uleb(struct cursor *c)
{
	const u8 *start = c->at;
	u64 value;

	if (c->at < c->end && !c->bad && *c->at < 0x80)
		return *c->at++;
	value = get_uleb(c);
	if (c->at - start > 10)
		c->bad = true;
	return value;
}

s64 read_sleb(struct cursor *c)
{
	const u8 *start = c->at;
	s64 value = get_sleb(c);

	if (c->at - start > 10)
		c->bad = true;
	return value;
}

// What does not fit becomes something that no rule can say.
static s64 scaled(u64 value, s64 factor)
{
	s64 result;

	if ((s64)value < 0 || __builtin_mul_overflow((s64)value, factor, &result))
		return 1;
	return result;
}

static s64 scaled_signed(s64 value, s64 factor)
{
	s64 result;

	return __builtin_mul_overflow(value, factor, &result) ? 1 : result;
}

static u32 packed(enum rule_kind kind, s64 cfa, s64 fp)
{
	if (cfa & 7 || fp & 7 || cfa < -8 * 0x8000 || cfa > 8 * 0x7fff || fp < -8 * 0x7f || fp > 0)
		return K_UNKNOWN;
	return kind | (u32)(fp / 8 & 0xff) << 8 | (u32)(cfa / 8 & 0xffff) << 16;
}

static u32 linkage_rule(const struct frame_state *s)
{
	// The stack pointer + 8, and 8 more from some byte of an entry of 16 on: compare the program counter & 15.
	static const u8 head[] = {0x77, 8, 0x80, 0, 0x3f, 0x1a}, tail[] = {0x2a, 0x33, 0x24, 0x22};
	const u8 *e = s->expression;

	if (s->expression_size != 11 || memcmp(e, head, 6) || memcmp(e + 7, tail, 4) || s->fp_saved != UNCHANGED)
		return K_UNKNOWN;
	return e[6] >= OP_LIT0 && e[6] <= OP_LIT0 + 15 ? K_LINKAGE | (u32)(e[6] - OP_LIT0) << 16 : K_UNKNOWN;
}

static u32 expression_rule(const struct frame_state *s)
{
	struct cursor c = {s->expression, s->expression + s->expression_size, false};
	u64 op = get_fixed(&c, 1), left;
	s64 offset = read_sleb(&c);

	if ((op != OP_BREG_SP && op != OP_BREG_FP) || get_fixed(&c, 1) != OP_DEREF || c.bad)
		return linkage_rule(s);
	left = c.end - c.at;
	if (!left && op == OP_BREG_SP && offset == SAVED_SP)
		return K_SIGNAL;
	if (!left && op == OP_BREG_FP && s->ra_saved == AT_OFFSET && s->fp_saved == AT_FRAME)
		return packed(K_REALIGNED, offset, 0);
	// Assembler that keeps its caller's stack pointer on the stack: the word before the return address.
	if (left == 2 && c.at[0] == OP_PLUS && c.at[1] == 8 && op == OP_BREG_SP && s->ra_saved == AT_OFFSET &&
	    s->fp_saved <= AT_OFFSET)
		return packed(K_SAVED, offset, s->fp_saved == AT_OFFSET ? s->fp : 0);
	return K_UNKNOWN;
}

static u32 rule_of(const struct frame_state *s)
{
	if (s->ra_saved == UNDEFINED)
		return K_END;
	if (s->expression)
		return expression_rule(s);
	if (s->ra_saved != AT_OFFSET || s->fp_saved > AT_OFFSET || (s->reg != SP && s->reg != FP))
		return K_UNKNOWN;
	return packed(s->reg == SP ? K_STACK_POINTER : K_FRAME_POINTER, s->offset, s->fp_saved == AT_OFFSET ? s->fp : 0);
}

static struct frame_row *new_row(struct frames *f)
{
	struct vector *v = &f->rows;

	if (v->count == v->room) {
		u64 room = v->room ? v->room * 2 : 4096;
		void *data = v->count >= MOST_ROWS ? NULL : realloc(v->data, room * sizeof(struct frame_row));
		if (!data) {
			f->out_of_memory = true;
			return NULL;
		}
		v->data = data;
		v->room = room;
	}
	return (struct frame_row *)v->data + v->count++;
}

static void emit(struct frames *f, const struct range *to, u64 offset, u32 rule)
{
	struct frame_row *last, *row;

	if (!to || offset >= to->size || to->start + offset >= REACH)
		return;
	if (f->rows.count > to->first) {
		last = (struct frame_row *)f->rows.data + f->rows.count - 1;
		if (last->pc == to->start + offset) {
			last->rule = rule;
			return;
		}
		if (last->rule == rule)
			return;
	}
	row = new_row(f);
	if (row)
		*row = (struct frame_row){to->start + offset, rule, 0};
}

static void keep(struct frame_state *s, u64 reg, s64 offset)
{
	if (reg == FP) {
		s->fp = offset;
		s->fp_saved = AT_OFFSET;
	} else if (reg == RA) {
		s->ra_saved = offset == -8 ? AT_OFFSET : ELSEWHERE;
	}
}

static void lose(struct frame_state *s, u64 reg, enum saved how)
{
	if (reg == FP) {
		s->fp = 0;
		s->fp_saved = how;
	} else if (reg == RA) {
		s->ra_saved = how;
	}
}

static void restore(struct frame_state *s, u64 reg, const struct frame_state *initial)
{
	if (reg == FP) {
		s->fp = initial->fp;
		s->fp_saved = initial->fp_saved;
	} else if (reg == RA) {
		s->ra_saved = initial->ra_saved;
	}
}

static void skip_block(struct cursor *c, const u8 **block, u64 *size)
{
	*size = read_uleb(c);
	*block = c->at;
	skip_bytes(c, *size);
}

// Instructions about the CFA; false: it is another one.
static bool define_cfa(u8 op, struct cursor *c, struct frame_state *s, s64 factor)
{
	switch (op) {
	case 0x0c: // DW_CFA_def_cfa
		s->reg = read_uleb(c);
		s->offset = scaled(read_uleb(c), 1);
		s->expression = NULL;
		return true;
	case 0x12: // DW_CFA_def_cfa_sf
		s->reg = read_uleb(c);
		s->offset = scaled_signed(read_sleb(c), factor);
		s->expression = NULL;
		return true;
	case 0x0d: // DW_CFA_def_cfa_register
		s->reg = read_uleb(c);
		s->expression = NULL;
		return true;
	case 0x0e: // DW_CFA_def_cfa_offset
		s->offset = scaled(read_uleb(c), 1);
		return true;
	case 0x13: // DW_CFA_def_cfa_offset_sf
		s->offset = scaled_signed(read_sleb(c), factor);
		return true;
	case 0x0f: // DW_CFA_def_cfa_expression
		skip_block(c, &s->expression, &s->expression_size);
		return true;
	}
	return false;
}

// Instructions about one saved register; false: unknown.
static bool define_register(u8 op, struct cursor *c, struct frame_state *s, const struct common *common)
{
	static const u8 at_frame[] = {OP_BREG_FP, 0};
	u64 reg = read_uleb(c), size;
	const u8 *block;

	switch (op) {
	case 0x06: // DW_CFA_restore_extended
		restore(s, reg, &common->state);
		return true;
	case 0x07: // DW_CFA_undefined
		lose(s, reg, UNDEFINED);
		return true;
	case 0x08: // DW_CFA_same_value
		lose(s, reg, reg == FP ? UNCHANGED : ELSEWHERE);
		return true;
	case 0x05: // DW_CFA_offset_extended
		keep(s, reg, scaled(read_uleb(c), common->data_factor));
		return true;
	case 0x11: // DW_CFA_offset_extended_sf
		keep(s, reg, scaled_signed(read_sleb(c), common->data_factor));
		return true;
	case 0x2f: // DW_CFA_GNU_negative_offset_extended
		keep(s, reg, scaled_signed(scaled(read_uleb(c), common->data_factor), -1));
		return true;
	case 0x09: case 0x14: // DW_CFA_register, val_offset
		read_uleb(c);
		lose(s, reg, ELSEWHERE);
		return true;
	case 0x15: // DW_CFA_val_offset_sf
		read_sleb(c);
		lose(s, reg, ELSEWHERE);
		return true;
	case 0x10: case 0x16: // DW_CFA_expression, val_expression
		skip_block(c, &block, &size);
		if (c->bad)
			return false;
		lose(s, reg, op == 0x10 && reg == FP && size == 2 && !memcmp(block, at_frame, 2) ? AT_FRAME : ELSEWHERE);
		return true;
	}
	return false;
}

bool run_program(struct frames *f, const struct common *common, struct cursor c, struct frame_state *state,
		 const struct range *to)
{
	struct frame_state remembered[MOST_REMEMBERED];
	u64 location = 0, step;
	int depth = 0;
	bool sound = true;

	while (sound && c.at < c.end) {
		u8 op = *c.at++, low = op & 0x3f;

		step = 0;
		switch (op & 0xc0) {
		case 0x40: // DW_CFA_advance_loc
			step = low;
			break;
		case 0x80: // DW_CFA_offset
			keep(state, low, scaled(read_uleb(&c), common->data_factor));
			break;
		case 0xc0: // DW_CFA_restore
			restore(state, low, &common->state);
			break;
		default:
			if (op >= 2 && op <= 4) { // DW_CFA_advance_loc1, 2, 4
				step = get_fixed(&c, 1 << (op - 2));
			} else if (op == 0x0a) { // DW_CFA_remember_state
				sound = depth < MOST_REMEMBERED;
				if (sound)
					remembered[depth++] = *state;
			} else if (op == 0x0b) { // DW_CFA_restore_state
				sound = depth > 0;
				if (sound)
					*state = remembered[--depth];
			} else if (op == 0x2e) { // DW_CFA_GNU_args_size
				read_uleb(&c);
			} else if (op && op != 0x2d && !define_cfa(op, &c, state, common->data_factor)) {
				// 0x2d: DW_CFA_GNU_window_save, and the state of pointer authentication on aarch64
				sound = define_register(op, &c, state, common);
			}
		}
		if (c.bad || !sound)
			break;
		if (step) {
			emit(f, to, location, rule_of(state));
			if (__builtin_mul_overflow(step, common->code_factor, &step) ||
			    __builtin_add_overflow(location, step, &location))
				location = REACH;
			if (location > REACH)
				location = REACH;
		}
	}
	sound = sound && !c.bad;
	emit(f, to, location, sound ? rule_of(state) : K_NOTHING);
	return sound;
}
