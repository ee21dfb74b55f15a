"""Two profiles of a program, before and after a change: what was predicted, what happened, whether they agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from scipy import stats

from causal.analysis.disturbance import mark_disturbed
from causal.analysis.estimate import cpu_share, estimate
from causal.analysis.pairs import Floats, usable, visits_of
from causal.analysis.results import Analysis, CurveFit, Gain, RegionResult
from causal.errors import UsageError
from causal.profile import Arm, Profile, Window

# A change of the program smaller than this is not called one, however certain it is.
DEFAULT_TOLERANCE = 0.01
# Regions whose cost changed by less than this, or by less than their samples can tell, were not changed.
_CHANGED_PART = 0.08
_MIN_SHARE = 0.01
_DEVIATIONS = 2.5
# What may be left of code that is gone (what was moved elsewhere leaves its frame), and have been of what is new.
_LEFT, _TRACE = 0.1, 0.02
# Without a prediction for more than this part of what changed, nothing can be said about the whole.
_MOST_UNPREDICTED = 0.2
# With fewer windows than this a rate has no interval worth the name.
_MIN_WINDOWS = 3


class Change(Enum):
    """What happened to the rate of a progress point."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no change"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RegionChange:
    """A region whose CPU time per visit changed: by what part it became faster, and what was predicted for that.

    `speedup` is a fraction, negative when it became slower, with the error of its samples; `predicted` is the gain of
    the program that the profile before promised, None where it had no number for the region. `extrapolated` says that
    the change lies outside what was tried.
    """

    region: str
    cost_before_ns: float
    cost_after_ns: float
    speedup: Gain
    predicted: Gain | None
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class PointComparison:
    """A progress point: rates in visits per second, `observed` the part of the time per visit that was saved.

    `predicted` takes all changed regions together, None when nothing changed that was predicted; `agrees` is None
    where there is nothing to compare.
    """

    point: str
    rate_before: float | None
    rate_after: float | None
    observed: Gain | None
    change: Change
    changed: tuple[RegionChange, ...]
    predicted: Gain | None
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All progress points that both profiles have; `before` and `after` are the analyses behind it."""

    before: Analysis
    after: Analysis
    points: tuple[PointComparison, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> tuple[str, ...]:
        """The points that became slower."""
        return tuple(point.point for point in self.points if point.change is Change.SLOWER)


def compare_profiles(before: Profile, after: Profile, tolerance: float = DEFAULT_TOLERANCE) -> Comparison:
    """Compares point by point; `tolerance` is the change (a fraction) that is still called none.

    Raises UsageError when the profiles have no progress point in common.
    """
    for profile in (before, after):
        if profile.given:
            raise UsageError(
                f"{profile.path} was recorded with --given: it tells of a program that does not exist yet",
                "compare profiles without it",
            )
    before, after = (replace(profile, windows=mark_disturbed(profile.windows)) for profile in (before, after))
    old, new = estimate(before), estimate(after)
    common = [point for point in old.progress_points if point in new.progress_points]
    if not common:
        raise UsageError(
            f"the profiles have no progress point in common ({_listed(old)} before, {_listed(new)} after)",
            "record both with the same -p, or name the points alike: -p NAME=SPEC",
        )
    points = tuple(_compare_point(before, after, old, point, tolerance) for point in common)
    return Comparison(old, new, points, tuple(_notes(before, after)))


def _listed(analysis: Analysis) -> str:
    return ", ".join(analysis.progress_points) or "none"


def _compare_point(
    before: Profile, after: Profile, analysis: Analysis, point: str, tolerance: float
) -> PointComparison:
    arm = _common_arm(before, after, point)
    old, new = _rates(before, point, arm), _rates(after, point, arm)
    observed = _observed(old, new)
    changed = _changed_regions(before, after, analysis, point, arm)
    predicted = _predicted_together(changed)
    agrees = None
    if observed is not None and predicted is not None:
        # On the side on which they differ, the intervals' half-widths are the errors of either.
        agrees = abs(observed.gain - predicted.gain) <= math.hypot(observed.margin, predicted.margin)
    return PointComparison(
        point=point,
        rate_before=None if old is None else math.exp(old.log_rate),
        rate_after=None if new is None else math.exp(new.log_rate),
        observed=observed,
        change=_change(observed, tolerance),
        changed=changed,
        predicted=predicted,
        agrees=agrees,
    )


def _change(observed: Gain | None, tolerance: float) -> Change:
    if observed is None:
        return Change.UNKNOWN
    low, high = observed.ci
    if high < 0 and observed.gain < -tolerance:
        return Change.SLOWER
    if low > 0 and observed.gain > tolerance:
        return Change.FASTER
    return Change.SAME


@dataclass(frozen=True, slots=True)
class _Rate:
    log_rate: float
    error: float
    df: float


def _common_arm(before: Profile, after: Profile, point: str) -> Arm:
    # The undisturbed program where both have enough of it; else placebo windows, in which both are disturbed alike.
    if min(len(_seen(profile, point, "plain")) for profile in (before, after)) >= _MIN_WINDOWS:
        return "plain"
    return "placebo"


def _seen(profile: Profile, point: str, arm: Arm) -> list[tuple[int, Window]]:
    counted = ((visits_of(window, point), window) for window in usable(profile.windows) if window.arm == arm)
    return [(visits.delta, window) for visits, window in counted if visits is not None and visits.delta > 0]


def _rates(profile: Profile, point: str, arm: Arm) -> _Rate | None:
    # Windows are the replicates: what they differ by contains everything that varies within a run.
    seen = _seen(profile, point, arm)
    if len(seen) < _MIN_WINDOWS:
        return None
    visits = np.array([delta for delta, _ in seen], dtype=np.float64)
    time_ns = np.array([window.effective_ns for _, window in seen], dtype=np.float64)
    rate = visits.sum() / time_ns.sum()
    residual = (visits - rate * time_ns) / visits.sum()
    windows = len(seen)
    # The small-sample factor, and windows that resemble their neighbours count for less.
    variance = float(np.sum(residual**2)) * windows / (windows - 1) * _inflation(residual)
    # Never better than counting allows.
    error = math.sqrt(max(variance, 0.1 / visits.sum()))
    return _Rate(math.log(rate * 1e9), error, windows - 1.0)


def _inflation(residual: Floats) -> float:
    # The variance of a mean of first-order autocorrelated values, against that of independent ones.
    total = float(np.sum(residual**2))
    if len(residual) < 8 or total <= 0:
        return 1.0
    correlation = min(0.9, max(0.0, float(np.sum(residual[1:] * residual[:-1])) / total))
    return (1.0 + correlation) / (1.0 - correlation)


def _observed(before: _Rate | None, after: _Rate | None) -> Gain | None:
    if before is None or after is None:
        return None
    error = math.hypot(before.error, after.error)
    # Welch and Satterthwaite's degrees of freedom for two means of unequal variance.
    df = error**4 / (before.error**4 / before.df + after.error**4 / after.df)
    half = float(stats.t.ppf(0.975, df)) * error
    ratio = after.log_rate - before.log_rate
    return Gain(-math.expm1(-ratio), (-math.expm1(-(ratio - half)), -math.expm1(-(ratio + half))))


def _changed_regions(
    before: Profile, after: Profile, analysis: Analysis, point: str, arm: Arm
) -> tuple[RegionChange, ...]:
    cost_before, cost_after = _cpu_per_visit(before, point, arm), _cpu_per_visit(after, point, arm)
    if cost_before is None or cost_after is None:
        return ()
    results = {result.region: result for result in analysis.regions if result.progress_point == point}
    changes = []
    gone, new_ones = replaced_code(before, after)
    heirs = sum(cpu_share(after, region) or 0.0 for region in new_ones)
    left = sum(cpu_share(before, region) or 0.0 for region in gone)
    for region in dict.fromkeys([*before.samples, *after.samples, *results]):
        old, new = (cpu_share(profile, region) or 0.0 for profile in (before, after))
        samples = _samples(before, region), _samples(after, region)
        if region in gone and heirs > 0:
            new += heirs * old / left
            samples = samples[0], sum(_samples(after, heir) for heir in new_ones)
        speedup = _speedup(old * cost_before, new * cost_after, *samples)
        if max(old, new) < _MIN_SHARE or speedup is None:
            continue
        predicted, extrapolated = _predicted(results.get(region), speedup)
        changes.append(RegionChange(region, old * cost_before, new * cost_after, speedup, predicted, extrapolated))
    return tuple(sorted(changes, key=lambda item: -abs(item.cost_before_ns - item.cost_after_ns)))


def replaced_code(before: Profile, after: Profile) -> tuple[list[str], list[str]]:
    """Regions that are (nearly) gone, and new ones: renamed, moved or written anew, these are what became of those."""
    shares = {r: tuple(cpu_share(p, r) or 0.0 for p in (before, after)) for r in {*before.samples, *after.samples}}
    known = sorted((region, old, new) for region, (old, new) in shares.items() if max(old, new) >= _MIN_SHARE)
    gone = [region for region, old, new in known if new <= _LEFT * old]
    return gone, [region for region, old, new in known if old <= _TRACE * new]


def _samples(profile: Profile, region: str) -> int:
    return profile.samples.get(region, 0)


def _cpu_per_visit(profile: Profile, point: str, arm: Arm) -> float | None:
    # CPU time of the whole program per visit, in ns, from windows in which nothing was sped up.
    period_ns = 0 if profile.end is None else profile.end.period_ns
    seen = _seen(profile, point, arm)
    samples, visits = sum(window.samples for _, window in seen), sum(delta for delta, _ in seen)
    return samples * period_ns / visits if period_ns > 0 and samples > 0 and visits > 0 else None


def _speedup(old_ns: float, new_ns: float, old_samples: int, new_samples: int) -> Gain | None:
    # By how much less CPU time the region takes per visit; None when it cannot be told from no change.
    if old_ns <= 0 or old_samples == 0:
        return None
    part = new_ns / old_ns
    error = part * math.sqrt(1.0 / old_samples + 1.0 / max(new_samples, 1))
    if abs(1.0 - part) < max(_CHANGED_PART, _DEVIATIONS * error):
        return None
    half = 1.96 * error
    return Gain(1.0 - part, (1.0 - part - half, min(1.0, 1.0 - part + half)))


def _predicted(result: RegionResult | None, speedup: Gain) -> tuple[Gain | None, bool]:
    if result is None or result.fit is None:
        return None, False
    ends = [_at(result.fit, level) for level in (speedup.gain, *speedup.ci)]
    low, high = min(gain.ci[0] for gain in ends), max(gain.ci[1] for gain in ends)
    return Gain(ends[0].gain, (low, high)), not 0.0 <= speedup.gain <= result.fit.max_level + 1e-9


def _at(fit: CurveFit, speedup: float) -> Gain:
    if speedup >= 0:
        return fit.at(speedup)
    # Made slower: the straight line goes on to the other side, the knee is not reached.
    low, high = sorted(bound * speedup for bound in fit.ci)
    return Gain(fit.slope * speedup, (low, high))


def _predicted_together(changed: Sequence[RegionChange]) -> Gain | None:
    # What is left of the time after several gains is the product of what each leaves.
    gains = [item.predicted for item in changed if item.predicted is not None]
    size = {item.region: abs(item.cost_before_ns - item.cost_after_ns) for item in changed}
    unpredicted = sum(size[item.region] for item in changed if item.predicted is None)
    if not gains or unpredicted > _MOST_UNPREDICTED * sum(size.values()):
        return None
    left = math.prod(1.0 - gain.gain for gain in gains)
    errors = [gain.margin / max(1.0 - gain.gain, 0.02) for gain in gains]
    half = left * math.hypot(*errors)
    return Gain(1.0 - left, (1.0 - left - half, 1.0 - left + half))


def _notes(before: Profile, after: Profile) -> list[str]:
    notes = []
    gone, new_ones = replaced_code(before, after)
    if gone and new_ones:
        notes.append(f"{', '.join(new_ones)} is new and taken for what became of {', '.join(gone)}")
    notes += ["one run each: how much runs differ from each other is not in the intervals of what was observed"]
    for name in ("kernel", "model", "cpus"):
        old, new = before.header.machine.get(name), after.header.machine.get(name)
        if old is not None and new is not None and old != new:
            notes.append(f"the profiles come from different machines ({name}: {old}, then {new})")
    return notes
