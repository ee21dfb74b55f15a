"""Who calls the functions of a tree: what to read next when `explain` has named a function deep inside of a program.

The command runs once more over its inputs (or a live process goes on) with probes on those few functions alone, whose
calls are counted by caller. Nothing is timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal import capabilities
from causal.child import invoking_user
from causal.drt.traces import ON_THREAD
from causal.errors import CausalError
from causal.mappings import Mapping, read_maps
from causal.symbols.elf import Binary
from causal.symbols.executables import find_command, resolve_executable
from causal.tracing.code import Code
from causal.tracing.execution import Executor
from causal.tracing.functions import Function, select_functions
from causal.tracing.inputs import RunInput, check_command, substitute
from causal.tracing.runs import Status
from causal.tracing.stacks import CallerCounts, Chain

VERSION = 1
_TICK_S = 0.001
_SLOWEST_LOOK_S = 0.2
_MOST_FUNCTIONS = 1 << 20


@dataclass
class Caller:
    """A function on the way to the one looked at: `calls` that came through it, and its own callers by name.

    Below the first level `calls` is an estimate where not all stacks were walked.
    """

    name: str
    calls: int = 0
    walked: int = 0
    callers: dict[str, Caller] = field(default_factory=dict)

    def add(self, names: Sequence[str], count: int, walked: bool) -> None:
        """Count calls that came along `names`, from the nearest caller upwards."""
        self.calls += count
        self.walked += count if walked else 0
        if names:
            self.callers.setdefault(names[0], Caller(names[0])).add(names[1:], count, walked)

    def settle(self) -> None:
        """Share out the calls of every caller as those whose stacks were walked came to it, most calls first."""
        for each in self.callers.values():
            for above in each.callers.values():
                above.calls = round(each.calls * above.walked / each.walked) if each.walked else above.calls
            each.settle()
        self.callers = dict(sorted(self.callers.items(), key=lambda item: (-item[1].calls, item[0])))

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "calls": self.calls, "callers": [c.as_object() for c in self.callers.values()]}


@dataclass
class CallersReport:
    """`functions` of the tree with their callers and, by name, in how many runs each was called (of a process: 1)."""

    functions: list[Caller]
    called_in: dict[str, int]
    runs: int
    wanted: int
    lost: int
    refused: list[str]
    notes: list[str]

    def as_object(self) -> dict[str, Any]:
        """The content of callers.json."""
        functions = [each.as_object() | {"runs": self.called_in.get(each.name, 0)} for each in self.functions]
        return {"version": VERSION, "runs": self.runs, "lost": self.lost, "functions": functions}


def functions_of_tree(path: str) -> list[str]:
    """The functions in the tree that `explain --json` wrote; `-` is standard input. Raises CausalError."""
    try:
        found = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
        names = [str(each).partition(ON_THREAD)[0] for each in found["features_used"]]
    except (ValueError, TypeError, KeyError):
        raise CausalError(
            f"{path} is not what explain --json writes", f"make it: causal-bpf explain DIR --json > {path}"
        ) from None
    if not names:
        raise CausalError("the tree has no functions", "explain found no difference between traces: nobody to look for")
    return list(dict.fromkeys(names))


class _Collected:
    """Counts by name, from chains of addresses."""

    def __init__(self, main: Binary, binaries: Sequence[str], wanted: Sequence[str]) -> None:
        selection = select_functions(main, binaries, (), _MOST_FUNCTIONS)
        by_name = {each.name: each for each in selection.functions}
        self.functions: list[Function] = [by_name[name] for name in wanted if name in by_name]
        missing = [name for name in wanted if name not in by_name]
        if not self.functions:
            raise CausalError(
                f"{main.name} has none of the functions in the tree ({', '.join(missing[:3])})",
                "give the program, and the same --binary, that the traces were made with",
            )
        self.notes = [f"not found: {name} (give the same --binary as for the traces)" for name in missing]
        self._code = Code(main, len({each.path for each in selection.functions}) > 1)
        self._roots = [Caller(each.name) for each in self.functions]
        self._called_in: dict[str, int] = {}
        self._runs = 0

    def add(self, chains: Sequence[Chain], mappings: Sequence[Mapping]) -> None:
        """The calls of one run."""
        self._runs += 1
        for number in {each.function for each in chains}:
            name = self.functions[number].name
            self._called_in[name] = self._called_in.get(name, 0) + 1
        for each in chains:
            names = self._code.names(self.functions[each.function], each, mappings)
            self._roots[each.function].add(names, each.count, each.walked)

    def report(self, wanted: int, lost: int, refused: Sequence[int]) -> CallersReport:
        for root in self._roots:
            root.settle()
        names = [self.functions[number].name for number in refused]
        return CallersReport(self._roots, self._called_in, self._runs, wanted, lost, names, self.notes)


@dataclass(frozen=True)
class CallersOptions:
    """As for the traces; `wanted` are the names of the functions."""

    wanted: Sequence[str]
    binaries: Sequence[str] = ()
    stdin: bool = False
    timeout_s: float | None = None


def callers_in_runs(
    command: Sequence[str],
    inputs: Sequence[RunInput],
    options: CallersOptions,
    interrupted: Callable[[], bool],
    show: Callable[[Status], None],
) -> CallersReport:
    """Run the command once for each input; what was seen until an interruption counts. Raises CausalError."""
    check_command(command, inputs, options.stdin)
    first = substitute(command, inputs[0])[0]
    program = find_command(first)
    main = Binary.load(resolve_executable(first))
    capabilities.require()
    collected = _Collected(main, options.binaries, options.wanted)
    executor = Executor(program, invoking_user(), options.timeout_s, _TICK_S)
    with CallerCounts(collected.functions) as counts:
        refused = counts.attach()
        for number, each in enumerate(inputs):
            show(Status("looking for callers", number, len(inputs)))
            if interrupted():
                break
            maps = _Maps()

            def started(pid: int, maps: _Maps = maps) -> None:
                maps.pid = pid
                counts.trace(pid, from_exec=True)

            stdin = each.words[""] if options.stdin else None
            executor.execute(substitute(command, each), stdin, started, maps.look)
            collected.add(counts.take(), maps.found)
        return collected.report(len(inputs), counts.lost(), refused)


class _Maps:
    """The map of a process that may end at any time: looked at again and again, at first often."""

    def __init__(self) -> None:
        self.pid = 0
        self.found: list[Mapping] = []
        self._next_s = 0.0

    def look(self, elapsed_s: float) -> None:
        """Called every tick with the seconds so far."""
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + min(max(elapsed_s / 4, _TICK_S), _SLOWEST_LOOK_S)
        self.found = read_maps(self.pid) or self.found


def callers_in_process(
    pid: int,
    duration_s: float,
    main: Binary,
    options: CallersOptions,
    interrupted: Callable[[], bool],
    show: Callable[[Status], None],
) -> CallersReport:
    """Watch a live process for a while; it may end meanwhile. Raises CausalError."""
    collected = _Collected(main, options.binaries, options.wanted)
    with CallerCounts(collected.functions) as counts:
        mappings = read_maps(pid)
        counts.trace(pid)
        refused = counts.attach()
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < duration_s and not interrupted():
            show(Status("looking for callers", elapsed, duration_s))
            time.sleep(min(0.1, duration_s))
            now = read_maps(pid)
            if not now:
                break
            mappings = now
            counts.walk_again()
        counts.detach()
        collected.add(counts.take(), mappings)
        return collected.report(1, counts.lost(), refused)
