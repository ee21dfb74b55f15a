"""A recording: from the command line's wishes to a finished profile file. Here what all have in common; for a command
that we start see causal/running.py, for processes that run already causal/attachment.py.

Puts the parts together in the order that loses nothing: everything that can be checked is checked before the target
starts, the target starts on the clock, and whatever happens afterwards the clock stops and the file can be read.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import causal
from causal.calibration import OVERHEAD_BUDGET, choose_period, measure_sample_cost
from causal.child import Owner
from causal.engine import Engine
from causal.experiment import Experiments, Status, Surroundings
from causal.injection import Handlers, Table, missing
from causal.interruption import Interruption
from causal.planning import Planner, PlanOptions
from causal.points import Found, Points
from causal.processes import Claims, look_up
from causal.profile import End, Header, ProfileWriter, ProgressPoint
from causal.project import ProjectScope
from causal.quota import stolen_ns
from causal.regions import RegionTable, Scope
from causal.selection import find_given
from causal.symbols.elf import Binary
from causal.target import Target
from causal.undisturbed import Undisturbed, time_left_alone, watch
from causal.waiting import LOCKS_ARE_COUNTED, WaitClass, mode_of
from causal.waiting import UNITS as WAIT_UNITS
from causal.windows import Attribution, EngineOptions

_MOST_WITHOUT = 50  # modules without call-frame information that are listed
# Wakeups in a period beyond which contended locks are predicted several points too low.
_CONTENDED_LOCKS_RESOLVED = 0.25


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """What a recording was asked to do. Durations in seconds, speedups in percent; None leaves the choice to us."""

    output: Path
    points: Sequence[str] = ()
    latencies: Sequence[str] = ()
    accept_many: bool = False  # a point at hundreds of places is meant
    unit: str | None = None
    binaries: Sequence[str] = ()
    sources: Sequence[str] = ()
    only: Sequence[str] = ()
    given: Sequence[tuple[str, float]] = ()  # regions (patterns) and the fractions they are faster by in all windows
    speedups: Sequence[int] | None = None
    duration_s: float | None = None
    period_ns: int | None = None
    overhead: float = OVERHEAD_BUDGET
    seed: int | None = None
    force: bool = False
    companions: Sequence[int] = ()  # pids on the clock that are no regions
    pauses: bool = True
    attribution: Attribution = Attribution.INNERMOST
    engine: EngineOptions = field(default_factory=EngineOptions)


@dataclass(frozen=True)
class Outcome:
    """How a recording ended: `status` is the command's (None: it still ran), `reason` duration, exit or interrupt."""

    path: Path
    reason: str
    status: int | None
    keeps_running: int | None = None  # pid of a command left alone


@dataclass(frozen=True)
class Subject:
    """What is profiled, examined before anything is done to it."""

    program: str  # the file that is executed
    main: Binary  # the ELF file behind it: itself, or the interpreter of a script
    owner: Owner | None
    scope: Scope
    table: RegionTable
    only: frozenset[int] | None
    points: Found
    has_macros: bool = False  # the program counts by itself (coz.h, causal.h), and we can read it

    @property
    def unit(self) -> str:
        return self.table.unit

    def progress_points(self) -> tuple[ProgressPoint, ...]:
        """The points of the command line as the profile keeps them."""
        points = [ProgressPoint(place.spec.name, place.spec.text) for place in self.points.points]
        return (*points, *(ProgressPoint(each.name, each.text, "latency") for each in self.points.latencies))


def _resolution(wakes: int, run_ns: int, period_ns: int) -> str | None:
    """What to say when threads hand over faster than samples can tell. Limits from the simulator (tests/simulation)."""
    per_period = wakes * period_ns / max(run_ns, 1)
    often = f"threads wake each other {wakes * 1e9 / max(run_ns, 1):,.0f} times a second, "
    if per_period > 1:
        return (
            f"{often}more than once in a sampling period ({period_ns / 1e6:.2f} ms): what they hand over meanwhile is "
            "smeared, and gains may be off by ten points and more; a larger --overhead allows a shorter period"
        )
    if per_period > _CONTENDED_LOCKS_RESOLVED:
        return (
            f"{often}which a sampling period of {period_ns / 1e6:.2f} ms just resolves: if that is for a contended "
            "lock, gains are understated by some points"
        )
    return None


