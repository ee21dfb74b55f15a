"""Which function an address of a process is in, and what is called from there: names for stacks.

The address of a function that was probed is known in the process and in its file, so whatever lies in the same file
is found without knowing where the process has mapped it; the map of the process serves for all other files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from causal.errors import CausalError
from causal.mappings import Mapping
from causal.regions import RegionTable
from causal.symbols.elf import Binary
from causal.tracing.functions import Function, label
from causal.tracing.stacks import Chain

JUMPS = " (ends by jumping there)"
OUTSIDE = "[unknown code]"
_LONGEST_CALL = 7


@dataclass
class _File:
    binary: Binary
    name: Callable[[str], str]
    table: RegionTable = field(init=False)
    content: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.table = RegionTable("function")
        self.table.add_functions([self.binary])
        self.content = Path(self.binary.path).read_bytes()

    def contains(self, offset: int) -> bool:
        return any(s.executable and s.offset <= offset < s.offset + s.filesz for s in self.binary.segments)

    def function(self, offset: int) -> str | None:
        region = self.table.lookup(self.binary.path, offset)
        return self.name(self.table.region(region).name) if region else None


class Code:
    """The code of processes that run `main`; functions have the names that traces give them."""

    def __init__(self, main: Binary, several: bool) -> None:
        self._main = main
        self._several = several
        self._files: dict[str, _File | None] = {}

    def names(self, function: Function, chain: Chain, mappings: Sequence[Mapping]) -> list[str]:
        """The callers of a function, from its own caller upwards, as far as they are beyond doubt."""
        result: list[str] = []
        inner = function.name
        for depth, address in enumerate(chain.callers):
            place = self._place(function, address - chain.ip, address, mappings)
            if place is None or not follows_call(place[0].content, place[1]):
                # Whatever is at the stack pointer on entry is the caller; further up, the chain may be broken.
                return result if depth else [OUTSIDE]
            file, offset = place
            target = call_target(file.content, offset)
            called = file.function(target) if target is not None and file.contains(target) else None
            if called is not None and called != inner:
                if depth:
                    return result
                result.append(called + JUMPS)
            inner = file.function(offset - 1) or f"[{file.binary.name}]"
            if not result or result[-1] != inner:  # a recursion is shown once
                result.append(inner)
        return result

    def _place(
        self, function: Function, distance: int, address: int, mappings: Sequence[Mapping]
    ) -> tuple[_File, int] | None:
        own = self._file(function.path)
        if own and own.contains(function.offset + distance):
            return own, function.offset + distance
        for mapping in mappings:
            if address - 1 in mapping and mapping.kind == "file":
                file = self._file(mapping.path)
                return (file, mapping.file_offset(address)) if file else None
        return None

    def _file(self, path: str) -> _File | None:
        if path not in self._files:
            try:
                binary = self._main if path == self._main.path else Binary.load(path)
                several = self._several or path != self._main.path
                self._files[path] = _File(binary, partial(label, binary, several))
            except (CausalError, OSError):
                self._files[path] = None
        return self._files[path]


def follows_call(code: bytes, offset: int) -> bool:
    """Whether an x86-64 call ends at this byte: rel32, or r/m64 in 2, 3, 4, 6 or 7 bytes."""
    before = code[max(offset - _LONGEST_CALL, 0) : offset].rjust(_LONGEST_CALL, b"\0")
    if before[2] == 0xE8:
        return True
    return any(before[-size] == 0xFF and before[1 - size] & 0x38 == 0x10 for size in (2, 3, 4, 6, 7))


def call_target(code: bytes, offset: int) -> int | None:
    """Where the direct call that ends at this byte leads, as a file offset; None for an indirect one."""
    if offset < 5 or code[offset - 5] != 0xE8:
        return None
    return offset + int(struct.unpack_from("<i", code, offset - 4)[0])
