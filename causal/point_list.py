"""What could be a progress point: the functions, USDT points and source lines of a program, as SPECs for `-p`.

Nothing is run and no rights are needed; how often each of them is visited is for causal/suggestion.py to find out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath

import numpy as np

from causal.symbols.demangle import bare_name, base_name, demangle, is_piece
from causal.symbols.elf import Binary
from causal.symbols.libraries import readable_binaries
from causal.symbols.lines import SourceLines
from causal.symbols.usdt import usdt_points

KINDS = ("function", "usdt", "line")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`spec` is what follows -p, `kind` one of KINDS; `note` says more about it, if there is more to say."""

    spec: str
    kind: str
    note: str = ""


def list_points(main: Binary, libraries: Sequence[str], pattern: str | None = None) -> Iterator[Candidate]:
    """The functions of `main`, USDT points of it and its libraries, and source lines of `main`, in this order.

    `pattern`: part of a name, or a glob of the whole of it. Lines come only when it names a file: `queue.c`,
    `queue.c:12`, `src/*.c:*`. Raises CausalError when a file is damaged.
    """
    yield from _functions(main, pattern)
    for binary in (main, *readable_binaries(libraries)):
        yield from usdt_candidates(binary, pattern)
    if pattern and ("." in pattern or ":" in pattern):
        yield from _lines(main, pattern)


def list_points_of_all(
    programs: Sequence[tuple[Binary, Sequence[str]]], pattern: str | None = None
) -> list[Candidate]:
    """The same of several programs, each with its libraries: by kind, and what they share once."""
    found = dict.fromkeys(each for main, libraries in programs for each in list_points(main, libraries, pattern))
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def usdt_candidates(binary: Binary, pattern: str | None = None) -> Iterator[Candidate]:
    """The USDT points of one file; `note` names the file."""
    places = Counter(point.spec for point in usdt_points(binary))
    for spec, count in places.items():
        if pattern is None or _matches(spec, pattern):
            yield Candidate(spec, "usdt", f"{binary.name}, {count} places" if count > 1 else binary.name)


def name_library(binary: Binary) -> str:
    """What follows the name of a function that is in this file: `@libz`, "" in a program."""
    return f"@{binary.name.partition('.so')[0]}" if binary.is_library else ""


def _functions(main: Binary, pattern: str | None) -> Iterator[Candidate]:
    functions, suffix = main.functions, name_library(main)
    rows: dict[str, set[int]] = {}
    for symbol, row in functions.all_names():
        if functions.ifunc[row] or is_piece(symbol):
            continue
        name = bare_name(base_name(demangle(symbol)))
        if pattern is None or _matches(name, pattern):
            rows.setdefault(name, set()).add(row)
    for name in sorted(rows):
        yield Candidate(name + suffix, "function", f"{len(rows[name])} places" if len(rows[name]) > 1 else "")


def _lines(main: Binary, pattern: str) -> Iterator[Candidate]:
    lines = SourceLines.load(main)
    if lines is None:
        return
    suffix, names = name_library(main), dict(enumerate(_short_names(lines.files), start=1))
    rows = lines.rows[(lines.rows["file"] > 0) & (lines.rows["line"] > 0)]
    places, first = np.unique(rows[["file", "line"]], return_index=True)
    starts = main.functions.start
    for (file, line), row in zip(places.tolist(), first.tolist(), strict=True):
        name = f"{names[file]}:{line}" if file in names else ""
        if not name or not (_matches(name, pattern) or _matches(f"{lines.files[file - 1]}:{line}", pattern)):
            continue
        offset = main.file_offset(int(rows["address"][row]))
        at = -1 if offset is None else int(np.searchsorted(starts, np.uint64(offset), side="right")) - 1
        yield Candidate(name + suffix, "line", base_name(demangle(main.functions.names[at])) if at >= 0 else "")


def _short_names(files: Sequence[str]) -> list[str]:
    """The last part of each path, or all of it where several files share that."""
    last = [PurePath(path).name for path in files]
    times = Counter({path: name for path, name in zip(files, last, strict=True)}.values())
    return [name if times[name] == 1 else path for path, name in zip(files, last, strict=True)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if any(mark in pattern for mark in "*?[") else pattern in name
