"""From call-frame information to a sorted table: address -> rule.

    table = build_table(data, read_image(data))
    table.rows                                     # ROW_DTYPE, sorted by pc, the first one for pc 0

Any bytes give a table: what makes no sense is left out and counted. Fast because most functions of a library have one
of a few programs, so that numpy lays out the rows; libLLVM's 818,000 take about a second.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from causal.unwind.image import Bytes, Frames, Image, frames_of
from causal.unwind.programs import BadProgram, Program, State, read_signed, read_unsigned
from causal.unwind.rules import ROW_DTYPE, Kind

# Between functions lie a few bytes of padding that nobody executes: only longer gaps get a row of their own.
_GAP = 16
_U32 = 1 << 32
_U64 = 1 << 64
_WRONG = (BadProgram, IndexError, struct.error, ValueError, OverflowError)
# Encodings of pointers (Linux Standard Base, Core, 10.5.1): the low bits say what is stored, then what it counts from.
_STORED = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
_PCREL, _OMITTED, _APPLICATION = 0x10, 0xFF, 0x70
_PAIR_SIGNED = struct.Struct("<iI")


@dataclass(frozen=True)
class Table:
    """`functions` the entries used, `lost` the entries that made no sense."""

    rows: NDArray[np.void]
    functions: int
    lost: int


@dataclass(frozen=True, slots=True)
class _Common:
    """A common information entry: what the entries of functions have in common."""

    code_factor: int
    data_factor: int
    encoding: int
    augmented: bool
    state: State


@dataclass
class _Entries:
    """Entries of functions as columns; a program is its rows `first` to `first + count` in `offsets` and `rules`."""

    start: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    program: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    rules: list[int] = field(default_factory=list)
    lost: int = 0

    def emit(self, offset: int, rule: int) -> None:
        if len(self.offsets) > self.first[-1]:
            if self.offsets[-1] == offset:
                self.rules[-1] = rule
                return
            if self.rules[-1] == rule:
                return
        self.offsets.append(offset)
        self.rules.append(rule)


def build_table(data: Bytes, image: Image) -> Table:
    """The table of a whole file. Without information it has one row."""
    columns: NDArray[np.int64] | None = None
    rows, functions, lost = [], 0, 0
    for frames in frames_of(data, image):
        entries = _Reader(frames).read()
        start, size, kept = _in_code(entries, image)
        if columns is not None:
            known = _covered(columns, start)
            start, size, kept = start[~known], size[~known], kept[~known]
        rows.append(_laid_out(entries, start, size, kept))
        ends = np.stack([start, start + size])
        columns = ends if columns is None else np.concatenate([columns, ends], axis=1)
        functions += len(start)
        lost += entries.lost
    return Table(_merged(rows, columns), functions, lost)


class _Reader:
    """Walks the entries of a section, one after the other."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._data = frames.data
        self._entries = _Entries()
        self._commons: dict[int, _Common | None] = {}
        self._programs: dict[tuple[int, bytes], int] = {}

    def read(self) -> _Entries:
        data, at, size = self._data, 0, len(self._data)
        while at + 8 <= size:
            length, common = struct.unpack_from("<II", data, at)
            if length == 0:
                if not self._frames.bounded:
                    break
                at += 4  # a terminator of one of the linked files
                continue
            end = at + 4 + length
            if length >= 0xFFFFFFF0 or end > size:  # 64-bit lengths: no compiler writes them on x86-64
                self._entries.lost += 1
                break
            try:
                if common == (0xFFFFFFFF if self._frames.is_debug else 0):
                    self._commons[at] = None
                    self._commons[at] = self._common(at, end)
                else:
                    self._function(at, end, common if self._frames.is_debug else at + 4 - common)
            except _WRONG:
                self._entries.lost += 1
            at = end
        return self._entries

    def _common(self, at: int, end: int) -> _Common:
        data = self._data
        version, at = data[at + 8], at + 9
        zero = data.index(b"\0", at, end)
        augmentation, at = data[at:zero], zero + 1
        if version not in (1, 3, 4) or (augmentation and augmentation[:1] != b"z"):
            raise BadProgram("an unknown version")
        if version == 4:
            if data[at : at + 2] != b"\x08\x00":
                raise BadProgram("addresses of another size")
            at += 2
        code_factor, at = read_unsigned(data, at)
        data_factor, at = read_signed(data, at)
        _, at = (data[at], at + 1) if version == 1 else read_unsigned(data, at)
        encoding = 0
        if augmentation:
            size, at = read_unsigned(data, at)
            encoding = _pointer_encoding(augmentation[1:], data[at : at + size])
            at += size
        program = Program(code_factor, data_factor, State(), lambda offset, rule: None)
        return _Common(code_factor, data_factor, encoding, bool(augmentation), program.run(data[at:end], 0, end - at))

    def _function(self, at: int, end: int, where: int) -> None:
        common = self._commons.get(where)
        if common is None:
            raise BadProgram("no common entry there")
        data = self._data
        if common.encoding == 0x1B:
            start, size = _PAIR_SIGNED.unpack_from(data, at + 8)
            start, body = start + self._frames.address + at + 8, at + 16
        else:
            start, size, body = self._range(common.encoding, at + 8)
        if common.augmented:
            length, body = read_unsigned(data, body)
            body += length
        if body > end:
            raise BadProgram("an entry that ends before its program")
        code = data[body:end]
        program = self._programs.get((where, code))
        if program is None:
            program = self._run(common, code)
            self._programs[where, code] = program
        entries = self._entries
        entries.start.append(start % _U64)
        entries.size.append(size)
        entries.program.append(program)

    def _run(self, common: _Common, code: bytes) -> int:
        entries = self._entries
        entries.first.append(len(entries.offsets))
        program = Program(common.code_factor, common.data_factor, common.state, entries.emit)
        try:
            program.run(code, 0, len(code))
        except _WRONG:
            entries.lost += 1
            entries.emit(program.location, int(Kind.NOTHING))
        entries.count.append(len(entries.offsets) - entries.first[-1])
        return len(entries.first) - 1

    def _range(self, encoding: int, at: int) -> tuple[int, int, int]:
        stored = _STORED.get(encoding & 0x0F)
        if stored is None or encoding & _APPLICATION not in (0, _PCREL):
            raise BadProgram("an unknown encoding of addresses")
        width = struct.calcsize(stored)
        (start,) = struct.unpack_from(stored, self._data, at)
        (size,) = struct.unpack_from(stored.upper() if stored != "<Q" else stored, self._data, at + width)
        return start + (self._frames.address + at if encoding & _PCREL else 0), size, at + 2 * width


