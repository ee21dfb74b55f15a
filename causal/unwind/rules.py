"""One row of an unwind table: from an address on, how to find the caller's stack pointer and frame pointer.

A row is 8 bytes: the address, relative to the module's first page, and a rule, packed as
`kind | fp / 8 << 8 | cfa / 8 << 16`; the kernel side (bpf/unwind.h) knows the same format. CFA, the canonical frame
address, is the caller's stack pointer. On x86-64 the return address is at CFA - 8. `fp` is where the caller's frame
pointer is saved, relative to the CFA, 0: the register still holds it. Another architecture has kinds of its own for
leaves, whose return address is in a register.
"""

from __future__ import annotations

import enum

import numpy as np

ROW_DTYPE = np.dtype([("pc", "<u4"), ("rule", "<u4")])
PAGE_BITS = 10  # rows are found by pages of 1 kB of code


class Kind(enum.IntEnum):
    """How the CFA is found; as in bpf/unwind.h. Offsets are in bytes here, in words in the rule."""

    NOTHING = 0  # no information: between functions, or what was written makes no sense
    STACK_POINTER = 1  # stack pointer + cfa
    FRAME_POINTER = 2  # frame pointer + cfa
    LINKAGE = 3  # procedure linkage table: sp + 8, and 8 more from the cfa-th byte of an entry of 16 on
    UNKNOWN = 4  # there is a rule, and it is none of these
    SIGNAL = 5  # the kernel's signal frame: all registers are saved at the stack pointer
    REALIGNED = 6  # the CFA is saved at frame pointer + cfa, the caller's frame pointer where ours points to
    END = 7  # the outermost frame
    SAVED = 8  # the CFA is a word above what is saved at stack pointer + cfa (assembler)


_MOST_CFA = 8 * 0x7FFF
_LEAST_CFA = -8 * 0x8000
_LEAST_FP = -8 * 0x7F


def pack(kind: Kind, cfa: int = 0, fp: int = 0) -> int:
    """The rule as a word. Offsets in bytes; those that do not fit, or are no multiples of 8, make it UNKNOWN."""
    if cfa & 7 or fp & 7 or not _LEAST_CFA <= cfa <= _MOST_CFA or not _LEAST_FP <= fp <= 0:
        return int(Kind.UNKNOWN)
    return int(kind) | (fp >> 3 & 0xFF) << 8 | (cfa >> 3 & 0xFFFF) << 16


def unpack(rule: int) -> tuple[Kind, int, int]:
    """(kind, cfa, fp) of a rule, offsets in bytes."""
    fp, cfa = rule >> 8 & 0xFF, rule >> 16 & 0xFFFF
    return Kind(rule & 0xFF), 8 * (cfa - 0x10000 * (cfa >> 15)), 8 * (fp - 0x100 * (fp >> 7))