@contextlib.contextmanager
def prepared(
    options: RecordingOptions,
    subject: Subject,
    interruption: Interruption,
    observe: Callable[[Status], None],
    report: Callable[[Path], None],
    warn: Callable[[str], None],
) -> Iterator[Recorder]:
    """The engine loaded and the profile opened, with nothing on the clock yet; both are closed at the end."""
    rng = random.Random(options.seed)
    given = find_given(options, subject.table, subject.only)
    began_ns = time.monotonic_ns()
    with (
        Engine(replace(options.engine, attribution=options.attribution), rng) as engine,
        ProfileWriter(options.output, options.force) as writer,
        contextlib.closing(Claims()) as claims,
    ):
        places = subject.points.places
        engine.load(len(places), mode_of(subject.unit), any(place.stretches for place in places))
        engine.sample_cost_ns = measure_sample_cost(engine)
        engine.set_period(options.period_ns or choose_period(engine.sample_cost_ns, options.overhead))
        engine.write_ranges(subject.table.ranges)
        engine.give(given)
        points = Points(engine, subject.points)
        points.attach()
        handlers = Handlers(Table(engine.answers_fd, engine.options.max_answers)) if options.pauses else None
        target = Target(engine, subject.table, subject.scope, handlers, claims, points.sampled_slice)
        yield Recorder(
            options, subject, engine, writer, rng, interruption, observe, report, warn, began_ns, handlers, claims,
            target, points, given,
        )  # fmt: skip


