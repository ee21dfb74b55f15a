"""Runs experiments on a live target and writes each one down as soon as it is measured.

Clock, sleeping and randomness are arguments, so that everything here can be tested without waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from causal.activity import RecentActivity
from causal.planning import Lengths, Pair, Planner, stretch
from causal.profile import Arm as ArmName
from causal.profile import ProfileWriter, Visits, Window
from causal.profile import Region as RegionRecord
from causal.regions import Region, RegionTable
from causal.windows import Arm, EngineOptions, WindowPlan, WindowReading

ARM_NAMES: dict[Arm, ArmName] = {
    Arm.TREATED: "treated", Arm.PLACEBO: "placebo", Arm.DILATION: "dilation", Arm.PLAIN: "plain",
}  # fmt: skip
_REFRESH_S = 0.05
# The last edge is cut by a tick; ticks that do not come for so long are not coming.
_PATIENCE_NS = 2_000_000_000
_LOOK_NS = 500_000_000
# A pair that would end later than this after the time is up is not begun.
_OVERTIME_NS = 1_000_000_000
# The part of a window's CPU time that unpausable threads may run without having paid (rule 10): in the simulator that
# is 0 where they hand their debts on, and their whole share where they do not.
_MOST_AHEAD = 0.03
# A dilation window at a low level could not show much.
_LEAST_DOSE = 0.5


class Kernel(Protocol):
    """What experiments need of the engine."""

    options: EngineOptions

    def begin(self, plan: WindowPlan) -> int: ...
    def poll(self) -> WindowReading | None: ...
    def stop(self) -> None: ...
    def region_samples(self) -> npt.NDArray[np.uint64]: ...
    def region_waits(self, finished: bool = False) -> Mapping[int, int]: ...


@dataclass(frozen=True)
class Status:
    """Where a run is, for live progress. Times in seconds, rates in visits per second; gains are rough."""

    elapsed_s: float
    duration_s: float | None
    activity: str
    rates: Mapping[str, float]
    pairs: int
    best: Sequence[tuple[str, float, int]]  # region, gain per full speedup so far, pairs


@dataclass
class Surroundings:
    """The outside world of an experiment run: time, and what may end it."""

    alive: Callable[[], bool]
    interrupted: Callable[[], bool]
    refresh: Callable[[], None]  # often in a window
    prepare: Callable[[], None] = lambda: None  # between windows: may take its time
    throttled: Callable[[], int] = lambda: 0
    stolen: Callable[[], int] = lambda: 0  # ns of CPU time that the host gave to others, so far
    tune: Callable[[Mapping[str, float]], None] = lambda rates: None  # told once how often points are visited
    observe: Callable[[Status], None] = lambda status: None
    now_ns: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep


@dataclass
class _Running:
    """A rough estimate per region while the run goes on; the analysis makes the real one."""

    gain: float = 0.0
    speedup: float = 0.0
    pairs: int = 0


@dataclass
class Experiments:
    """Runs windows until the time is up, the target ends or the user interrupts; see `run`."""

    kernel: Kernel
    table: RegionTable
    writer: ProfileWriter
    planner: Planner
    points: Sequence[str]
    world: Surroundings
    only: Sequence[str] = ()  # patterns, for units whose regions turn up while the target runs
    windows: int = 0
    pairs: int = 0
    visits: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lengths = Lengths(self.planner.options)
        self._cpus: dict[int, float] = {}
        self._given_stretch = 1.0  # wall time per effective time of a baseline with a given speedup
        self._running: dict[int, _Running] = {}
        self._started_ns = self.world.now_ns()
        self._duration_ns: int | None = None
        self.activity = RecentActivity(self.kernel, self.world.now_ns)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self, duration_ns: int | None) -> str:
        """Experiment for so long (None: until the target ends). Returns why it ended: duration, exit or interrupt."""
        self._started_ns, self._duration_ns = self.world.now_ns(), duration_ns
        self._look()
        self.world.tune(self.lengths.rates)
        self._fit_budget()
        while (why := self._ended()) is None:
            pair = self.planner.next_pair(self._shares())
            if pair is None:
                self._plain(_LOOK_NS)
                continue
            if self._duration_ns is not None and self._least_ns(pair) > self._left_ns() + _OVERTIME_NS:
                self._plain(self._left_ns())  # too little for a pair is enough to know the undisturbed rate better
                continue
            if self._measure_pair(pair):
                self.pairs += 1
            if self.planner.wants_plain():
                self._plain(self.lengths.window_ns())
        self.kernel.stop()
        return why

    def _look(self) -> None:
        """Before the first experiment: what runs, and how often the points are visited."""
        for length in (_LOOK_NS, 2 * _LOOK_NS, 4 * _LOOK_NS):
            if self._ended() is None:
                self._plain(length)
            if self.activity.weights and all(self.lengths.rates.get(point) for point in self.points):
                return

    def _fit_budget(self) -> None:
        if self._duration_ns is None:
            return
        # A pair is a placebo and a treated window of about twice its length, each with its settle time.
        pair_ns = 3 * (self.lengths.window_ns() + self.lengths.settle_ns(0))
        self.planner.fit_budget(self._left_ns() / pair_ns, len(self.planner.candidates(self._shares())))

    def _ended(self) -> str | None:
        if self.world.interrupted():
            return "interrupt"
        if not self.world.alive():
            return "exit"
        if self._duration_ns is not None and self._left_ns() < self.planner.options.min_window_ns:
            return "duration"
        return None

    def _left_ns(self) -> int:
        assert self._duration_ns is not None
        return self._started_ns + self._duration_ns - self.world.now_ns()

    def _shares(self) -> dict[int, int]:
        return {
            region: round(1000 * weight)
            for region, weight in self.activity.weights.items()
            if region in self.table and region not in self.activity.crowds
            and (not self.only or self.table.matches(self.table.region(region), self.only))
        }

    def notes(self) -> tuple[str, ...]:
        """What the report must say about these experiments."""
        return tuple(
            f"{self.table.region(region).name} was not tried: {at_once:.0f} threads wait there at once, and "
            "virtual time would nearly stand still"
            for region, at_once in self.activity.crowds.items()
            if self.planner.only is None or region in self.planner.only
        )

    # --- windows -----------------------------------------------------------------------------------------------------

    def _plain(self, length_ns: int) -> None:
        reading = self._measure(WindowPlan(Arm.PLAIN, 0, 0.0, 10_000_000, self._within_budget(length_ns, 1.0)))
        if reading is not None:
            self._observe_rates(reading)
            self._record(Arm.PLAIN, Pair(0, 0, 0.0, ()), reading, 10_000_000, None)

    def _within_budget(self, length_ns: int, share: float) -> int:
        """A window is cut short rather than started in vain: `share` is its part of what is left of the time."""
        if self._duration_ns is None:
            return length_ns
        floor = self.planner.options.min_window_ns // 2
        return max(min(length_ns, int(self._left_ns() * share)), floor)

    def _stretched(self, arm: Arm, pair: Pair) -> tuple[float, float]:
        """The level of a window of this arm, and its wall time per effective time."""
        level = max(pair.level, _LEAST_DOSE) if arm is Arm.DILATION else pair.level
        return level, stretch(arm, self._cpus.get(pair.region, 1.0), level) * self._given_stretch

    def _least_ns(self, pair: Pair) -> int:
        """Wall time a pair takes with the shortest windows."""
        once = self.lengths.settle_ns(pair.region) + self.planner.options.min_window_ns // 2
        return int(sum(once * self._stretched(arm, pair)[1] for arm in pair.arms))

    def _measure_pair(self, pair: Pair) -> bool:
        name = self.table.region(pair.region).name
        readings: dict[Arm, WindowReading] = {}
        for arm in pair.arms:
            self._report(f"{name} {pair.level:.0%} {ARM_NAMES[arm]}")
            level, factor = self._stretched(arm, pair)
            settle_ns = int(self.lengths.settle_ns(pair.region) * factor)
            length_ns = self._within_budget(int(self.lengths.window_ns() * factor), 1 / len(pair.arms))
            # The placebo keeps the same clock, so that the same threads are signalled.
            plan = WindowPlan(arm, pair.region, level, settle_ns, length_ns)
            throttled = self.world.throttled()
            reading = self._measure(plan)
            if reading is None:
                return False
            void = "cgroup CPU quota throttled the target" if self.world.throttled() > throttled else ran_ahead(reading)
            if reading.counters.get("abandoned"):
                void = "the profiler was stopped meanwhile"
            self._record(arm, replace(pair, level=level), reading, settle_ns, void)
            readings[arm] = reading
            self._learn(arm, pair, reading)
        self._learn_from_pair(pair, readings)
        self._estimate_roughly(pair, readings)
        self._settle_verdict(pair, readings[Arm.TREATED], readings[Arm.PLACEBO])
        return True

    def _settle_verdict(self, pair: Pair, treated: WindowReading, placebo: WindowReading) -> None:
        gains = {}
        for name, fast, slow in zip(self.points, treated.points, placebo.points, strict=False):
            paces = fast.pace(treated.effective_ns), slow.pace(placebo.effective_ns)
            if min(paces) > 0:
                gains[name] = 1 - paces[1] / paces[0]
        rule = self.planner.observe(pair.region, pair.level, gains)
        if rule is not None:
            self.writer.settled(self.table.region(pair.region).name, rule)

    def _measure(self, plan: WindowPlan) -> WindowReading | None:
        """Run one window to its end; None when the target or the user ended it."""
        self.world.prepare()
        stolen_ns = self.world.stolen()
        end_ns = self.kernel.begin(plan)
        while (reading := self.kernel.poll()) is None:
            if self.world.interrupted() or not self.world.alive() or self.world.now_ns() > end_ns + _PATIENCE_NS:
                self.kernel.stop()
                return None
            left_s = (end_ns - self.world.now_ns()) / 1e9
            self.world.sleep(min(_REFRESH_S, max(left_s, 0.002)))
            self.world.refresh()
        self.activity.update()
        return replace(reading, counters={**reading.counters, "steal_ns": self.world.stolen() - stolen_ns})

    def _learn(self, arm: Arm, pair: Pair, reading: WindowReading) -> None:
        if arm is Arm.PLACEBO:
            self._observe_rates(reading)
            self._cpus[pair.region] = busy_cpus(reading)
            if self.planner.given and reading.effective_ns > 0:
                self._given_stretch = reading.wall_ns / reading.effective_ns
        if not self.points:
            return
        first, wall = reading.points[0].half_visits, reading.effective_ns
        second = reading.points[0].visits - first
        if arm is Arm.TREATED and 0 < reading.half_effective_ns < wall and min(first, second) >= 10:
            first_rate = first / reading.half_effective_ns
            self.lengths.observe_halves(pair.region, first_rate, second / (wall - reading.half_effective_ns))

    def _learn_from_pair(self, pair: Pair, readings: Mapping[Arm, WindowReading]) -> None:
        """Does the program do as much other work per visit as without the speedup, or does it live off a store?"""
        if not self.points or any(readings[arm].counters.get("spins") for arm in (Arm.TREATED, Arm.PLACEBO)):
            return
        work = [
            readings[arm].counters.get("linked_ns", 0) / max(readings[arm].points[0].visits, 1)
            for arm in (Arm.TREATED, Arm.PLACEBO)
        ]
        if min(work) > 0 and min(readings[arm].points[0].visits for arm in (Arm.TREATED, Arm.PLACEBO)) >= 10:
            self.lengths.observe_store(pair.region, work[0] / work[1])

    def _observe_rates(self, reading: WindowReading) -> None:
        for name, point in zip(self.points, reading.points, strict=False):
            self.lengths.observe_rate(name, point.visits, reading.effective_ns)

    def _record(self, arm: Arm, pair: Pair, reading: WindowReading, settle_ns: int, void: str | None) -> None:
        region = self.table.region(pair.region) if pair.region else None
        if region:
            self.writer.region(region_record(region))
        self.windows += 1
        window = window_record(arm, pair, region, reading, settle_ns, void, self.points)
        self.writer.window(window)
        for visits in window.points:
            self.visits[visits.name] = self.visits.get(visits.name, 0) + visits.delta

    # --- while it goes on --------------------------------------------------------------------------------------------

    def _estimate_roughly(self, pair: Pair, readings: Mapping[Arm, WindowReading]) -> None:
        treated, placebo = readings[Arm.TREATED], readings[Arm.PLACEBO]
        if not self.points or min(treated.effective_ns, placebo.effective_ns) <= 0:
            return
        fast, slow = (r.points[0].pace(r.effective_ns) for r in (treated, placebo))
        if fast > 0:
            running = self._running.setdefault(pair.region, _Running())
            running.gain += 1 - slow / fast
            running.speedup += pair.level
            running.pairs += 1

    def _report(self, activity: str) -> None:
        elapsed = (self.world.now_ns() - self._started_ns) / 1e9
        best = sorted(
            ((self.table.region(r).name, g.gain / g.speedup, g.pairs) for r, g in self._running.items()),
            key=lambda row: -row[1],
        )
        duration = None if self._duration_ns is None else self._duration_ns / 1e9
        self.world.observe(Status(elapsed, duration, activity, dict(self.lengths.rates), self.pairs, best[:5]))


def ran_ahead(reading: WindowReading) -> str | None:
    """Why a window is void in which threads that cannot be paused did much while they owed much; else None."""
    ran_ns = reading.selected_ns + reading.counters.get("others_ns", 0)
    ahead = reading.counters.get("ahead_ns", 0) > _MOST_AHEAD * ran_ns
    return "threads that cannot be paused ran ahead of the others" if ahead else None


def busy_cpus(reading: WindowReading) -> float:
    """How many CPUs the selected region kept busy."""
    return reading.selected_ns / max(reading.wall_ns, 1)


def region_record(region: Region) -> RegionRecord:
    """A region as the profile keeps it."""
    return RegionRecord(region.name, region.unit, region.binary or None, region.source or None, region.function or None)


def window_record(
    arm: Arm,
    pair: Pair,
    region: Region | None,
    reading: WindowReading,
    settle_ns: int,
    void: str | None,
    points: Sequence[str],
) -> Window:
    """A reading as the profile keeps it; `points` names the first of its points."""
    visits = (
        Visits(name, point.visits, point.first_ns, point.last_ns, point.half_visits, point.arrivals, point.in_flight_ns)
        for name, point in zip(points, reading.points, strict=False)
    )
    return Window(
        region=region.name if region else "",
        arm=ARM_NAMES[arm],
        pair=pair.number,
        level=pair.level,
        speedup=pair.level if arm is Arm.TREATED else 0.0,
        effective_ns=reading.effective_ns,
        wall_ns=reading.wall_ns,
        delay_ns=reading.delay_ns,
        start_ns=reading.start_ns,
        settle_ns=settle_ns,
        selected_samples=reading.selected_samples,
        samples=reading.samples,
        cpus=busy_cpus(reading),
        points=tuple(visits),
        half_effective_ns=reading.half_effective_ns,
        audit=audit(reading.counters),
        void=void,
    )


def audit(counters: Mapping[str, int]) -> dict[str, Any]:
    """The part of a window's counters that says whether the clock did what it should, under the profile's names."""
    names = {
        "pause_ns": "paid_ns", "wait_paid_ns": "waited_ns", "late_ns": "late_ns", "early_ns": "short_ns",
        "moved_ns": "moved_ns", "signals": "signals", "signals_lost": "signals_lost", "signals_void": "voided",
        "pauses": "pauses", "pause_capped": "capped", "placebo_ns": "placebo_ns", "unregistered": "unregistered",
        "blocked_mask": "blocked_mask", "small_stack": "small_stack", "forbidden": "forbidden",
        "wakes_target": "wakes_target", "wakes_outside": "wakes_outside", "core_debts": "core_debts",
        "idle_ns": "idle_ns", "idle_paid_ns": "idle_paid_ns", "others_ns": "others_ns", "linked_ns": "linked_ns",
        "ahead_ns": "ahead_ns",
        "outside_ns": "outside_ns", "steal_ns": "steal_ns",
        "spins": "spins", "answered_ns": "answered_ns", "wakes_peer": "wakes_peer",
        "selected": "exempted_samples",
    }  # fmt: skip
    return {new: counters.get(old, 0) for old, new in names.items()}
