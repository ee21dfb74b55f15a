"""Runs the little programs of call-frame information (DWARF 5, section 6.4): address by address, where the caller's
registers are. Only the stack pointer, frame pointer and return address count here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from causal.unwind.rules import Kind, pack

# DWARF's numbers of the x86-64 registers (System V ABI, figure 3.36).
_FP, _SP, _RA = 6, 7, 16

# What is known of a saved register.
_UNCHANGED, _AT_OFFSET, _AT_FRAME, _ELSEWHERE, _UNDEFINED = range(5)

# DW_OP_breg6 and DW_OP_breg7: frame pointer and stack pointer plus a signed number; DW_OP_deref.
_OP_FP, _OP_SP, _OP_DEREF = 0x76, 0x77, 0x06
# After the stack pointer + 8 and the program counter + 0: lit15 and, compare with a literal, 8 bytes more if not below.
_LINKAGE_HEAD, _LINKAGE_TAIL = b"\x77\x08\x80\x00\x3f\x1a", b"\x2a\x33\x24\x22"
_LIT0 = 0x30
_SAVED_SP = 160  # of struct ucontext on the stack, from where the signal handler's return address was


class BadProgram(Exception):
    """The bytes make no sense."""


class State(NamedTuple):
    """Registers at one address: CFA = register + offset, or an expression; saved registers relative to the CFA."""

    register: int = _SP
    offset: int = 8
    expression: bytes | None = None
    fp: int = 0
    fp_known: int = _UNCHANGED
    ra: int = _UNCHANGED

    def rule(self) -> int:
        """The word of the table."""
        if self.ra == _UNDEFINED:
            return int(Kind.END)
        if self.expression is not None:
            return _expression_rule(self)
        if self.ra != _AT_OFFSET or self.fp_known > _AT_OFFSET:
            return int(Kind.UNKNOWN)
        fp = self.fp if self.fp_known == _AT_OFFSET else 0
        if self.register == _SP:
            return pack(Kind.STACK_POINTER, self.offset, fp)
        return pack(Kind.FRAME_POINTER, self.offset, fp) if self.register == _FP else int(Kind.UNKNOWN)


def _expression_rule(state: State) -> int:
    expression = state.expression or b""
    if len(expression) == 11 and expression.startswith(_LINKAGE_HEAD) and expression.endswith(_LINKAGE_TAIL):
        if 0 <= expression[6] - _LIT0 <= 15 and state.fp_known == _UNCHANGED:
            return int(Kind.LINKAGE) | (expression[6] - _LIT0) << 16
    elif len(expression) > 2 and expression[-1] == _OP_DEREF:
        offset, end = read_signed(expression, 1)
        if end == len(expression) - 1:
            if expression[0] == _OP_SP and offset == _SAVED_SP:
                return int(Kind.SIGNAL)
            if expression[0] == _OP_FP and state.ra == _AT_OFFSET and state.fp_known == _AT_FRAME:
                return pack(Kind.REALIGNED, offset)
    return int(Kind.UNKNOWN)


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """(ULEB128 number, where it ends). Raises BadProgram beyond 64 bits, IndexError at the end of the data."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = 0, 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise BadProgram("a number of more than 64 bits")


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    """(SLEB128 number, where it ends); raises as read_unsigned."""
    value, end = read_unsigned(data, at)
    sign = 1 << (7 * (end - at) - 1)
    return (value ^ sign) - sign, end


