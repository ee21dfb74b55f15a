"""How long until every region of a five-region program has its right verdict: this scheduler, uniform sampling, COZ.

    scripts/bench time-to-verdict --runs 20

Simulated: the same noise and drift for all three, so that only the choice of experiments and the pairing differ. COZ is
given its own plan (regions as they are sampled, speedups at random, 8 of 28 experiments without speedup, no settling)
and the statistics of this program, for it has no verdicts of its own.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.calibration import NOISES, Noise, Subject
from causal.analysis import analyse
from causal.analysis.results import Verdict
from causal.planning import Planner
from causal.profile import UNPAIRED, Header, Profile, ProgressPoint, Visits, Window
from causal.windows import Arm

SECOND = 10**9
SUBJECTS = (
    Subject("strong", 0.4, 0.5),
    Subject("middle", 0.25, 0.2),
    Subject("saturating", 0.15, 0.4, 0.4),
    Subject("contention", 0.12, -0.25),
    Subject("nothing", 0.08, 0.0),
)
_WINDOW_S, _SETTLE_S, _COOL_OFF_S = 0.5, 0.3, 0.01
_LOOK_S = 10.0
_COZ_BASELINE = 8 / 28


@dataclass
class Simulation:
    """A drifting, noisy program."""

    rng: np.random.Generator
    noise: Noise
    wander: float = 0.0

    def drift(self) -> None:
        """The time between experiments."""
        self.wander = 0.9 * self.wander + self.rng.normal(0.0, self.noise.drift)

    def visits(self, gain: float) -> int:
        """Visits in one window."""
        expected = self.noise.visits * math.exp(self.wander) / (1.0 - gain)
        if self.noise.dispersion > 1.0:
            expected = self.rng.gamma(expected / (self.noise.dispersion - 1.0), self.noise.dispersion - 1.0)
        return int(self.rng.poisson(expected))


Experiment = tuple[float, list[Window], dict[str, str]]


def paired(simulation: Simulation, seed: int, stopping: bool, limit_s: float) -> Iterator[Experiment]:
    """The plan of this program, with or without leaving out what is settled: (seconds, windows, settled)."""
    planner = Planner(random.Random(seed))
    planner.fit_budget(limit_s / (2 * (_WINDOW_S + _SETTLE_S)), len(SUBJECTS))
    samples = {number: round(1000 * subject.share) for number, subject in enumerate(SUBJECTS, 1)}
    while True:
        pair = planner.next_pair(samples)
        assert pair is not None
        subject = SUBJECTS[pair.region - 1]
        simulation.drift()
        windows, seen = [], {}
        for arm in pair.arms:
            seen[arm] = simulation.visits(subject.gain(pair.level) if arm is Arm.TREATED else 0.0)
            speedup = pair.level if arm is Arm.TREATED else 0.0
            windows.append(_window(subject, arm.name.lower(), pair.number, pair.level, speedup, seen[arm]))
        settled = {}
        if stopping and min(seen[Arm.TREATED], seen[Arm.PLACEBO]) > 0:
            gain = 1.0 - seen[Arm.PLACEBO] / seen[Arm.TREATED]
            rule = planner.observe(pair.region, pair.level, {"point": gain})
            if rule is not None:
                settled[subject.name] = rule
        yield len(pair.arms) * (_WINDOW_S + _SETTLE_S), windows, settled


def coz(simulation: Simulation, seed: int, limit_s: float) -> Iterator[Experiment]:
    """COZ's plan: one window per experiment."""
    rng = random.Random(seed)
    shares = [subject.share for subject in SUBJECTS]
    while True:
        subject = rng.choices(SUBJECTS, shares)[0]
        level = 0.0 if rng.random() < _COZ_BASELINE else rng.randrange(1, 21) / 20
        simulation.drift()
        arm = "treated" if level else "placebo"
        visits = simulation.visits(subject.gain(level))
        yield _WINDOW_S + _COOL_OFF_S, [_window(subject, arm, UNPAIRED, level, level, visits)], {}


def _window(subject: Subject, arm: str, pair: int, level: float, speedup: float, visits: int) -> Window:
    seen = (Visits("point", visits),)
    return Window(subject.name, arm, pair, level, speedup, SECOND, SECOND, cpus=subject.share, points=seen)


def expected(subject: Subject) -> Verdict:
    """The right verdict."""
    if subject.slope == 0:
        return Verdict.NO_EFFECT
    return Verdict.OPTIMISE if subject.slope > 0 else Verdict.CONTENTION


def time_to_verdict(plan: Iterator[Experiment], limit_s: float) -> dict[str, float]:
    """Seconds until each region had its right verdict for good (infinite: not within the limit)."""
    windows: list[Window] = []
    settled: dict[str, str] = {}
    now_s, looked_s = 0.0, 0.0
    since: dict[str, float] = {}
    while now_s < limit_s:
        seconds, more, rules = next(plan)
        now_s += seconds
        windows += more
        settled |= rules
        if now_s - looked_s < _LOOK_S:
            continue
        looked_s = now_s
        header = Header("simulation", ("simulation",), 1, "", progress_points=(ProgressPoint("point"),))
        found = {r.region: r.verdict for r in analyse(Profile(header, windows=tuple(windows), settled=settled)).regions}
        for subject in SUBJECTS:
            if found.get(subject.name) is expected(subject):
                since.setdefault(subject.name, now_s)
            else:
                since.pop(subject.name, None)
        if len(since) == len(SUBJECTS):
            break
    return {subject.name: since.get(subject.name, math.inf) for subject in SUBJECTS}


def _median(values: Sequence[float], limit_s: float) -> str:
    middle = float(np.median(values))
    return f"{middle:.0f} s" if middle < math.inf else f"> {limit_s:.0f} s"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench time-to-verdict", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=20, help="simulated runs per plan (default: 20)")
    parser.add_argument("--limit", type=float, default=900.0, metavar="S", help="give up after (default: 900)")
    parser.add_argument("--noise", choices=NOISES, default="steady")
    args = parser.parse_args(arguments)
    noise = NOISES[args.noise]
    plans: dict[str, Callable[[Simulation, int], Iterator[Experiment]]] = {
        "stops what is settled": lambda simulation, seed: paired(simulation, seed, True, args.limit),
        "uniform": lambda simulation, seed: paired(simulation, seed, False, args.limit),
        "COZ": lambda simulation, seed: coz(simulation, seed, args.limit),
    }
    print(f"median of {args.runs} simulated runs ({args.noise}), seconds until the right verdict stays:\n")
    print("| plan | " + " | ".join(f"{s.name} ({s.gain(1.0):+.0%})" for s in SUBJECTS) + " | all five |")
    print("|---|" + "---|" * (len(SUBJECTS) + 1))
    for name, plan in plans.items():
        times = [
            time_to_verdict(plan(Simulation(np.random.default_rng(seed), noise), seed), args.limit)
            for seed in range(args.runs)
        ]
        cells = [_median([found[subject.name] for found in times], args.limit) for subject in SUBJECTS]
        cells.append(_median([max(found.values()) for found in times], args.limit))
        print(f"| {name} | " + " | ".join(cells) + " |")
        sys.stdout.flush()
    return 0
