"""End-to-end experiments: each execution of a command is one window, its end the only visit of a progress point.

For programs that have no progress of their own. The first execution is plain and shows what runs; then they come in
pairs of a treated and a placebo execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from causal.child import Child
from causal.engine import Engine
from causal.experiment import Status, region_record, window_record
from causal.planning import Pair, Planner
from causal.profile import ProfileWriter
from causal.regions import RegionTable
from causal.windows import Arm, PointReading, WindowPlan, WindowReading

END_TO_END = "end-to-end"
_REFRESH_S = 0.02
# Past this the clock stops by itself should we hang; it is moved on as long as we do not.
_HEARTBEAT_NS = 1_000_000_000


@dataclass
class Repetitions:
    """Executes the command again and again; `run` says how often."""

    engine: Engine
    table: RegionTable
    writer: ProfileWriter
    planner: Planner
    start: Callable[[], Child]
    refresh: Callable[[], None]
    interrupted: Callable[[], bool]
    observe: Callable[[Status], None]
    pairs: int = 0
    _shares: dict[int, int] = field(default_factory=dict)
    _done: int = 0
    _asked: int = 0
    _started_ns: int = 0
    _last_s: float = 0.0

    def run(self, executions: int) -> tuple[str, Child]:
        """Execute the command so many times. Returns why it ended, and the last child."""
        self._asked, self._started_ns = executions, time.monotonic_ns()
        child, reading = self._execute(Arm.PLAIN, 0, 0.0)
        if reading:
            self._record(Arm.PLAIN, Pair(0, 0, 0.0, ()), reading)
        self.planner.fit_budget(executions / 2, len(self.planner.candidates(self._shares)))
        while not self.interrupted() and self._done + 2 <= executions and child.status == 0:
            pair = self.planner.next_pair(self._shares)
            if pair is None:
                break
            arms = [arm for arm in pair.arms if arm is not Arm.DILATION or self._done + 3 <= executions]
            for arm in arms:
                child, reading = self._execute(arm, pair.region, pair.level)
                if reading is None or child.status != 0:
                    break
                self._record(arm, pair, reading)
            else:
                self.pairs += 1
        return ("interrupt" if self.interrupted() else "exit"), child

    def _execute(self, arm: Arm, region: int, level: float) -> tuple[Child, WindowReading | None]:
        self._report(arm, region, level)
        before, waited = self.engine.region_samples(), self.engine.region_waits()
        self.engine.begin_open(WindowPlan(arm, region, level, 0, _HEARTBEAT_NS))
        child = self.start()
        while child.poll() is None and not self.interrupted():
            self.engine.extend(_HEARTBEAT_NS)
            self.refresh()
            time.sleep(_REFRESH_S)
        reading = self.engine.end_open(PointReading(1, 0, None, None))
        self._done += 1
        self._last_s = reading.wall_ns / 1e9
        fresh = self.engine.region_samples() - before
        for found in np.flatnonzero(fresh):
            self._shares[int(found)] = self._shares.get(int(found), 0) + int(fresh[found])
        for waiting, spent_ns in self.engine.region_waits().items():
            at_most_ns = min(spent_ns - waited.get(waiting, 0), reading.wall_ns)
            self._shares[waiting] = self._shares.get(waiting, 0) + at_most_ns // self.engine.options.period_ns
        return child, None if child.status is None else reading

    def _record(self, arm: Arm, pair: Pair, reading: WindowReading) -> None:
        region = self.table.region(pair.region) if pair.region else None
        if region:
            self.writer.region(region_record(region))
        self.writer.window(window_record(arm, pair, region, reading, 0, None, [END_TO_END]))

    def _report(self, arm: Arm, region: int, level: float) -> None:
        name = f"{self.table.region(region).name} {level:.0%} " if region else ""
        elapsed = (time.monotonic_ns() - self._started_ns) / 1e9
        expected = elapsed + self._last_s * (self._asked - self._done) if self._done else None
        rate = {END_TO_END: 1 / self._last_s} if self._last_s else {}
        self.observe(Status(elapsed, expected, f"{name}{arm.name.lower()}", rate, self.pairs, ()))
