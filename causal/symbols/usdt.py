"""Statically defined tracepoints (USDT) of a program or library: places that its authors marked, with names of theirs.

Format: https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation (notes of type 3, owner `stapsdt`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from elftools.elf.elffile import ELFFile

from causal.symbols.elf import Binary

_OWNER, _NT_STAPSDT = b"stapsdt\0", 3


@dataclass(frozen=True, slots=True)
class UsdtPoint:
    """One place (a point that was inlined has several). Addresses are those of the file, before any load bias.

    `semaphore`: address of the counter that the program looks at before it goes there, 0 when it always does.
    """

    provider: str
    name: str
    vaddr: int
    semaphore: int

    @property
    def spec(self) -> str:
        """What follows -p."""
        return f"usdt:{self.provider}:{readable(self.name)}"


@lru_cache(maxsize=256)  # read once for all points that are looked for
def usdt_points(binary: Binary) -> tuple[UsdtPoint, ...]:
    """The points in the order of the file, none where there are none or their notes are damaged."""
    try:
        with open(binary.path, "rb") as file:
            elf = ELFFile(file)
            notes = elf.get_section_by_name(".note.stapsdt")
            base = elf.get_section_by_name(".stapsdt.base")
            if notes is None:
                return ()
            return tuple(_points(notes.data(), 0 if base is None else int(base["sh_addr"])))
    except Exception:  # pyelftools lets almost anything escape from damaged files
        return ()


def readable(name: str) -> str:
    """A point's name as its documentation has it: the double underscores of C stand for dashes."""
    return name.replace("__", "-")


def _points(data: bytes, base: int) -> Iterator[UsdtPoint]:
    at = 0
    while at + 12 <= len(data):
        owner_size, size, kind = struct.unpack_from("<3I", data, at)
        start = at + 12 + _aligned(owner_size)
        if kind == _NT_STAPSDT and data[at + 12 : at + 12 + owner_size] == _OWNER and size >= 24:
            yield _point(data[start : start + size], base)
        at = start + _aligned(size)


def _aligned(size: int) -> int:
    return (size + 3) // 4 * 4


def _point(note: bytes, base: int) -> UsdtPoint:
    place, base_then, semaphore = struct.unpack_from("<3Q", note)
    # Prelinking moves code without telling the notes; how far shows in a section that exists for that.
    moved = base - base_then if base else 0
    provider, name = (part.decode(errors="replace") for part in note[24:].split(b"\0")[:2])
    return UsdtPoint(provider, name, place + moved, semaphore + moved if semaphore else 0)
