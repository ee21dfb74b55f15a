"""What profiling cost the target, beside pauses: baselines against the moments at the end when it was left alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from causal.analysis.pairs import visits_of
from causal.profile import Profile, Window
from causal.waiting import OF_CODE

# A program that changes is compared with what it was like last.
_LATE = 0.5
_FEW_VISITS = 20
_DEVIATIONS = 3.0
# Below that, what profiling does to shares is less than what else is unknown of a gain.
_NOTABLE = 0.15
# Threads that wait, on average.
_NOTABLE_WAITS = 0.05


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Visits/s of a progress point in baselines and undisturbed, and the standard error of the relative difference."""

    point: str
    profiled: float
    undisturbed: float
    error: float

    @property
    def share(self) -> float:
        """The part of the throughput that profiling takes."""
        return 1.0 - self.profiled / self.undisturbed

    @property
    def is_notable(self) -> bool:
        return self.share > max(_NOTABLE, _DEVIATIONS * self.error)


def measure_perturbation(profile: Profile, windows: Sequence[Window]) -> Perturbation | None:
    """By the point with the most visits; None where the target was not left alone, or too little happened."""
    kept = None if profile.end is None else profile.end.diagnosis.get("undisturbed")
    found = [each for name, counts in _counts(kept) if (each := _compare(name, counts, kept, windows)) is not None]
    return max(found, key=lambda each: each.undisturbed, default=None)


def perturbation_messages(profile: Profile, windows: Sequence[Window]) -> Iterator[str]:
    """Where it is much: what it means for the numbers, and what to do about it."""
    seen = measure_perturbation(profile, windows)
    if seen is None or not seen.is_notable:
        return
    meaning = ""
    if _waits(profile):
        more = seen.undisturbed / seen.profiled
        meaning = (
            "; it slows down what computes and not what waits for a device or a timer, so that waiting less for those "
            f"gains up to {more:.2f} times what it says here"
        )
    yield (
        f"profiling takes {seen.share:.0%} of the throughput, beside pauses ({seen.point}: {seen.profiled:,.0f} "
        f"visits/s in baselines, {seen.undisturbed:,.0f} when the program was left alone at the end){meaning}; a "
        "smaller --overhead takes less"
    )


def _waits(profile: Profile) -> bool:
    """Whether the program waits for more than a little that a virtual speedup would shorten."""
    kinds = [kind.label for kind in OF_CODE]
    waits_ns = sum(classes.get(kind, 0) for classes in profile.waits.values() for kind in kinds)
    return profile.end is not None and waits_ns > _NOTABLE_WAITS * max(profile.end.run_ns, 1)


def _counts(kept: object) -> list[tuple[str, list[Any]]]:
    if not isinstance(kept, dict) or not isinstance(kept.get("visits"), dict):
        return []
    return [(name, counts) for name, counts in kept["visits"].items() if isinstance(counts, list)]


def _compare(point: str, counts: list[Any], kept: Any, windows: Sequence[Window]) -> Perturbation | None:
    alone = _rate(counts, kept.get("slices_ns"))
    baseline = "placebo" if any(window.arm == "placebo" for window in windows) else "plain"
    seen = [
        (visits.delta, window.wall_ns)
        for window in windows
        if window.arm == baseline and window.wall_ns > 0 and (visits := visits_of(window, point)) is not None
    ]
    late = seen[int(len(seen) * _LATE) :]
    profiled = _rate([visits for visits, _ in late], [wall for _, wall in late])
    if alone is None or profiled is None:
        return None
    return Perturbation(point, profiled[0], alone[0], math.hypot(profiled[1], alone[1]))


def _rate(counts: Any, lengths_ns: Any) -> tuple[float, float] | None:
    """Visits per second, and its relative standard error: from how the parts differ, at least that of counting."""
    try:
        visits, lengths = np.asarray(counts, float), np.asarray(lengths_ns, float) / 1e9
    except (TypeError, ValueError):
        return None
    if visits.shape != lengths.shape or visits.ndim != 1 or len(visits) < 2 or not (lengths > 0).all():
        return None
    total = float(visits.sum())
    if not total >= _FEW_VISITS:
        return None
    rate = total / float(lengths.sum())
    spread = float(np.sqrt(((visits - rate * lengths) ** 2).sum() / (len(visits) - 1) * len(visits))) / total
    return rate, max(spread, total**-0.5)
