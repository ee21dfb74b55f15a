"""Traces of a command over many inputs: calls are counted in one run of each input, time is taken in others.

Phases, each of which can be interrupted and taken up again:

1. a warm-up run of every input, whose time only serves for planning;
2. one run of every input with probes, which counts calls; probes that cost too much are taken away;
3. `repeat` rounds over all inputs, each in a random order of its own, without any probe.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import capabilities
from causal.child import invoking_user
from causal.errors import CausalError
from causal.symbols.elf import Binary
from causal.symbols.executables import find_command, resolve_executable
from causal.tracing.execution import INSTRUCTIONS, TIMED_OUT, Ended, Executor, check_counter
from causal.tracing.functions import DEFAULT_MAX_FUNCTIONS, Function, Selection, select_functions
from causal.tracing.inputs import RunInput, check_command, substitute
from causal.tracing.journal import Journal, Run, write_traces
from causal.tracing.probes import CallCounts

MEASURES = ("wall", "cpu", "instructions")
# Seconds per call of a probed function whose first instruction is emulated, and single-stepped (measured in a VM).
CHEAP_CALL_S, STEPPED_CALL_S = 0.6e-6, 17e-6
# Runs with probes may always take this long in all, shared out among the inputs, within these bounds for each.
_FREE_TOTAL_S, _LEAST_FREE_S, _MOST_FREE_S = 60.0, 0.3, 2.0
# When probes are dropped, what stays should have cost less than this share of what all did.
_KEPT_SHARE = 0.2


@dataclass(frozen=True)
class TraceOptions:
    """What `trace` was asked to do; times in seconds. `max_slowdown` 0 keeps the hottest probes, too."""

    command: Sequence[str]
    output: Path
    binaries: Sequence[str] = ()
    patterns: Sequence[str] = ()
    max_functions: int = DEFAULT_MAX_FUNCTIONS
    repeat: int = 5
    measure: str = "wall"
    stdin: bool = False
    seed: int = 0
    timeout_s: float | None = None
    max_slowdown: float = 20.0
    force: bool = False


@dataclass(frozen=True)
class Status:
    """For progress bars: work done and to do, in estimated seconds."""

    phase: str
    done_s: float
    total_s: float


@dataclass(frozen=True)
class Summary:
    """What came out. `exit_codes`: code -> inputs that ended so; `complaints`: code -> an example of stderr.

    `threads` are the names of threads, where there were several in a run.
    """

    path: Path
    traces: int
    inputs: int
    functions: int
    called: int
    threads: list[str]
    exit_codes: dict[int, int]
    complaints: dict[int, str]
    dropped: dict[str, float]
    refused: list[str]
    notes: list[str]
    resumed: bool
    finished: bool


class RunTracer:
    """Examines everything first (`__init__` raises CausalError with a remedy), then `trace` does the work."""

    def __init__(
        self,
        options: TraceOptions,
        inputs: Sequence[RunInput],
        interrupted: Callable[[], bool],
        show: Callable[[Status], None],
    ) -> None:
        check_command(options.command, inputs, options.stdin)
        first = substitute(options.command, inputs[0])[0]
        self._options = options
        self._inputs = list(inputs)
        self._interrupted = interrupted
        self._show = show
        program = find_command(first)
        main = Binary.load(resolve_executable(first))
        capabilities.require()
        selection: Selection = select_functions(main, options.binaries, options.patterns, options.max_functions)
        self.functions: list[Function] = selection.functions
        self._notes = list(selection.notes)
        if program != main.path and not options.binaries and not program.endswith(main.name):
            self._notes.append(f"the functions of {main.name}, which runs {first}, are counted")
        counter = INSTRUCTIONS if options.measure == "instructions" else None
        if counter:
            check_counter(counter)
        self._executor = Executor(program, invoking_user(), options.timeout_s)
        # Counting takes next to no time, but other runs have no use for it.
        self._timing = Executor(program, invoking_user(), options.timeout_s, counter=counter)
        self._refused: list[str] = []
        self._number = {each.name: number for number, each in enumerate(self.functions)}
        header = {
            "command": list(options.command),
            "binaries": list(options.binaries),
            "functions": list(options.patterns),
            "program": main.build_id or main.path,
            "stdin": options.stdin,
        }
        self._journal = Journal(options.output, header, options.force)
        self._done_s = 0.0
        self._left_s: dict[str, float] = {}

    def trace(self) -> Summary:
        """Do what is left to do. An interruption ends it early with the traces that are complete."""
        try:
            self._plan()
            self._warm_up()
            self._count()
            self._time()
        finally:
            self._journal.close()
        return self._finish()

    # --- planning ----------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Estimate the seconds of work that each phase has left."""
        runs = [self._journal.run(each.id) for each in self._inputs]
        known = [run.warm_ns / 1e9 for run in runs if run.warm_ns is not None]
        typical = float(np.mean(known)) if known else 0.01
        expected = [typical if run.warm_ns is None else run.warm_ns / 1e9 for run in runs]
        missing = [max(self._options.repeat - len(run.measured(self._options.measure)), 0) for run in runs]
        self._left_s = {
            "warm-up": sum(e for run, e in zip(runs, expected, strict=True) if run.warm_ns is None),
            # How much slower probes are is not known; a guess by which the bar moves evenly for most programs.
            "counting calls": sum(3 * e for run, e in zip(runs, expected, strict=True) if run.calls is None),
            "timing": sum(n * e for n, e in zip(missing, expected, strict=True)),
        }

    def _tell(self, phase: str, spent_s: float, share: float, detail: str = "") -> None:
        """Tell what is done; `share` of what was left of the phase is done now."""
        self._left_s[phase] *= 1 - share
        self._done_s += spent_s
        self._show(Status(phase + detail, self._done_s, self._done_s + sum(self._left_s.values())))

    # --- the phases --------------------------------------------------------------------------------------------------

    def _execute(self, run_input: RunInput, timing: bool = False, **callbacks: Any) -> Ended:
        command = substitute(self._options.command, run_input)
        stdin = run_input.words[""] if self._options.stdin else None
        return (self._timing if timing else self._executor).execute(command, stdin, **callbacks)

    def _warm_up(self) -> None:
        waiting = [each for each in self._inputs if self._journal.run(each.id).warm_ns is None]
        for index, each in enumerate(waiting):
            if self._interrupted():
                return
            ended = self._execute(each)
            self._journal.add(
                {"type": "warm", "id": each.id, "wall_ns": ended.wall_ns, "exit_code": ended.status,
                 "complaint": ended.complaint if ended.status else ""}
            )  # fmt: skip
            if index % (len(waiting) // 50 + 1) == 0:
                self._plan()
            self._tell("warm-up", ended.wall_ns / 1e9, 1 / (len(waiting) - index))

    def _count(self) -> None:
        waiting = [each for each in self._inputs if self._journal.run(each.id).calls is None]
        if not waiting or self._interrupted():
            return
        self._plan()
        with CallCounts(self.functions) as counts:
            self._attach(counts)
            for index, each in enumerate(waiting):
                begin = time.monotonic()
                while not self._interrupted() and not self._count_one(counts, each):
                    pass
                self._tell("counting calls", time.monotonic() - begin, 1 / (len(waiting) - index))
            if counts.untraced:
                self._notes.append(f"{counts.untraced:,} child processes were not counted: too many of them")

    def _attach(self, counts: CallCounts) -> None:
        dropped = {self._number[name] for name in self._journal.dropped if name in self._number}
        self._refused = [self.functions[number].name for number in counts.attach(dropped)]

    def _count_one(self, counts: CallCounts, run_input: RunInput) -> bool:
        """Count one input; False when it has to be done again, because hot probes had to be taken away."""
        plain_s = (self._journal.run(run_input.id).warm_ns or 0) / 1e9
        free_s = min(max(_FREE_TOTAL_S / len(self._inputs), _LEAST_FREE_S), _MOST_FREE_S)
        allowed_s = max(free_s, self._options.max_slowdown * plain_s)
        hot: dict[str, float] = {}

        def watch(elapsed_s: float) -> None:
            if not hot and elapsed_s > allowed_s:
                hot.update(find_hot(self.functions, counts.counts(), elapsed_s, plain_s))
                if hot:
                    counts.detach()  # and let it come to its end at full speed

        limited = self._options.max_slowdown > 0
        ended = self._execute(run_input, started=counts.trace, watch=watch if limited else None)
        if hot:
            self._journal.add({"type": "drop", "functions": hot})
            self._attach(counts)
            return False
        threads = counts.by_thread()
        record = {"type": "count", "id": run_input.id, "exit_code": ended.status, "calls": self._named(counts.counts())}
        if len(threads) > 1:
            record["threads"] = {
                name: {"threads": each.threads, "calls": self._named(each.calls)} for name, each in threads.items()
            }
        self._journal.add(record)
        return True

    def _named(self, calls: NDArray[np.int64]) -> dict[str, int]:
        return {self.functions[i].name: int(calls[i]) for i in np.flatnonzero(calls)}

    def _time(self) -> None:
        self._plan()
        measure = self._options.measure
        runs = [self._journal.run(each.id) for each in self._inputs]
        waiting = sum(max(self._options.repeat - len(run.measured(measure)), 0) for run in runs)
        for number in range(self._options.repeat):
            order = list(self._inputs)
            random.Random(f"{self._options.seed}/{number}").shuffle(order)
            for each in order:
                run = self._journal.run(each.id)
                if self._interrupted():
                    return
                # A run that was killed once would be killed again: its time is known well enough.
                done = run.measured(measure)
                if number in done or (run.exit_code == TIMED_OUT and done):
                    continue
                ended = self._execute(each, timing=True)
                record = {"type": "time", "id": each.id, "round": number, "wall_ns": ended.wall_ns,
                          "cpu_ns": ended.cpu_ns, "exit_code": ended.status}  # fmt: skip
                if ended.count is not None:
                    record["instructions"] = ended.count
                self._journal.add(record)
                detail = f", round {number + 1} of {self._options.repeat}"
                self._tell("timing", ended.wall_ns / 1e9, 1 / max(waiting, 1), detail)
                waiting -= 1

    # --- the result --------------------------------------------------------------------------------------------------

    def _finish(self) -> Summary:
        measure = self._options.measure
        known = [(each, self._journal.run(each.id)) for each in self._inputs]
        done = [(each, run) for each, run in known if run.complete(measure)]
        if not done:
            raise CausalError(
                "interrupted before a trace was complete",
                "give the same command again to go on: what was done is kept",
                130 if self._interrupted() else 1,
            )
        dropped = self._journal.dropped
        traces = [make_trace(each, run, measure, dropped) for each, run in done]
        codes: dict[int, int] = {}
        complaints: dict[int, str] = {}
        for _, run in done:
            if run.exit_code:
                codes[run.exit_code] = codes.get(run.exit_code, 0) + 1
                complaints.setdefault(run.exit_code, run.complaint)
        repeat = self._options.repeat
        return Summary(
            path=write_traces(self._options.output, traces),
            traces=len(traces),
            inputs=len(self._inputs),
            functions=len(self.functions),
            called=len({name for trace in traces for name in trace["calls"]}),
            threads=list(dict.fromkeys(name for trace in traces for name in trace.get("threads", ()))),
            exit_codes=codes,
            complaints=complaints,
            dropped=dropped,
            refused=self._refused,
            notes=self._notes,
            resumed=self._journal.resumed,
            finished=len(done) == len(self._inputs)
            and all(len(run.measured(measure)) >= repeat or run.exit_code == TIMED_OUT for _, run in done),
        )


def make_trace(run_input: RunInput, run: Run, measure: str, dropped: dict[str, float]) -> dict[str, Any]:
    """One line of `traces.jsonl`; what was measured first is what `explain` explains by default."""
    names = {"wall": ("wall_time_ms", 1e6), "cpu": ("cpu_time_ms", 1e6), "instructions": ("instructions", 1)}
    outputs = {}
    for each in sorted(MEASURES, key=lambda name: name != measure):
        name, unit = names[each]
        if values := run.measured(each):
            outputs[name] = [round(values[r] / unit, 6) for r in sorted(values)]
    trace: dict[str, Any] = {"id": run_input.id, "inputs": run_input.values, "outputs": outputs}
    if run.exit_code:
        trace["exit_code"] = run.exit_code

    def kept(calls: dict[str, int]) -> dict[str, int]:
        return {name: n for name, n in calls.items() if name not in dropped}

    trace["calls"] = kept(run.calls or {})
    if run.threads:
        trace["threads"] = {name: each | {"calls": kept(each["calls"])} for name, each in run.threads.items()}
    return trace


def find_hot(
    functions: Sequence[Function], counts: NDArray[np.int64], elapsed_s: float, plain_s: float
) -> dict[str, float]:
    """Functions whose probes make a run slow -> calls per second; {} where probes are not what makes it slow.

    `counts` (F,) were made in `elapsed_s`, in which a run without probes would have taken `plain_s`.
    """
    cost = np.array([CHEAP_CALL_S if each.cheap else STEPPED_CALL_S for each in functions]) * counts
    total = float(cost.sum())
    # Costs are estimates, five or ten times too high on bare metal; and some other load may slow the run down.
    if total < 0.05 * (elapsed_s - plain_s):
        return {}
    hot: dict[str, float] = {}
    left = total
    for number in np.argsort(-cost, kind="stable"):
        if left <= _KEPT_SHARE * total:
            break
        hot[functions[number].name] = float(counts[number]) / elapsed_s
        left -= float(cost[number])
    return hot
