"""Do the intervals hold? Simulated runs with early stopping, and placebo-only pairs of real recordings.

    scripts/bench calibration --runs 1000 --report docs/calibration.md
    scripts/bench calibration --runs 0 --placebo a.jsonl b.jsonl

Each simulated run plans its pairs with the real scheduler, which stops regions whose verdict is settled; the visits are
drawn from known gains, with noise beyond counting, drift, and an error of the method as large as the analysis allows.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from causal.analysis import analyse
from causal.analysis.results import Verdict
from causal.planning import Planner
from causal.profile import End, Header, Profile, ProgressPoint, Region, Visits, Window
from causal.reading import read_any
from causal.windows import Arm

SECOND = 10**9
_ARMS = {Arm.TREATED: "treated", Arm.PLACEBO: "placebo", Arm.DILATION: "dilation", Arm.PLAIN: "plain"}
# What the analysis allows for (`_METHOD_ERROR`) is the half-width of a 95 % interval.
_METHOD_SD = 0.015 / 1.96


@dataclass(frozen=True)
class Subject:
    """A simulated region: its share of the samples, its gain per virtual speedup, and where it saturates."""

    name: str
    share: float
    slope: float
    knee: float = 1.0

    def gain(self, level: float) -> float:
        return self.slope * min(level, self.knee)


SUBJECTS = (
    Subject("strong", 0.35, 0.45),
    Subject("saturating", 0.25, 0.4, 0.5),
    Subject("nothing_a", 0.15, 0.0),
    Subject("weak", 0.1, 0.06),
    Subject("nothing_b", 0.08, 0.0),
    Subject("contention", 0.07, -0.2),
)


@dataclass
class Noise:
    """How unsteady a program is: visits per window, their variance relative to Poisson, and drift between pairs.

    `uneven`: by what factor regions may differ in that variance (each region's is drawn anew in every run).
    """

    visits: float
    dispersion: float
    drift: float
    uneven: float = 1.0


def simulate(seed: int, subjects: Sequence[Subject], budget_s: float, noise: Noise) -> Profile:
    """One run of so many seconds, planned by the real scheduler."""
    rng, planner_rng = np.random.default_rng(seed), random.Random(seed)
    planner = Planner(planner_rng)
    window_s = 0.5
    planner.fit_budget(budget_s / (2 * (window_s + 0.3)), len(subjects))
    samples = {number: round(1000 * subject.share) for number, subject in enumerate(subjects, 1)}
    bias = rng.normal(0.0, _METHOD_SD, len(subjects) + 1)
    dispersions = noise.dispersion * noise.uneven ** rng.uniform(-1.0, 1.0, len(subjects) + 1)
    windows: list[Window] = []
    settled: dict[str, str] = {}
    now_s, wander = 0.0, 0.0
    while now_s < budget_s:
        pair = planner.next_pair(samples)
        assert pair is not None
        subject = subjects[pair.region - 1]
        wander = 0.9 * wander + rng.normal(0.0, noise.drift)
        rates = {}
        for arm in pair.arms:
            gain = subject.gain(pair.level) + bias[pair.region] * pair.level if arm is Arm.TREATED else 0.0
            expected = noise.visits * math.exp(wander) / (1.0 - gain)
            dispersion = dispersions[pair.region]
            if dispersion > 1.0:
                expected = rng.gamma(expected / (dispersion - 1.0), dispersion - 1.0)
            count = int(rng.poisson(expected))
            rates[arm] = count
            windows.append(
                Window(
                    subject.name, _ARMS[arm], pair.number, pair.level, pair.level if arm is Arm.TREATED else 0.0,
                    SECOND, SECOND, start_ns=round(now_s * SECOND) + 1, cpus=subject.share,
                    points=(Visits("point", count),),
                )
            )  # fmt: skip
            now_s += window_s + 0.3
        if min(rates[Arm.TREATED], rates[Arm.PLACEBO]) > 0:
            gain = 1.0 - rates[Arm.PLACEBO] / rates[Arm.TREATED]
            rule = planner.observe(pair.region, pair.level, {"point": gain})
            if rule is not None:
                settled[subject.name] = rule
    return Profile(
        Header("simulation", ("simulation",), 1, "", progress_points=(ProgressPoint("point"),)),
        tuple(Region(subject.name, "function") for subject in subjects), tuple(windows),
        {subject.name: samples[number] for number, subject in enumerate(subjects, 1)}, settled=settled,
        end=End("duration", 0, 1000, 1000),
    )  # fmt: skip


@dataclass
class Tally:
    """What the intervals and verdicts of many runs were worth."""

    covered: Counter[str] = field(default_factory=Counter)
    intervals: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    false_share: list[float] = field(default_factory=list)
    settled: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)

    def add(self, profile: Profile, subjects: Sequence[Subject]) -> None:
        truth = {subject.name: subject for subject in subjects}
        found = wrong = 0
        for result in analyse(profile).regions:
            subject, rule = truth[result.region], profile.settled.get(result.region, "not settled")
            self.settled[rule] += 1
            self.verdicts[result.region, result.verdict.value] += 1
            for point in result.points:
                self.tried["level"] += point.speedup > 0
                if point.ci is not None and point.speedup > 0:
                    self._count(("level", rule), point.ci, subject.gain(point.speedup))
            self.tried["fit"] += 2
            # At the point at which the table ranks, and at the end of the curve: what is shown.
            if result.fit is not None and result.fit.is_evidence:
                for level in (min(0.25, result.fit.max_level), result.fit.max_level):
                    self._count(("fit", rule), result.fit.at(level).ci, subject.gain(level))
            if result.verdict in (Verdict.OPTIMISE, Verdict.CONTENTION):
                found += 1
                right = subject.slope > 0 if result.verdict is Verdict.OPTIMISE else subject.slope < 0
                wrong += not right
        self.false_share.append(wrong / found if found else 0.0)

    def _count(self, names: tuple[str, str], ci: tuple[float, float], truth: float) -> None:
        for name in (names[0], " ".join(names)):
            self.intervals[name] += 1
            self.covered[name] += ci[0] <= truth <= ci[1]

    def withheld(self, name: str) -> float:
        """The share that has no number, for want of evidence."""
        return 1.0 - self.intervals[name] / self.tried[name] if self.tried[name] else math.nan

    def coverage(self, name: str) -> float:
        return self.covered[name] / self.intervals[name] if self.intervals[name] else math.nan


NOISES = {
    "steady": Noise(1000, 1.0, 0.01),
    "usual": Noise(300, 2.0, 0.05),
    "few visits": Noise(40, 1.0, 0.05),
    "unsteady": Noise(300, 8.0, 0.1),
    "uneven": Noise(300, 2.5, 0.05, uneven=2.5),
}


def placebo_pairs(paths: Sequence[str]) -> Iterator[tuple[str, float, bool]]:
    """From real recordings: neighbouring placebo windows as pairs. Yields (file, level gain, covers nothing?)."""
    for path in paths:
        profile = read_any(path)
        by_region: dict[str, list[Window]] = {}
        for window in profile.windows:
            if window.arm == "placebo" and window.void is None:
                by_region.setdefault(window.region, []).append(window)
        fakes: list[Window] = []
        number = 0
        for own in by_region.values():
            for first, second in zip(own[::2], own[1::2], strict=False):
                number += 1
                arms = ("treated", "placebo") if number % 2 else ("placebo", "treated")
                for arm, window in zip(arms, (first, second), strict=True):
                    speedup = window.level if arm == "treated" else 0.0
                    fakes.append(replace(window, arm=arm, pair=number, speedup=speedup, level=first.level))
        for result in analyse(replace(profile, windows=tuple(fakes), settled={})).regions:
            for point in result.points:
                if point.ci is not None and point.speedup > 0 and point.program_speedup is not None:
                    yield path, point.program_speedup, point.ci[0] <= 0.0 <= point.ci[1]


def tables(tallies: dict[str, Tally], runs: int, budget_s: float) -> str:
    """The results as Markdown."""
    lines = [
        f"{runs:,} simulated runs of {budget_s:.0f} s per kind of program, six regions each, early stopping on.", "",
        "| program | at one speedup | fitted curve | without a number | stopped as precise | stopped by effect "
        "| not stopped | false discoveries |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, tally in tallies.items():
        regions = sum(tally.settled.values())
        shares = [f"{tally.settled[rule] / regions:.0%}" for rule in ("precise", "effect", "not settled")]
        lines.append(
            f"| {name} | {tally.coverage('level'):.1%} | {tally.coverage('fit'):.1%} "
            f"| {tally.withheld('level'):.0%}, {tally.withheld('fit'):.0%} | {' | '.join(shares)} "
            f"| {np.mean(tally.false_share):.2%} |"
        )
    lines += ["", "Coverage of the 95 % intervals by how the region was ended:", "",
              "| program | precise: level | curve | effect: level | curve | not stopped: level | curve |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, tally in tallies.items():
        cells = []
        for rule in ("precise", "effect", "not settled"):
            for kind in ("level", "fit"):
                known = tally.intervals[f"{kind} {rule}"] > 0
                cells.append(f"{tally.coverage(f'{kind} {rule}'):.1%}" if known else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Verdicts, in percent of the runs:", "",
              "| program | region | gain at 100 % | " + " | ".join(v.value for v in Verdict) + " |",
              "|---|---|---|" + "---|" * len(Verdict)]  # fmt: skip
    for name, tally in tallies.items():
        for subject in SUBJECTS:
            tried = sum(tally.verdicts[subject.name, verdict.value] for verdict in Verdict) or 1
            cells = [f"{100 * tally.verdicts[subject.name, verdict.value] / tried:.0f}" for verdict in Verdict]
            lines.append(f"| {name} | {subject.name} | {subject.gain(1.0):.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench calibration", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs per kind of program (default: 1000)")
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="length of a run (default: 120)")
    parser.add_argument("--noise", choices=NOISES, action="append", help="kind of program (default: all)")
    parser.add_argument("--placebo", nargs="*", default=[], metavar="PROFILE", help="real recordings to check as well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables there as well")
    args = parser.parse_args(arguments)
    parts = []
    if args.runs:
        tallies: dict[str, Tally] = {}
        for name in args.noise or NOISES:
            tally = tallies[name] = Tally()
            for run in range(args.runs):
                tally.add(simulate(args.seed * 1_000_000 + run, SUBJECTS, args.budget, NOISES[name]), SUBJECTS)
                if run % 50 == 49 and sys.stderr.isatty():
                    print(f"\r{name}: {run + 1} of {args.runs}", end="", file=sys.stderr)
        parts.append(tables(tallies, args.runs, args.budget))
    if args.placebo:
        seen = list(placebo_pairs(args.placebo))
        covers = sum(covered for _, _, covered in seen)
        largest = max((abs(gain) for _, gain, _ in seen), default=0.0)
        parts.append(
            f"Placebo windows of {len(args.placebo)} real recordings, paired with each other: {covers} of {len(seen)} "
            f"intervals ({covers / max(len(seen), 1):.1%}) contain 0; the largest gain was {largest:.1%}.\n"
        )
    text = "\n".join(parts)
    print(text)
    if args.report:
        args.report.write_text(text)
    return 0
