"""Traces of the requests of a live process: what each cost, what it called, and how large it was.

A dry run finds the probes that would cost too much; then requests are followed from their begin to their end until
enough have been seen, the time is over, the process ends or the user interrupts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import capabilities
from causal.errors import CausalError, UsageError
from causal.mappings import read_maps
from causal.progress import parse_spec
from causal.symbols.elf import Binary
from causal.tracing.functions import DEFAULT_MAX_FUNCTIONS, Function, select_functions
from causal.tracing.journal import TRACES, write_traces
from causal.tracing.points import Value, check_argument, check_values, find_place, find_reading, key_cookies
from causal.tracing.request_probes import RequestProbes
from causal.tracing.runs import CHEAP_CALL_S, STEPPED_CALL_S, Status

_POLL_MS = 100


@dataclass(frozen=True)
class RequestOptions:
    """What `trace --pid` was asked to do; times in seconds, `max_overhead` a share of one CPU.

    `end` None: where the function at which a request begins returns. `key` is an argument, or the name of a parameter,
    that tells requests apart whose begin and end are on different threads; `parts` are functions that work on them.
    """

    pid: int
    output: Path
    begin: str
    end: str | None
    values: Sequence[Value]
    key: str | None = None
    parts: Sequence[str] = ()
    binaries: Sequence[str] = ()
    patterns: Sequence[str] = ()
    max_functions: int = DEFAULT_MAX_FUNCTIONS
    duration_s: float = 10.0
    requests: int | None = None
    dry_run_s: float = 1.0
    max_overhead: float = 0.1
    force: bool = False


@dataclass(frozen=True)
class RequestSummary:
    """What came out. `counters` as RequestProbes has them; `reason`: duration, requests, exit or interrupt."""

    path: Path
    traces: int
    functions: int
    called: int
    dropped: dict[str, float]
    refused: list[str]
    notes: list[str]
    counters: dict[str, int]
    in_flight: int
    overwritten: int
    unreadable: int
    reason: str


@dataclass
class _Collected:
    traces: list[dict[str, Any]] = field(default_factory=list)
    overwritten: int = 0
    unreadable: int = 0


class RequestTracer:
    """`__init__` examines everything and raises CausalError with a remedy; `trace` does the work."""

    def __init__(
        self, options: RequestOptions, interrupted: Callable[[], bool], show: Callable[[Status], None]
    ) -> None:
        check_values(options.values)
        _check_key(options)
        self._options = options
        self._interrupted = interrupted
        self._show = show
        if (options.output / TRACES).exists() and not options.force:
            raise UsageError(f"{options.output} holds traces", "choose another name with -o, or add --force")
        if options.output.exists() and not options.output.is_dir():
            raise UsageError(
                f"{options.output} is a file", "traces are kept in a directory; choose another name with -o"
            )
        main = program_of(options.pid)
        libraries = list(dict.fromkeys(m.path for m in read_maps(options.pid) if m.kind == "file" and not m.deleted))
        libraries = [path for path in libraries if os.path.realpath(path) != os.path.realpath(main.path)]
        self._begin = find_place("begin", options.begin, main, libraries)
        self._end = find_place("end", options.end or options.begin, main, libraries)
        self._parts = [place for each in options.parts for place in find_place("part", each, main, libraries)]
        if options.key is not None:
            for place in (*self._begin, *self._end, *self._parts):
                key_cookies(options.key, place)  # raises now what it would raise later
        text = parse_spec(options.begin).text
        self._readings = [find_reading(each, self._begin, text, main, libraries) for each in options.values]
        selection = select_functions(main, options.binaries, options.patterns, options.max_functions)
        self._functions = selection.functions
        self._notes = list(selection.notes)
        self._collected = _Collected()
        self._began = time.monotonic()

    def trace(self) -> RequestSummary:
        """Dry run, then requests; what was seen until an interruption counts."""
        options = self._options
        with RequestProbes(options.pid, self._functions, self._readings, options.key, self._receive) as probes:
            refused = probes.attach_calls()
            dropped = self._dry_run(probes)
            numbers = {each.name: number for number, each in enumerate(self._functions)}
            refused += probes.attach_calls({numbers[name] for name in dropped} | set(refused))
            probes.attach_points(self._begin, self._end, options.end is None, self._parts)
            reason = self._follow(probes)
            probes.stop()
            in_flight = probes.in_flight()
            probes.detach()
            probes.poll(0)
            counters = probes.counters()
        if options.requests is not None:
            del self._collected.traces[options.requests :]
        if not self._collected.traces:
            raise self._nothing(counters, reason)
        options.output.mkdir(parents=True, exist_ok=True)
        return RequestSummary(
            path=write_traces(options.output, self._collected.traces),
            traces=len(self._collected.traces),
            functions=len(self._functions),
            called=len({name for trace in self._collected.traces for name in trace["calls"]}),
            dropped=dropped,
            refused=[self._functions[number].name for number in refused],
            notes=self._notes,
            counters=counters,
            in_flight=in_flight,
            overwritten=self._collected.overwritten,
            unreadable=self._collected.unreadable,
            reason=reason,
        )

    def _alive(self) -> bool:
        try:
            state = Path(f"/proc/{self._options.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    def _dry_run(self, probes: RequestProbes) -> dict[str, float]:
        """Functions too hot for the budget -> calls per second."""
        begin = time.monotonic()
        costs = call_costs(self._functions)
        while (elapsed := time.monotonic() - begin) < self._options.dry_run_s and self._alive():
            self._show(Status("dry run", elapsed, self._options.dry_run_s + self._options.duration_s))
            time.sleep(0.02)
            spent_s = float(costs @ probes.totals())
            if self._interrupted() or spent_s > self._options.max_overhead * self._options.dry_run_s:
                break  # it has cost as much as a whole dry run may, and has seen enough
        elapsed = time.monotonic() - begin
        return over_budget(self._functions, probes.totals(), elapsed, self._options.max_overhead)

    def _follow(self, probes: RequestProbes) -> str:
        options = self._options
        begin = time.monotonic()
        while True:
            elapsed = time.monotonic() - begin
            total = options.dry_run_s + options.duration_s
            self._show(Status(f"{len(self._collected.traces):,} requests", options.dry_run_s + elapsed, total))
            probes.poll(_POLL_MS)
            if options.requests is not None and len(self._collected.traces) >= options.requests:
                return "requests"
            if self._interrupted():
                return "interrupt"
            if not self._alive():
                return "exit"
            if elapsed >= options.duration_s:
                return "duration"

    def _receive(self, record: Any, calls: NDArray[np.int64] | None) -> None:
        if calls is None:
            self._collected.overwritten += 1
            return
        known = int(record["known"])
        if known != (1 << len(self._options.values)) - 1:
            self._collected.unreadable += 1
            return
        duration_ns = int(record["end_ns"]) - int(record["begin_ns"])
        worked_ns = duration_ns - min(int(record["waited_ns"]), duration_ns)
        if self._options.key is not None:
            worked_ns = int(record["worked_ns"])  # by several threads at once, it may be more than the duration
        values = record["values"]
        self._collected.traces.append(
            {
                "id": f"request {int(record['number'])}",
                "inputs": {
                    each.value.name: float(values.astype(np.int64)[i] if each.register.signed else values[i])
                    for i, each in enumerate(self._readings)
                },
                "outputs": {
                    "time_ms": duration_ns / 1e6,
                    "cpu_time_ms": worked_ns / 1e6,
                    "wait_time_ms": max(duration_ns - worked_ns, 0) / 1e6,
                },
                "calls": {self._functions[i].name: int(calls[i]) for i in np.flatnonzero(calls)},
            }
        )

    def _nothing(self, counters: dict[str, int], reason: str) -> CausalError:
        why = {"exit": "the process ended", "interrupt": "interrupted"}.get(reason, "the time is over")
        code = 130 if reason == "interrupt" else 1
        if self._collected.unreadable:
            return CausalError(
                f"{why}, and no argument of {self._collected.unreadable:,} requests could be read",
                "string-length:argN needs an argument that points to a string; see --input", code,
            )  # fmt: skip
        if counters["begun"]:
            return CausalError(
                f"{why}, and none of {counters['begun']:,} requests has ended",
                "choose another --end (default: where the begin function returns), or a longer --duration", code,
            )  # fmt: skip
        ends = f" ({counters['stray_ends']:,} ends were seen)" if counters["stray_ends"] else ""
        return CausalError(
            f"{why}, and no request began at {self._options.begin}{ends}",
            "check --begin, and that there is something to do for the process", code,
        )  # fmt: skip


def _check_key(options: RequestOptions) -> None:
    if options.key is None:
        if options.parts:
            raise UsageError("--part is for requests that have a key", "give --key argN, too")
        return
    check_argument(f"--key {options.key}", options.key)
    if options.end is None:
        raise UsageError(
            "requests with a key need an end", "the begin function may return long before: give --end FUNCTION"
        )


def program_of(pid: int) -> Binary:
    """What a process runs; raises CausalError for one that is not there, or cannot be traced."""
    try:
        path = os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        raise CausalError(f"there is no process {pid}", "check the number: pgrep -l NAME") from None
    except PermissionError:
        raise CausalError(f"may not look at process {pid}", capabilities.as_root()) from None
    except OSError as error:
        raise CausalError(f"cannot trace process {pid}: {error.strerror}", "kernel threads have no functions") from None
    if path.endswith(" (deleted)"):
        raise CausalError(
            f"the program of process {pid} was removed or replaced since it started", "restart it, then trace it"
        )
    main = Binary.load(path)
    capabilities.require()
    return main


def call_costs(functions: Sequence[Function]) -> NDArray[np.float64]:
    """Seconds that a call costs with its probe, (F,)."""
    return np.array([CHEAP_CALL_S if each.cheap else STEPPED_CALL_S for each in functions])


def over_budget(
    functions: Sequence[Function], calls: NDArray[np.int64], elapsed_s: float, budget: float
) -> dict[str, float]:
    """The fewest functions, hottest first, without whose probes the rest costs at most `budget` -> calls per second."""
    cost = call_costs(functions) * calls / elapsed_s
    left = float(cost.sum())
    dropped: dict[str, float] = {}
    for number in np.argsort(-cost, kind="stable"):
        if left <= budget:
            break
        dropped[functions[number].name] = float(calls[number]) / elapsed_s
        left -= float(cost[number])
    return dropped
