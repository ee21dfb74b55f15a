"""Which experiment next, and how long: the part of the scheduler that needs neither a kernel nor a clock.

Experiments come in pairs: a treated window and a placebo window of the same region side by side, in random order, now
and then with a dilation window as the third. Regions are drawn by their share of the samples, so that what runs is
what gets tried, then evened out; levels are used equally often.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from causal.race import Noise, Rule, RunningGain
from causal.windows import Arm

# Below this share of the samples a region is not worth an experiment: even gone, the program would gain less than that.
MIN_SHARE = 0.01
# Coarse to fine: a run takes the finest of these that still gives every level a few pairs.
LADDERS: tuple[tuple[int, ...], ...] = ((25, 50, 75, 100), tuple(range(10, 101, 10)), tuple(range(5, 101, 5)))
PAIRS_PER_LEVEL = 4
PAIRS_FOR_A_VERDICT = 6
_FIRST_CHECKS = range(3)
_MOST_LOG = 1.5


@dataclass(frozen=True)
class PlanOptions:
    """Defaults of the plan. Times in ns of effective (virtual) time."""

    min_window_ns: int = 300_000_000
    max_window_ns: int = 4_000_000_000
    min_settle_ns: int = 100_000_000
    max_settle_ns: int = 600_000_000
    max_drain_ns: int = 2_000_000_000
    settle_visits: int = 96
    target_visits: int = 40
    min_visits: int = 5
    dilation_every: int = 4
    undilated: frozenset[int] = frozenset()  # regions for which that check means nothing
    plain_every: int = 8


@dataclass(frozen=True)
class Pair:
    """One comparison: windows of these arms, in this order, for one region at one level (a fraction)."""

    number: int
    region: int
    level: float
    arms: tuple[Arm, ...]


@dataclass
class Lengths:
    """How long windows must be. Rates in visits per effective second; `cpus` is how many CPUs the region keeps busy."""

    options: PlanOptions
    rates: dict[str, float] = field(default_factory=dict)
    _settle: dict[int, int] = field(default_factory=dict)
    _halves: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _stores: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def observe_rate(self, point: str, visits: int, effective_ns: int) -> None:
        """Remember what a placebo or plain window saw. A point too rare for its windows counts as one visit less."""
        if effective_ns > 0:
            seen = visits / (effective_ns / 1e9)
            before = self.rates.get(point)
            self.rates[point] = seen if before is None else 0.7 * before + 0.3 * seen

    def observe_halves(self, region: int, first_rate: float, second_rate: float) -> None:
        """When the halves of a region's windows disagree, something still drains: its windows settle for longer."""
        if first_rate > 0 and second_rate > 0:
            self._settle_longer_if(self._halves[region], math.log(second_rate / first_rate), 0.03, region)

    def observe_store(self, region: int, ratio: float) -> None:
        """`ratio`: other work per visit, treated against placebo. Unless it is 1, queues still fill or drain, which the
        halves of a window need not show: its windows settle for longer."""
        if ratio > 0:
            # Cut off, lest one extreme value hides in its own spread what all of them agree on.
            log = max(-_MOST_LOG, min(math.log(ratio), _MOST_LOG))
            self._settle_longer_if(self._stores[region], log, 0.06, region)

    def _settle_longer_if(self, seen: list[float], value: float, notable: float, region: int) -> None:
        """When the mean of what was seen is not 0 for sure."""
        seen.append(value)
        if len(seen) < 4:
            return
        mean = sum(seen) / len(seen)
        spread = math.sqrt(sum((one - mean) ** 2 for one in seen) / (len(seen) - 1) / len(seen))
        if abs(mean) > max(notable, 2.5 * spread):
            self._settle[region] = min(2 * self.settle_ns(region), self.options.max_drain_ns)
            seen.clear()

    def settle_ns(self, region: int) -> int:
        """Effective time before a window in which queues fill or drain: some tens of visits, within limits."""
        if region in self._settle:
            return self._settle[region]
        rates = [rate for rate in self.rates.values() if rate > 0]
        wanted = self.options.settle_visits / min(rates) * 1e9 if rates else self.options.max_settle_ns
        return int(min(max(wanted, self.options.min_settle_ns), self.options.max_settle_ns))

    def window_ns(self) -> int:
        """Effective length that gives the rarest point that is visited at all enough visits."""
        wanted = [self.options.target_visits / rate * 1e9 for rate in self.rates.values() if rate > 0]
        # Settling is time lost: a window about as long as it makes the most of a pair.
        length = max([float(self.options.min_window_ns), *wanted, 0.75 * self.settle_ns(0)])
        return int(min(length, self.options.max_window_ns))


def stretch(arm: Arm, cpus: float, level: float) -> float:
    """Wall time per effective time: 1/f with f = 1 / (1 + u*s), the worst case (no gain) of the design's formula.

    While a region that keeps u CPUs busy is sped up by s, virtual time stands still for u*s of its share.
    """
    return 1 + cpus * level if arm in (Arm.TREATED, Arm.DILATION) else 1.0


