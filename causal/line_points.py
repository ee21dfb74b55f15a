"""Source lines as progress points: from `file.c:123` to the instructions where a visit of the line begins, or to all of
its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from causal.errors import CausalError
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines
from causal.symbols.native import NO_INSTANCE
from causal.symbols.nearest import near_names

_NEAREST = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """Code of a sampled line: bytes `start` to `end` (exclusive) of a file."""

    path: str
    start: int
    end: int


@dataclass(frozen=True)
class LineCode:
    """The rows of one source line in one binary."""

    binary: Binary
    lines: SourceLines
    rows: NDArray[np.intp]  # of lines.rows

    def firsts(self) -> list[int]:
        """File offset of the first instruction of each copy: of each function that the line is in, inlined or not."""
        addresses = self.lines.rows["address"][self.rows]
        first: dict[tuple[bool, int, int], int] = {}
        for address in map(int, addresses):
            offset = self.binary.file_offset(address)
            if offset is not None:
                function = self._function(offset)
                cold = function >= 0 and ".cold" in self.binary.functions.names[function]
                instance = self._instance(address)
                key = (cold, instance, -1 if instance != NO_INSTANCE else function)
                first[key] = min(first.get(key, offset), offset)
        # What is rarely executed lies elsewhere, often before everything else; it is no copy of its own.
        hot = {(instance, function) for cold, instance, function in first if not cold}
        return sorted({offset for (cold, *copy), offset in first.items() if not cold or tuple(copy) not in hot})

    def stretches(self) -> list[Stretch]:
        """All code of the line, in file order."""
        addresses = self.lines.rows["address"]
        found = []
        for row in map(int, self.rows):
            start, end = int(addresses[row]), int(addresses[min(row + 1, len(addresses) - 1)])
            offset = self.binary.file_offset(start)
            if offset is not None and end > start:
                found.append(Stretch(self.binary.path, offset, offset + end - start))
        return sorted(found, key=lambda stretch: stretch.start)

    def _instance(self, address: int) -> int:
        pieces = self.lines.pieces
        at = int(np.searchsorted(pieces["address"], np.uint64(address), side="right")) - 1
        return int(pieces["instance"][at]) if at >= 0 else NO_INSTANCE

    def _function(self, offset: int) -> int:
        functions = self.binary.functions
        at = int(np.searchsorted(functions.start, np.uint64(offset), side="right")) - 1
        return at if at >= 0 and offset < int(functions.end[at]) else -1


def find_line(text: str, what: str, binaries: Sequence[Binary]) -> list[LineCode]:
    """The code of `what` (FILE:LINE), where FILE is the end of a path; `text` names the point in complaints.

    Raises CausalError: no debug information, no such file, a line without code (with the nearest that have some), or
    several files of that name with code at the line.
    """
    file, _, number = what.rpartition(":")
    line = int(number)
    known = [(binary, lines) for binary in binaries if (lines := SourceLines.load(binary)) is not None]
    if not any(len(lines.rows) for _, lines in known):
        where = ", ".join(binary.name for binary in binaries[:3])
        raise CausalError(
            f"progress point {text}: {where} has no line information",
            "build it with -g, or name a function: -p FUNCTION",
        )
    found, paths, nearest = [], set(), set()
    for binary, lines in known:
        numbers = [i + 1 for i, path in enumerate(lines.files) if path == file or path.endswith("/" + file)]
        in_file = np.isin(lines.rows["file"], numbers)
        rows = np.flatnonzero(in_file & (lines.rows["line"] == line))
        if len(rows):
            found.append(LineCode(binary, lines, rows))
            paths |= {lines.files[int(n) - 1] for n in np.unique(lines.rows["file"][rows])}
        nearest |= {int(n) for n in np.unique(lines.rows["line"][in_file]) if n}
    if len(paths) > 1:
        raise CausalError(
            f"progress point {text}: {len(paths)} files of that name have code at line {line}",
            f"write more of the path: {', '.join(sorted(paths)[:_NEAREST])}",
        )
    if not found:
        raise _no_code(text, file, line, nearest, known)
    return found


def _no_code(
    text: str, file: str, line: int, nearest: set[int], known: Sequence[tuple[Binary, SourceLines]]
) -> CausalError:
    if nearest:
        close = sorted(sorted(nearest, key=lambda n: (abs(n - line), n))[:_NEAREST])
        return CausalError(
            f"progress point {text}: line {line} of {file} has no code (a declaration, a comment, or optimised away)",
            f"nearest lines with code: {', '.join(map(str, close))}",
        )
    names = {path.rpartition("/")[2] for _, lines in known for path in lines.files}
    near = near_names(file.rpartition("/")[2], sorted(names))
    hint = f"did you mean {', '.join(near)}?" if near else "is it part of a library? -p FILE:LINE@LIBRARY"
    return CausalError(f"progress point {text}: no source file {file} in {known[0][0].name}", hint)
