"""What of the target counts: unit, scope and regions as the command line asks for them, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from causal import waiting
from causal.errors import CausalError, UsageError
from causal.loading import system_calls
from causal.project import ProjectScope
from causal.regions import CODE_UNITS, RegionTable, Scope
from causal.symbols.debugfile import find_debug_path
from causal.symbols.elf import Binary
from causal.windows import Attribution

if TYPE_CHECKING:
    from causal.recording import RecordingOptions

UNITS = (*CODE_UNITS, "module", "thread", "process", *waiting.UNITS)


def check_unit(unit: str | None) -> None:
    """Raises UsageError for a unit that does not exist (yet)."""
    if unit not in (None, *UNITS):
        raise UsageError(f"unit {unit} is not available yet", f"choose one of {', '.join(UNITS)}")


def find_regions(
    options: RecordingOptions, mains: Sequence[Binary], libraries: Iterable[str]
) -> tuple[Scope, RegionTable, frozenset[int] | None]:
    """What counts of these programs and libraries, its regions, and those that `--only` names. Raises CausalError."""
    unit = options.unit or default_unit(mains)
    scope = scope_of(options, unit, mains)
    table = RegionTable(unit, options.engine.max_ranges)
    known = {main.path: main for main in mains}
    if unit in CODE_UNITS:
        scope.add_code(table, [known.get(path) or Binary.load(path) for path in _in_scope(scope, known, libraries)])
        _require_lines(scope, table)
    elif unit == "module":
        for path in filter(scope.includes, known):
            table.add_module(path)
    elif unit == "wait":
        table.add_waits()
        if by_site(options):
            table.has_code = True
            table.add_functions([known.get(path) or Binary.load(path) for path in _in_scope(scope, known, libraries)])
    elif unit == "syscall":
        table.add_calls(system_calls())
    _check_attribution(options, unit)
    only = None
    if options.only and unit in (*CODE_UNITS, *waiting.UNITS) and not by_site(options):
        only = frozenset(region.id for region in table.select(options.only))
    if unit == "wait":
        _refuse_counted(table, options)
    return scope, table, only


def _in_scope(scope: Scope, known: Iterable[str], libraries: Iterable[str]) -> list[str]:
    return [path for path in dict.fromkeys((*known, *libraries)) if scope.includes(path)]


def _refuse_counted(table: RegionTable, options: RecordingOptions) -> None:
    # Whoever names a class whose waits are counted only would wait for experiments in vain.
    named = {kind.label: kind for kind in waiting.WaitClass}.keys() & set(options.only)
    if waiting.WaitClass.LOCK.label in named:
        raise UsageError(
            "lock waits are counted, but not sped up: each is as long as others hold the lock",
            "speed up the code that holds it: --unit line or function",
        )
    if by_site(options) and waiting.WaitClass.RUNQUEUE.label in named:
        raise UsageError("more cores are not a matter of a call site", "leave out --callers")


def find_given(options: RecordingOptions, table: RegionTable, only: frozenset[int] | None) -> dict[int, float]:
    """The regions that `--given` means, by id, and their speedups (fractions). Raises CausalError or UsageError."""
    if not options.given:
        return {}
    if options.attribution is not Attribution.INNERMOST:
        raise UsageError("--given goes by the innermost frame alone", "leave out --callers and --inclusive")
    if table.unit not in CODE_UNITS:
        raise UsageError(
            f"--given needs regions that are known beforehand, which the unit {table.unit} has not",
            f"use --unit {', '.join(CODE_UNITS[:-1])} or {CODE_UNITS[-1]}",
        )
    if not options.pauses:
        raise UsageError("--given is a virtual speedup, and there are none with --no-pauses", "leave one of them out")
    given: dict[int, float] = {}
    for pattern, speedup in options.given:
        given.update((region.id, speedup) for region in table.select([pattern]))
    if only is not None and only <= given.keys():
        raise UsageError("--only names nothing but what is given", "name the regions to try beside it, or leave it out")
    return given


def by_site(options: RecordingOptions) -> bool:
    """Whether regions are split by their call sites, which turn up while the target runs."""
    return options.attribution is Attribution.CALL_SITE


def _check_attribution(options: RecordingOptions, unit: str) -> None:
    if by_site(options) and unit == "wait":
        return
    if options.attribution is not Attribution.INNERMOST and unit not in (*CODE_UNITS, "module"):
        name = "--callers" if by_site(options) else "--inclusive"
        hint = "choose --unit line, file, function or module"
        raise UsageError(f"{name} is about code, which the unit {unit} is not", hint)


def default_unit(mains: Sequence[Binary]) -> str:
    """Lines where one of the programs has debug information, else functions."""
    return "line" if any(map(find_debug_path, mains)) else "function"


def _require_lines(scope: Scope, table: RegionTable) -> None:
    if not isinstance(scope, ProjectScope) or len(table):
        return
    if scope.notes:
        path, why = next(iter(scope.notes.items()))
        what, _, how = why.partition(": ")
        raise CausalError(f"{path} has {what}", how)
    raise UsageError("no source line is in scope", "widen the scope: -s '*' takes every source file, -b more binaries")


def scope_of(options: RecordingOptions, unit: str, mains: Sequence[Binary]) -> Scope:
    """Which code counts. One module alone would be no choice: without patterns the unit `module` counts them all."""
    if unit in ("line", "file"):
        return ProjectScope(mains, options.binaries, options.sources)
    if options.sources:
        raise UsageError(f"-s selects source files, which the unit {unit} does not know", "use --unit line or file")
    default = ("*",) if unit == "module" else [main.path for main in mains]
    return Scope(mains[0].path, options.binaries or default, jit=not options.binaries)