@dataclass
class Recorder:
    """What all recordings have in common once everything is loaded: the target, and how the profile is written."""

    options: RecordingOptions
    subject: Subject
    engine: Engine
    writer: ProfileWriter
    rng: random.Random
    interruption: Interruption
    observe: Callable[[Status], None]
    report: Callable[[Path], None]
    warn: Callable[[str], None]
    began_ns: int
    handlers: Handlers | None
    claims: Claims
    target: Target
    points: Points
    given: Mapping[int, float] = field(default_factory=dict)
    startup_ns: int = 0

    def add_companions(self) -> None:
        """Put the processes of --with on the clock. Raises CausalError when one cannot be."""
        for pid in self.options.companions:
            process = look_up(pid)
            self.claims.claim_or_refuse(process)
            self.engine.add_process(pid, only_clock=True)
            self.engine.add_blocked(pid)
            if self.handlers:
                self.handlers.bring(process, self.handlers.is_go(process.executable))

    def can_pause(self) -> bool:
        """Whether experiments are possible at all: something of the target can be paused."""
        return self.handlers is not None and self.target.registered()

    def announce_missing(self) -> None:
        """Say before a long recording what it will lack, unless that was asked for."""
        if self.handlers is not None:
            for line in missing(self.handlers, self.target.was_registered):
                self.warn(line)

    def planner(self, observe_only: bool = False) -> Planner:
        # Threads that pause leave their cores to others: time cannot be stretched where they wait for cores.
        undilated = frozenset({int(WaitClass.RUNQUEUE)} if self.subject.unit == "wait" else ())
        plan = PlanOptions(undilated=undilated)
        return Planner(self.rng, self.options.speedups, self.subject.only, plan, observe_only, self.given)

    def record(
        self, alive: Callable[[], bool], throttled: Callable[[], int], exit_status: Callable[[], int | None]
    ) -> str:  # fmt: skip
        """Experiment on a target that runs for as long as asked for, then leave it alone for a moment and finish the
        profile. Returns why it ended."""
        duration_s = self.options.duration_s
        alone_s = 0.0 if self.given else time_left_alone(duration_s)
        run = self.experiments(alive, throttled)
        reason = run.run(None if duration_s is None else round(duration_s * 1e9))
        leave = None
        if alone_s and reason == "duration":
            leave = partial(self._leave_alone, alone_s, lambda: alive() and not self.interruption())
        self.finish(reason, exit_status(), run.pairs, run.notes(), leave)
        return reason

    def _leave_alone(self, seconds: float, go_on: Callable[[], bool]) -> Undisturbed | None:
        self.engine.let_go()
        return watch(self.points.totals, seconds, go_on, time.monotonic_ns, time.sleep)

    def experiments(self, alive: Callable[[], bool], throttled: Callable[[], int]) -> Experiments:
        """Windows on a target that runs."""
        world = Surroundings(
            alive=alive, interrupted=self.interruption, refresh=partial(self.refresh, building=False),
            prepare=self.refresh, throttled=throttled, stolen=stolen_ns, tune=self._tune_period, observe=self.observe,
        )  # fmt: skip
        return Experiments(
            self.engine, self.subject.table, self.writer, self.planner(not self.can_pause()), self.points.names,
            world, () if self.subject.only is not None else self.options.only,
        )  # fmt: skip

    def refresh(self, building: bool = True) -> None:
        """To be called a few times a second while the target runs; `building` as for Target.refresh."""
        self.target.refresh(building)
        self.points.refresh(self.target.files() if self.points.awaits else ())
        self.engine.wander()

    def _tune_period(self, rates: Mapping[str, float]) -> None:
        fastest = max(rates.values(), default=0.0)
        if self.options.period_ns is None and fastest > 0:
            engine = self.engine
            engine.set_period(choose_period(engine.sample_cost_ns, self.options.overhead, 1e9 / fastest))

    def write_header(self, command: Sequence[str], pid: int, points: Sequence[ProgressPoint], **options: Any) -> None:
        """Write down what is profiled and how; `options` are those of the verb alone."""
        self.writer.header(
            Header(
                program=f"causal-bpf {causal.__version__}",
                command=tuple(command),
                pid=pid,
                started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                machine=machine(),
                options={
                    "unit": self.subject.unit,
                    "attribution": self.options.attribution.name.lower(),
                    "period_ns": self.engine.options.period_ns,
                    "seed": self.options.seed,
                    "duration_s": self.options.duration_s,
                    **options,
                    "sample_cost_ns": self.engine.sample_cost_ns,
                    "overhead": self.options.overhead,
                    "threshold_ns": self.options.engine.threshold_ns,
                    "max_settle_ns": PlanOptions().max_settle_ns,
                    "only": list(self.options.only),
                    "given": {self.subject.table.region(number).name: part for number, part in self.given.items()},
                    "speedups": list(self.options.speedups or ()),
                },
                progress_points=tuple(points),
            )
        )
        self.startup_ns = time.monotonic_ns() - self.began_ns
        self.writer.startup(self.startup_ns)

    def finish(
        self, reason: str, exit_status: int | None, pairs: int, notes: Sequence[str] = (),
        leave_alone: Callable[[], Undisturbed | None] | None = None,
    ) -> None:  # fmt: skip
        """Write the last records; `notes` are for the user, `leave_alone` is called when all else has been counted."""
        counters = self.engine.counters()
        samples, serial = self.engine.region_samples(), self.engine.serial_samples()
        for region in self.subject.table:
            if samples[region.id]:
                # What runs anywhere below a region is counted for it, but shared out to the innermost one only.
                inclusive = self.options.attribution is Attribution.ANY_FRAME
                own = None if inclusive else float(serial[region.id])
                self.writer.samples(region.name, int(samples[region.id]), own)
        self._write_waits()
        run_ns = time.monotonic_ns() - self.began_ns
        self.writer.runtime(run_ns)
        diagnosis = self._diagnosis(counters, pairs) | {"serial_samples": round(float(serial.sum()), 2)}
        messages = (*self._messages(counters), *notes)
        if leave_alone is not None and (undisturbed := leave_alone()) is not None:
            diagnosis["undisturbed"] = undisturbed.record()
        self.writer.end(
            End(
                reason=reason,
                exit_status=exit_status,
                samples=counters["samples"],
                samples_in_scope=counters["in_scope"],
                period_ns=self.engine.options.period_ns,
                run_ns=run_ns,
                diagnosis=diagnosis,
                messages=messages,
            )
        )

    def _write_waits(self) -> None:
        table, found = self.subject.table, dict[str, dict[WaitClass, int]]()
        for (place, kind), spent_ns in sorted(self.engine.waits().items()):
            if self.subject.unit == "wait":
                name = table.site_name(int(kind), place)
            else:
                name = table.region(place).name if place else ""
            found.setdefault(name, {})[kind] = spent_ns
        for name, classes in found.items():
            self.writer.waits(name, {kind.label: spent_ns for kind, spent_ns in sorted(classes.items())})

    def _diagnosis(self, counters: dict[str, int], pairs: int) -> dict[str, Any]:
        renamed = {"stacks_truncated": "truncated", "signals_voided": "signals_void"}
        kept = (
            "unmapped", "threads_lost", "processes_lost", "signals", "signals_lost", "pauses", "pause_ns", "late_ns",
            "unregistered", "blocked_mask", "small_stack", "forbidden", "wakes_target", "wakes_outside",
            "wakes_helper", "moved_ns", "kernel_mode", "pause_capped", "stacks_whole", "stacks_guessed", "stacks_deep",
            "stacks_lost",
        )  # fmt: skip
        return {
            "startup_s": self.startup_ns / 1e9,
            "pairs": pairs,
            "unpaused": int(self.handlers is None or (bool(self.handlers.lacking) and not self.target.was_registered)),
            "visits": self.points.totals(),
            "probe_costs": self.points.costs(),
            **{new: counters[old] for new, old in renamed.items()},
            **{name: counters[name] for name in kept},
            "pause_error_p99_ns": quantile_of_powers(self.engine.pause_errors(), 0.99),
            "unwinding": self._unwinding(),
        }

    def _unwinding(self) -> dict[str, Any]:
        modules = self.target.modules
        if modules is None:
            return {}
        without = [
            {"path": path, "frames": frames, "reason": modules.lacking.get(path, "")}
            for path, frames in islice(self.target.without_information().items(), _MOST_WITHOUT)
        ]
        return {"modules": modules.used[0], "rows": modules.used[1], "without": without}

    def _messages(self, counters: dict[str, int]) -> tuple[str, ...]:
        messages = [*missing(self.handlers, self.target.was_registered), *self.points.messages()]
        messages += [*(f"{path}: {why}" for path, why in self.target.unreadable.items())]
        if isinstance(self.subject.scope, ProjectScope):
            messages += [f"{path}: {why}" for path, why in self.subject.scope.notes.items()]
        elif self.options.unit is None and not self.subject.main.is_stripped:
            messages.append(
                f"{self.subject.main.path} has no line information, so functions are the regions: build it with -g, or "
                "install its debug package, to see lines"
            )
        if self.subject.main.is_stripped and self.subject.unit == "function":
            messages.append(
                f"{self.subject.main.path} is stripped: only functions it exports can be regions; "
                "--unit module and --unit thread still work"
            )
        refused = sum(counters[name] for name in ("unregistered", "blocked_mask", "small_stack", "forbidden"))
        if refused > counters["pauses"]:
            messages.append(
                "most pauses were not possible (no handler, signal blocked, small signal stack, or seccomp): "
                "predictions are unreliable"
            )
        if self.options.only and self.subject.only is None:
            seen = [region.name for region in self.subject.table]
            if not any(self.subject.table.matches(region, self.options.only) for region in self.subject.table):
                messages.append(f"--only matched no {self.subject.unit}; there were {', '.join(seen) or 'none'}")
        run_ns = time.monotonic_ns() - self.began_ns - self.startup_ns
        if resolution := _resolution(counters["wakes_target"], run_ns, self.engine.options.period_ns):
            messages.append(resolution)
        if self.subject.unit in WAIT_UNITS and any(kind is WaitClass.LOCK for _, kind in self.engine.waits()):
            messages.append(LOCKS_ARE_COUNTED)
        if counters["threads_lost"]:
            messages.append(f"{counters['threads_lost']} threads did not fit the table; raise --max-threads")
        return tuple(messages)


def quantile_of_powers(histogram: Sequence[int], q: float) -> int | None:
    """Upper bound of the bucket that holds the quantile; bucket i counts values below 2**(i+1)."""
    total = sum(histogram)
    seen = 0
    for i, count in enumerate(histogram):
        seen += count
        if total and seen >= q * total:
            return 1 << (i + 1)
    return None


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "model": model}
