"""Runs a program twice, really sped up and virtually sped up, and compares its progress.

A gain is 1 - T/T0, T and T0 the times between visits of the progress point with and without the speedup: as COZ, and as
the report of the profiler, put it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass

from tests.simulation.engine_model import Arm, EngineModel, Options
from tests.simulation.machine import Machine, Observer
from tests.simulation.programs import Program


@dataclass(frozen=True)
class Timeline:
    """When the progress point was visited, in effective ns since the window began (the first after settling)."""

    visits: list[int]
    wall_ns: int
    granted_ns: int
    counts: Counter[str]
    latency_ns: float = math.nan

    @property
    def interval_ns(self) -> float:
        """Mean effective time between visits; not a number when there were too few, as time may stand still."""
        if len(self.visits) < 2:
            return math.nan
        return (self.visits[-1] - self.visits[0]) / (len(self.visits) - 1)


@dataclass(frozen=True)
class Span:
    """How long a window is: all times effective ns, after `warmup_ns` without a clock."""

    length_ns: int
    settle_ns: int = 0
    warmup_ns: int = 0


class _Real(Observer):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def effective(self) -> int:
        return self._machine.now


def really(program: Program, region: str | None, speedup: float, span: Span, seed: int = 1) -> Timeline:
    """The truth: the region's work takes 1 - speedup of its time."""
    machine = Machine(program.cores, region, speedup, jitter=program.jitter, seed=seed)
    machine.observer = _Real(machine)
    program.build(machine)
    start = span.warmup_ns + span.settle_ns
    machine.run(lambda: machine.now >= start + span.length_ns)
    visits = [t - start for t in machine.visits.get(program.point, []) if t >= start]
    return Timeline(visits, machine.now, 0, Counter(), _mean_latency(machine))


def virtually(
    program: Program, region: str | None, speedup: float, span: Span, options: Options | None = None,
    arm: Arm = Arm.TREATED, seed: int = 1,
) -> Timeline:  # fmt: skip
    """One window of an experiment: everybody else pauses."""
    machine = Machine(program.cores, jitter=program.jitter, seed=seed)
    engine = EngineModel(machine, options or Options(), arm, region, speedup, random.Random(seed))
    machine.observer = engine
    program.build(machine)
    if span.warmup_ns:
        machine.run(lambda: machine.now >= span.warmup_ns)
    engine.begin()
    start = engine.effective() + span.settle_ns
    before: Counter[str] = Counter()
    if span.settle_ns:
        machine.run(lambda: engine.effective() >= start or machine.now >= 20 * (start + 1))
        before += engine.counts
    # With a speedup of 100 % effective time may stand still for good.
    limit = machine.now + 20 * (span.settle_ns + span.length_ns)
    machine.run(lambda: engine.effective() >= start + span.length_ns or machine.now >= limit)
    visits = [t - start for t in machine.visits.get(program.point, []) if t >= start]
    return Timeline(visits, machine.now, engine.clock.granted, engine.counts - before, _mean_latency(machine))


def _mean_latency(machine: Machine) -> float:
    """From the moments `begin` to `end`, of which the first belong to the first, in ns; requests keep their order."""
    began, ended = machine.visits.get("begin", []), machine.visits.get("end", [])
    count = min(len(began), len(ended))
    return (sum(ended[:count]) - sum(began[:count])) / count if count else math.nan


def true_gain(program: Program, region: str, speedup: float, span: Span) -> float:
    return 1 - really(program, region, speedup, span).interval_ns / really(program, region, 0.0, span).interval_ns


def predicted_gain(
    program: Program, region: str, speedup: float, span: Span, options: Options | None = None, seed: int = 1,
    baseline: Arm = Arm.PLACEBO,
) -> float:  # fmt: skip
    """What a pair of windows says: treated against placebo, or against dilation."""
    treated = virtually(program, region, speedup, span, options, Arm.TREATED, seed)
    base = virtually(program, region, speedup, span, options, baseline, seed + 1_000)
    return 1 - treated.interval_ns / base.interval_ns