class Program:
    """Runs one program. `emit(location, rule)` is called for each address from which on a rule holds.

    `initial` is the state of DW_CFA_restore. After BadProgram or IndexError, what was emitted holds below `location`.
    """

    def __init__(self, code_factor: int, data_factor: int, initial: State, emit: Callable[[int, int], None]) -> None:
        self._code_factor, self._data_factor = code_factor, data_factor
        self._initial, self._emit = initial, emit
        self._stack: list[State] = []
        self.state = initial
        self.location = 0

    def run(self, code: bytes, at: int, end: int) -> State:
        """Runs the instructions from `at` to `end`; returns the state after them."""
        emit, data_factor = self._emit, self._data_factor
        while at < end:
            byte = code[at]
            at += 1
            high, low = byte & 0xC0, byte & 0x3F
            if high == 0x40:  # DW_CFA_advance_loc
                emit(self.location, self.state.rule())
                self.location += low * self._code_factor
            elif high == 0x80:  # DW_CFA_offset
                value, at = read_unsigned(code, at)
                if low in (_FP, _RA):
                    self._saved(low, value * data_factor)
            elif high == 0xC0:
                self._restored(low)
            elif byte == 0x0E:  # DW_CFA_def_cfa_offset
                value, at = read_unsigned(code, at)
                self.state = self.state._replace(offset=value)
            elif 2 <= byte <= 4:  # DW_CFA_advance_loc1, 2, 4
                emit(self.location, self.state.rule())
                size = 1 << byte - 2
                self.location += int.from_bytes(code[at : at + size], "little") * self._code_factor
                at += size
            elif byte:
                at = self._other(byte, code, at)
        emit(self.location, self.state.rule())
        return self.state

    def _other(self, byte: int, code: bytes, at: int) -> int:
        if byte == 0x0A:  # DW_CFA_remember_state
            self._stack.append(self.state)
            return at
        if byte == 0x0B:  # DW_CFA_restore_state
            if not self._stack:
                raise BadProgram("a state is restored that was not remembered")
            self.state = self._stack.pop()
            return at
        if byte in (0x0C, 0x0D, 0x12, 0x13, 0x0F):
            return self._define_cfa(byte, code, at)
        if byte == 0x2E:  # DW_CFA_GNU_args_size
            return read_unsigned(code, at)[1]
        if byte == 0x2D:  # DW_CFA_GNU_window_save, and the state of pointer authentication on aarch64
            return at
        return self._register_rule(byte, code, at)

    def _define_cfa(self, byte: int, code: bytes, at: int) -> int:
        if byte == 0x0F:  # DW_CFA_def_cfa_expression
            size, at = read_unsigned(code, at)
            if at + size > len(code):
                raise BadProgram("an expression beyond the end")
            self.state = self.state._replace(expression=code[at : at + size])
            return at + size
        if byte == 0x13:  # DW_CFA_def_cfa_offset_sf
            value, at = read_signed(code, at)
            self.state = self.state._replace(offset=value * self._data_factor)
            return at
        register, at = read_unsigned(code, at)
        if byte == 0x0D:  # DW_CFA_def_cfa_register
            self.state = self.state._replace(register=register, expression=None)
        elif byte == 0x0C:  # DW_CFA_def_cfa
            value, at = read_unsigned(code, at)
            self.state = self.state._replace(register=register, offset=value, expression=None)
        else:  # DW_CFA_def_cfa_sf
            value, at = read_signed(code, at)
            self.state = self.state._replace(register=register, offset=value * self._data_factor, expression=None)
        return at

    def _register_rule(self, byte: int, code: bytes, at: int) -> int:
        register, at = read_unsigned(code, at)
        if byte == 0x06:  # DW_CFA_restore_extended
            self._restored(register)
        elif byte == 0x07:  # DW_CFA_undefined
            self._lost(register, _UNDEFINED)
        elif byte == 0x08:  # DW_CFA_same_value
            if register == _FP:
                self.state = self.state._replace(fp=0, fp_known=_UNCHANGED)
            elif register == _RA:
                self._lost(register, _ELSEWHERE)
        elif byte in (0x05, 0x11, 0x2F):  # DW_CFA_offset_extended, _sf, GNU_negative_offset_extended
            value, at = (read_signed if byte == 0x11 else read_unsigned)(code, at)
            self._saved(register, value * self._data_factor * (-1 if byte == 0x2F else 1))
        elif byte in (0x09, 0x14, 0x15):  # DW_CFA_register, val_offset, val_offset_sf
            at = (read_signed if byte == 0x15 else read_unsigned)(code, at)[1]
            self._lost(register, _ELSEWHERE)
        elif byte in (0x10, 0x16):  # DW_CFA_expression, val_expression
            size, at = read_unsigned(code, at)
            at_frame = register == _FP and byte == 0x10 and code[at : at + size] == bytes((_OP_FP, 0))
            self._lost(register, _AT_FRAME if at_frame else _ELSEWHERE)
            at += size
        else:
            raise BadProgram(f"unknown instruction {byte:#x}")
        return at

    def _saved(self, register: int, offset: int) -> None:
        if register == _FP:
            self.state = self.state._replace(fp=offset, fp_known=_AT_OFFSET)
        elif register == _RA:
            self.state = self.state._replace(ra=_AT_OFFSET if offset == -8 else _ELSEWHERE)

    def _restored(self, register: int) -> None:
        if register == _FP:
            self.state = self.state._replace(fp=self._initial.fp, fp_known=self._initial.fp_known)
        elif register == _RA:
            self.state = self.state._replace(ra=self._initial.ra)

    def _lost(self, register: int, how: int) -> None:
        if register == _FP:
            self.state = self.state._replace(fp=0, fp_known=how)
        elif register == _RA:
            self.state = self.state._replace(ra=how)