def _pointer_encoding(letters: bytes, data: bytes) -> int:
    """How the entries of functions write addresses, from the augmentation of their common entry."""
    encoding, at = 0, 0
    for letter in letters:
        if letter == ord("R"):
            encoding, at = data[at], at + 1
        elif letter == ord("L"):
            at += 1
        elif letter == ord("P"):
            stored = _STORED.get(data[at] & 0x0F)
            if stored is None:
                raise BadProgram("an unknown encoding of the personality routine")
            at += 1 + struct.calcsize(stored)
        elif letter not in b"SB":
            raise BadProgram("an unknown augmentation")
    return encoding


def _in_code(entries: _Entries, image: Image) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Start (relative to the image), size and program of the entries for code that is there; the linker leaves entries
    of functions it has thrown away at address 0."""
    start = np.array(entries.start, np.uint64)
    size = np.minimum(np.array(entries.size, np.uint64), np.uint64(_U32 - 1))
    inside = np.zeros(len(start), bool)
    for segment in image.segments:
        if segment.executable:
            # Below the segment the difference wraps around and is large.
            inside |= start - np.uint64(segment.vaddr) < np.uint64(segment.filesz)
    relative = start - np.uint64(image.base)
    inside &= (size > 0) & (relative > 0) & (relative < np.uint64(_U32)) & (start >= np.uint64(image.base))
    program = np.array(entries.program, np.int64)
    return relative[inside].astype(np.int64), size[inside].astype(np.int64), program[inside]


def _covered(columns: NDArray[np.int64], start: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which starts lie in one of the ranges."""
    order = np.argsort(columns[0], kind="stable")
    begins, ends = columns[0][order], columns[1][order]
    at = np.searchsorted(begins, start, side="right") - 1
    return (at >= 0) & (start < ends[np.maximum(at, 0)]) if len(begins) else np.zeros(len(start), bool)


def _laid_out(
    entries: _Entries, start: NDArray[np.int64], size: NDArray[np.int64], program: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(address, rule) of every row of every function."""
    counts = np.array(entries.count, np.int64)[program]
    firsts = np.array(entries.first, np.int64)[program]
    before = np.cumsum(counts) - counts
    index = np.arange(int(counts.sum())) - np.repeat(before - firsts, counts)
    # A program may claim any distance.
    offsets = np.array([min(offset, _U32) for offset in entries.offsets], np.int64)[index]
    pc = np.repeat(start, counts) + offsets
    kept = (offsets < np.repeat(size, counts)) & (pc < _U32)
    return pc[kept], np.array(entries.rules, np.int64)[index][kept]


def _merged(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], columns: NDArray[np.int64] | None
) -> NDArray[np.void]:
    gaps = np.zeros(0, np.int64)
    if columns is not None:
        order = np.argsort(columns[0], kind="stable")
        begins, ends = columns[0][order], columns[1][order]
        far = np.ones(len(ends), bool)
        far[:-1] = begins[1:] - ends[:-1] >= _GAP
        gaps = ends[far & (ends < _U32)]
    pc = np.concatenate([[0], gaps, *(part[0] for part in parts)]).astype(np.int64)
    rule = np.concatenate([np.zeros(1 + len(gaps)), *(part[1] for part in parts)]).astype(np.int64)
    order = np.argsort(pc, kind="stable")
    pc, rule = pc[order], rule[order]
    # Of rows for the same address the last counts: gaps come first.
    last = np.ones(len(pc), bool)
    last[:-1] = pc[1:] != pc[:-1]
    pc, rule = pc[last], rule[last]
    changed = np.ones(len(pc), bool)
    changed[1:] = rule[1:] != rule[:-1]
    rows = np.zeros(int(changed.sum()), ROW_DTYPE)
    rows["pc"], rows["rule"] = pc[changed], rule[changed]
    return rows
