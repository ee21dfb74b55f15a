"""Which functions are counted: those of the main executable and of the libraries in scope, or the ones asked for."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass

from causal.errors import CausalError
from causal.progress import first_instruction_is_cheap
from causal.regions import RegionTable, Scope
from causal.symbols.demangle import bare_name, base_name
from causal.symbols.elf import Binary
from causal.symbols.libraries import libraries_of
from causal.symbols.nearest import near_names

DEFAULT_MAX_FUNCTIONS = 50_000
# Longer instructions do not exist on the machines we support.
_LONGEST_INSTRUCTION = 16


@dataclass(frozen=True, slots=True)
class Function:
    """A function that can be counted: byte `offset` of the file `path`, where `name` (unique among all) starts.

    `cheap`: a probe on it costs 0.5 us a call, otherwise 17 us (see causal.progress).
    """

    name: str
    path: str
    offset: int
    cheap: bool


@dataclass(frozen=True)
class Selection:
    """Functions, and what a user should know about the choice."""

    functions: list[Function]
    notes: list[str]


def select_functions(
    main: Binary, binaries: Sequence[str] = (), patterns: Sequence[str] = (), limit: int = DEFAULT_MAX_FUNCTIONS
) -> Selection:
    """The functions in scope whose names match one of `patterns` (default: all of them).

    `binaries` are patterns of files as Scope has them. Raises CausalError where there is nothing to count, a pattern
    finds nothing, or more functions are found than `limit`.
    """
    scope = Scope(main.path, binaries)
    files = _files(main, scope)
    everything: list[Function] = []
    notes: list[str] = []
    for binary in files:
        everything += _functions(binary, several=len(files) > 1 or binary.path != main.path)
        if binary.is_stripped:
            notes.append(f"{binary.name} is stripped: only the functions it exports have names, and only they count")
    names = ", ".join(binary.name for binary in files) or "no file in scope"
    if not everything:
        raise CausalError(
            f"there is no function to count in {names}",
            "use a build with symbols (not stripped), or choose other files with --binary",
        )
    chosen = _matching(everything, patterns, names, notes) if patterns else everything
    if len(chosen) > limit:
        raise CausalError(
            f"{len(chosen):,} functions are more than the limit of {limit:,}",
            f"choose some with --function 'PATTERN', or raise it: --max-functions {len(chosen)}",
        )
    return Selection(chosen, notes)


def _files(main: Binary, scope: Scope) -> list[Binary]:
    paths = [main.path, *map(os.path.realpath, libraries_of(main))]
    return [Binary.load(path) if path != main.path else main for path in dict.fromkeys(paths) if scope.includes(path)]


def _functions(binary: Binary, several: bool) -> list[Function]:
    """Pieces that the compiler split off (`f.cold`) are no functions, and resolvers of IFUNCs are called once."""
    table = RegionTable("function")
    table.add_functions([binary])
    functions = binary.functions
    found: dict[str, Function] = {}
    with open(binary.path, "rb") as file:
        for row, name in enumerate(functions.names):
            if functions.ifunc[row] or ".cold" in name:
                continue
            offset = int(functions.start[row])
            region = table.lookup(binary.path, offset)
            if not region:
                continue
            called = label(binary, several, table.region(region).name)
            file.seek(offset)
            cheap = first_instruction_is_cheap(file.read(_LONGEST_INSTRUCTION), binary.machine)
            found.setdefault(called, Function(called, binary.path, offset, cheap))
    return list(found.values())


def label(binary: Binary, several: bool, name: str) -> str:
    """What a function is called in traces; `several`: it may come from another file."""
    return name + (f"@{binary.name}" if several and "@" not in name else "")


def _matching(functions: list[Function], patterns: Sequence[str], where: str, notes: list[str]) -> list[Function]:
    plain = {each.name: base_name(each.name.rpartition("@")[0] or each.name) for each in functions}
    chosen: dict[str, Function] = {}
    for pattern in patterns:
        found = [each for each in functions if _matches(pattern, each.name, plain[each.name])]
        if not found:
            near = near_names(pattern.strip("*?"), plain.values())
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise CausalError(
                f"no function in {where} is called {pattern}",
                hint + "an inlined function has no symbol: count its caller, or build with -fno-inline",
            )
        chosen |= {each.name: each for each in found}
    return list(chosen.values())


def _matches(pattern: str, label: str, base: str) -> bool:
    return pattern in (label, base, bare_name(base)) or any(
        fnmatch.fnmatchcase(name, pattern) for name in (label, base)
    )
