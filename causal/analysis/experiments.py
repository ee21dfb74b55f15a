"""The single experiments behind an analysis: what each pair said on its own, and when it was made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from causal.analysis.disturbance import mark_disturbed
from causal.analysis.pairs import collect_pairs, usable
from causal.profile import Arm, Profile, Window


@dataclass(frozen=True, slots=True)
class Experiment:
    """One pair: the virtual speedup and the gain it showed alone (fractions). No single one means much."""

    speedup: float
    gain: float


@dataclass(frozen=True, slots=True)
class Moment:
    """One window on the time axis, in seconds since the first; `rates` are visits per effective second by point."""

    start_s: float
    wall_s: float
    arm: Arm
    region: str
    speedup: float
    rates: dict[str, float]
    void: str | None


def single_experiments(profile: Profile) -> dict[tuple[str, str], list[Experiment]]:
    """The experiments by region and progress point, in the order made; those without visits show no gain."""
    by_region: dict[str, list[Window]] = {}
    for window in usable(mark_disturbed(profile.windows)):
        if window.arm != "plain":
            by_region.setdefault(window.region, []).append(window)
    points = dict.fromkeys(visits.name for window in profile.windows for visits in window.points)
    return {(region, point): _gains(own, point) for region, own in by_region.items() for point in points}


def _gains(windows: Iterable[Window], point: str) -> list[Experiment]:
    pairs = collect_pairs(windows, point)
    known = (pairs.visits_treated > 0) & (pairs.visits_placebo > 0)
    pairs = pairs.select(known)
    treated = pairs.visits_treated / pairs.time_treated_ns
    gains = 1.0 - pairs.visits_placebo / pairs.time_placebo_ns / treated
    return [Experiment(float(s), float(g)) for s, g in zip(pairs.level, gains, strict=True) if np.isfinite(g)]


def timeline(profile: Profile) -> list[Moment]:
    """All windows in the order of time; empty when the profile has no times (files of other programs)."""
    windows = mark_disturbed(profile.windows)
    timed = sorted((window for window in windows if window.start_ns > 0), key=lambda window: window.start_ns)
    if not timed:
        return []
    zero_ns = timed[0].start_ns
    return [
        Moment(
            start_s=(window.start_ns - zero_ns) / 1e9,
            wall_s=window.wall_ns / 1e9,
            arm=window.arm,
            region=window.region,
            speedup=window.level if window.arm == "treated" else 0.0,
            rates={v.name: v.delta / window.effective_ns * 1e9 for v in window.points if window.effective_ns > 0},
            void=window.void,
        )
        for window in timed
    ]
