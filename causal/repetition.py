"""End-to-end experiments: each execution of a command is one window, its end the only visit of a progress point.

For programs that have no progress of their own. The first execution is plain and shows what runs; then they come in
pairs of a treated and a placebo execution.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from causal.activity import RecentActivity
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
    can_pause: Callable[[], bool]  # asked after the first execution
    duration_s: float | None = None  # no pair begins after this time
    pairs: int = 0
    _done: int = 0
    _asked: int = 0
    _started_ns: int = 0
    _last_s: float = 0.0

    def __post_init__(self) -> None:
        # All executions count alike, however long ago.
        self._activity = RecentActivity(self.engine, time.monotonic_ns, fading=1.0)

    def _shares(self) -> dict[int, int]:
        return {region: round(weight) for region, weight in self._activity.weights.items() if region in self.table}

    def run(self, executions: int) -> tuple[str, Child]:
        """Execute the command so often, or as long as it may take. Returns why it ended, and the last child."""
        self._asked, self._started_ns = executions, time.monotonic_ns()
        child, reading = self._execute(Arm.PLAIN, 0, 0.0)
        if reading:
            self._record(Arm.PLAIN, Pair(0, 0, 0.0, ()), reading)
        if not self.can_pause():
            return self._look(child)
        self.planner.fit_budget(self._affordable() / 2, len(self.planner.candidates(self._shares())))
        while self._may_go_on(child) and self._done + 2 <= executions:
            pair = self.planner.next_pair(self._shares())
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
        return self._reason(child), child

    def _look(self, child: Child) -> tuple[str, Child]:
        """The executions that are left, as they are."""
        while self._may_go_on(child) and self._done < self._asked:
            child, reading = self._execute(Arm.PLAIN, 0, 0.0)
            if reading and child.status == 0:
                self._record(Arm.PLAIN, Pair(0, 0, 0.0, ()), reading)
        return self._reason(child), child

    def _left_s(self) -> float:
        elapsed_s = (time.monotonic_ns() - self._started_ns) / 1e9
        return math.inf if self.duration_s is None else self.duration_s - elapsed_s

    def _may_go_on(self, child: Child) -> bool:
        return not self.interrupted() and self._left_s() > 0 and child.status == 0

    def _affordable(self) -> float:
        """How many executions there will be, this one's time taken for that of all."""
        return min(float(self._asked), 1 + max(self._left_s(), 0.0) / max(self._last_s, 1e-3))

    def _reason(self, child: Child) -> str:
        if self.interrupted():
            return "interrupt"
        if child.status:  # it failed, however late: its exit code is the one to return
            return "exit"
        return "duration" if self._left_s() <= 0 else "exit"

    def _execute(self, arm: Arm, region: int, level: float) -> tuple[Child, WindowReading | None]:
        self._report(arm, region, level)
        self.engine.begin_open(WindowPlan(arm, region, level, 0, _HEARTBEAT_NS))
        child = self.start()
        while child.poll() is None and not self.interrupted():
            self.engine.extend(_HEARTBEAT_NS)
            self.refresh()
            time.sleep(_REFRESH_S)
        reading = self.engine.end_open(PointReading(1, 0, None, None))
        self._done += 1
        self._last_s = reading.wall_ns / 1e9
        self._activity.update()
        return child, None if child.status is None else reading

    def _record(self, arm: Arm, pair: Pair, reading: WindowReading) -> None:
        region = self.table.region(pair.region) if pair.region else None
        if region:
            self.writer.region(region_record(region))
        self.writer.window(window_record(arm, pair, region, reading, 0, None, [END_TO_END]))

    def _report(self, arm: Arm, region: int, level: float) -> None:
        name = f"{self.table.region(region).name} {level:.0%} " if region else ""
        elapsed = (time.monotonic_ns() - self._started_ns) / 1e9
        left = min(self._last_s * (self._asked - self._done), max(self._left_s(), 0.0))
        expected = elapsed + left if self._done else None
        rate = {END_TO_END: 1 / self._last_s} if self._last_s else {}
        self.observe(Status(elapsed, expected, f"{name}{arm.name.lower()}", rate, self.pairs, ()))