class Planner:
    """Draws pairs. `levels` in percent; `only` restricts the regions; the rest is decided by samples and `rng`.

    `given` are regions that are not tried because they have a speedup in all windows.
    """

    def __init__(
        self,
        rng: random.Random,
        levels: Sequence[int] | None = None,
        only: frozenset[int] | None = None,
        options: PlanOptions | None = None,
        observe_only: bool = False,
        given: Collection[int] = (),
    ) -> None:
        self._rng = rng
        self._observe_only = observe_only  # nothing can be paused: no pairs, only looks
        self._levels = tuple(levels) if levels else LADDERS[0]
        self._fixed_levels = bool(levels)
        self.only = only
        self.given = frozenset(given)  # have a speedup already
        self.options = options or PlanOptions()
        self._most_regions = 0
        self._pairs: Counter[int] = Counter()
        self._used: dict[int, Counter[int]] = defaultdict(Counter)
        self._number = 0
        self._running: dict[int, dict[str, RunningGain]] = defaultdict(lambda: defaultdict(RunningGain))
        self.settled: dict[int, Rule] = {}

    @property
    def levels(self) -> tuple[int, ...]:
        return self._levels

    def fit_budget(self, pairs: float, regions: int) -> None:
        """Plan for so many pairs over so many candidates: better an answer on few regions than none on many.

        The regions that run most are tried, as many as get enough pairs for a verdict; levels are the finest ladder
        that gives each level a few pairs. Levels and regions that the user gave stay.
        """
        if self.only is None:
            self._most_regions = max(1, int(pairs / PAIRS_FOR_A_VERDICT))
        if self._fixed_levels:
            return
        each = pairs / max(1, min(regions, self._most_regions or regions))
        for ladder in LADDERS:
            if each >= PAIRS_PER_LEVEL * len(ladder):
                self._levels = ladder

    def candidates(self, samples: Mapping[int, int]) -> dict[int, float]:
        """Regions worth trying -> their share of the in-scope samples."""
        total = sum(samples.values()) or 1
        shares = {region: count / total for region, count in samples.items() if count and region not in self.given}
        if self.only is not None:
            return {region: max(shares.get(region, 0.0), MIN_SHARE) for region in sorted(self.only - self.given)}
        worth = [region for region, share in shares.items() if share >= MIN_SHARE]
        # Regions that were begun go on: a verdict half made is worth more than a new start. One that is settled has
        # taken less than its part of the time, and another takes its place.
        worth.sort(key=lambda region: (not self._pairs[region], -shares[region]))
        most = self._most_regions + len(self.settled) if self._most_regions else None
        return {region: shares[region] for region in sorted(worth[:most])}

    def observe(self, region: int, level: float, gains: Mapping[str, float]) -> Rule | None:
        """Learn what a pair showed, by progress point; the rule by which it settles the region, else None."""
        points = self._running[region]
        for point, gain in gains.items():
            points[point].add(level, gain)
        rules = [running.settled(self._noise_elsewhere(region, point)) for point, running in points.items()]
        if region in self.settled or not rules or None in rules:
            return None
        # Every point was stopped when the last was: one that made it wait for its effect makes all of them sequences.
        self.settled[region] = "effect" if "effect" in rules else "precise"
        return self.settled[region]

    def _noise_elsewhere(self, region: int, point: str) -> Noise:
        others = (points[point].noise for other, points in self._running.items() if other != region and point in points)
        return sum(others, Noise())

    def next_pair(self, samples: Mapping[int, int]) -> Pair | None:
        """The next pair given the samples per region of late; None when nothing in scope runs."""
        shares = self.candidates(samples)
        if not shares or self._observe_only:
            return None
        # What is settled becomes more precise when nothing else is left to do.
        regions = [region for region in shares if region not in self.settled] or list(shares)
        weights = [shares[region] / (1 + self._pairs[region]) for region in regions]
        region = self._rng.choices(regions, weights)[0]
        used = self._used[region]
        fewest = min(used[level] for level in self._levels)
        level = self._rng.choice([level for level in self._levels if used[level] == fewest])
        arms = [Arm.TREATED, Arm.PLACEBO]
        # The check comes early, because without it no number is worth showing, and then now and then.
        is_due = self._number in _FIRST_CHECKS or self._pairs[region] % self.options.dilation_every == 1
        if is_due and region not in self.options.undilated:
            arms.append(Arm.DILATION)
        self._rng.shuffle(arms)
        self._pairs[region] += 1
        used[level] += 1
        self._number += 1
        return Pair(self._number, region, level / 100, tuple(arms))

    def wants_plain(self) -> bool:
        """Is it time for a window without a clock, which shows what signals cost?"""
        return self._number % self.options.plain_every == 0
