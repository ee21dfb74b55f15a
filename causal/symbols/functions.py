"""Which bytes of a file belong to which function, read from its symbol tables.

Everything is in *file offsets*: a sample's address in a running process turns into one by the process's
mapping alone, so position-independent programs and shared libraries need no further arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elf64_Sym, little-endian (System V gABI, "Symbol Table").
SYMBOL_DTYPE = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
# Elf32_Sym: the same in another order.
SYMBOL32_DTYPE = np.dtype(
    [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2")]
)
_STT_FUNC, _STT_FILE, _STT_GNU_IFUNC = 2, 4, 10
_STB_LOCAL = 0
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2


@dataclass(frozen=True, slots=True)
class Segment:
    """One PT_LOAD program header: `filesz` bytes from file `offset` appear at address `vaddr`."""

    vaddr: int
    offset: int
    filesz: int
    executable: bool


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """A symbol section as stored (`symbols`: 1-d of SYMBOL_DTYPE) and the string section its names are in."""

    symbols: NDArray[np.void]
    strings: bytes


@dataclass(frozen=True, slots=True, eq=False)
class FunctionTable:
    """The functions of one file, sorted by start; functions may nest or overlap, as the compiler left them.

    `start`, `end`: uint64 file offsets, shape (n,), end exclusive. `names`: the chosen (still mangled) name
    of each. `aliases`: further names by row. `sources`: the compilation unit of file-local functions where
    the file says so, else "". `ifunc`: true where the symbol is a resolver that picks an implementation.
    """

    start: NDArray[np.uint64]
    end: NDArray[np.uint64]
    names: list[str]
    aliases: dict[int, tuple[str, ...]]
    sources: list[str]
    ifunc: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    def all_names(self) -> Iterator[tuple[str, int]]:
        """Every name, aliases included, with the row it belongs to."""
        for row, name in enumerate(self.names):
            yield name, row
            for alias in self.aliases.get(row, ()):
                yield alias, row


class _Row(NamedTuple):
    """One name of a function, before the names of one address are merged."""

    name: str
    source: str
    local: bool

    def rank(self) -> tuple[bool, bool, int, str]:
        # A reader knows `write`, not `__write` or `__GI___libc_write`; mangled names all begin with `_`.
        hidden = self.name.startswith("_") and not self.name.startswith(("_Z", "_R"))
        return (self.local, hidden, len(self.name), self.name)


def function_table(
    tables: Sequence[SymbolTable], segments: Sequence[Segment], sections: NDArray[np.uint64]
) -> FunctionTable:
    """Merge symbol tables into one FunctionTable.

    `sections`: (n, 2) first and last-plus-one addresses of the executable sections; they end a function whose
    symbol has no size. Symbols outside executable segments are dropped; nonsense sizes are cut at the segment.
    """
    picked = [table.symbols[_is_function(table.symbols)] for table in tables]
    functions = np.concatenate([*picked, np.empty(0, SYMBOL_DTYPE)])
    size, ifunc = functions["size"], (functions["info"] & 15) == _STT_GNU_IFUNC
    rows = [row for table in tables for row in _names(table)]

    offset, room = _place(functions["value"], segments, sections)
    named = np.fromiter((bool(row.name) for row in rows), np.bool_, len(rows))
    order = np.flatnonzero((room > 0) & named)
    order = order[np.argsort(offset[order], kind="stable")]
    start, first = np.unique(offset[order], return_index=True)
    end = _ends(start, first, np.minimum(size, room)[order], room[order])
    names, aliases, sources = _merge_names([rows[i] for i in order], first)
    is_ifunc = np.logical_or.reduceat(ifunc[order], first) if len(first) else np.empty(0, np.bool_)
    return FunctionTable(start, end, names, aliases, sources, is_ifunc)


def _is_function(symbols: NDArray[np.void]) -> NDArray[np.bool_]:
    kind, where = symbols["info"] & 15, symbols["shndx"]
    wanted = (kind == _STT_FUNC) | (kind == _STT_GNU_IFUNC)
    wanted &= (where != _SHN_UNDEF) & (where != _SHN_ABS) & (where != _SHN_COMMON)
    return np.asarray(wanted, np.bool_)


def _names(table: SymbolTable) -> list[_Row]:
    symbols = table.symbols
    wanted = _is_function(symbols)
    # Local symbols follow the STT_FILE symbol of their compilation unit (gABI, "Symbol Table").
    is_file = (symbols["info"] & 15) == _STT_FILE
    unit = np.maximum.accumulate(np.where(is_file, np.arange(len(symbols)), -1))[wanted]
    local = (symbols["info"][wanted] >> 4) == _STB_LOCAL
    sources: dict[int, str] = {-1: ""}
    result = []
    for name, row, is_local in zip(symbols["name"][wanted].tolist(), unit.tolist(), local.tolist(), strict=True):
        if is_local and row not in sources:
            sources[row] = _string(table.strings, int(symbols["name"][row]))
        result.append(_Row(_string(table.strings, name), sources[row] if is_local else "", is_local))
    return result


def _string(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    return strings[at : end if end >= 0 else len(strings)].decode("utf-8", "replace")


def _place(
    value: NDArray[np.uint64], segments: Sequence[Segment], sections: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """File offset of each address and the bytes from it to the end of its section or segment (0: not code)."""
    offset = np.zeros(len(value), np.uint64)
    room = np.zeros(len(value), np.uint64)
    for segment in segments:
        if not segment.executable:
            continue
        vaddr, filesz = np.uint64(segment.vaddr), np.uint64(segment.filesz)
        inside = (value >= vaddr) & (value - vaddr < filesz)
        offset[inside] = value[inside] - vaddr + np.uint64(segment.offset)
        room[inside] = filesz - (value[inside] - vaddr)
    if len(sections):
        ordered = sections[np.argsort(sections[:, 0], kind="stable")]
        at = np.searchsorted(ordered[:, 0], value, side="right") - 1
        section_end = ordered[np.maximum(at, 0), 1]
        inside = (at >= 0) & (value < section_end)
        room[inside] = np.minimum(room[inside], section_end[inside] - value[inside])
    return offset, room


def _ends(
    start: NDArray[np.uint64], first: NDArray[np.intp], size: NDArray[np.uint64], room: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    # Hand-written assembly often has symbols without a size: such a function lasts until the next one starts.
    if not len(start):
        return np.empty(0, np.uint64)
    largest = np.maximum.reduceat(size, first)
    following = np.append(start[1:], np.uint64(2**64 - 1))
    to_next = np.minimum(following - start, room[first])
    return start + np.where(largest > 0, largest, to_next)


def _merge_names(
    rows: Sequence[_Row], first: NDArray[np.intp]
) -> tuple[list[str], dict[int, tuple[str, ...]], list[str]]:
    names: list[str] = []
    aliases: dict[int, tuple[str, ...]] = {}
    sources: list[str] = []
    for index, (low, high) in enumerate(pairwise([*first.tolist(), len(rows)])):
        group = rows[low:high]
        best = group[0] if len(group) == 1 else min(group, key=_Row.rank)
        names.append(best.name)
        sources.append(best.source)
        others = dict.fromkeys(row.name for row in group if row.name != best.name)
        if others:
            aliases[index] = tuple(others)
    return names, aliases, sources
