"""Pairs of windows, the unit of evidence: the same region moments apart, with and without the virtual speedup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from causal.profile import UNPAIRED, Arm, Visits, Window

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

# Below this many visits per window, counting whole visits is a source of noise worth avoiding.
_RARE_VISITS = 300.0
# Squared coefficient of variation of the time between visits: 0 for a metronome, 1 for a Poisson process.
_REGULAR_CV2 = 0.5
# With more pairs than this without two visits in each window, leaving those out would bias the rest.
_MAX_SHARE_WITHOUT_SPAN = 0.1


@dataclass(frozen=True, slots=True)
class PairData:
    """Visits and time of the pairs of one region at one progress point; arrays of one element per pair.

    `visits_*` may be fractional and `time_*_ns` shorter than the windows where rates come from timestamps; their ratio
    is the rate either way. `counted_*` are the whole visits.
    """

    level: Floats
    visits_treated: Floats
    time_treated_ns: Floats
    visits_placebo: Floats
    time_placebo_ns: Floats
    counted_treated: Floats
    counted_placebo: Floats

    def __len__(self) -> int:
        return len(self.level)

    def select(self, keep: Bools) -> PairData:
        """The pairs for which `keep` is true."""
        return PairData(*[values[keep] for values in self._arrays()])

    def _arrays(self) -> list[Floats]:
        return [getattr(self, part.name) for part in fields(self)]

    @staticmethod
    def concatenate(parts: Sequence[PairData]) -> PairData:
        """The pairs of several regions, at least one, as one set."""
        return PairData(*[np.concatenate(arrays) for arrays in zip(*(part._arrays() for part in parts), strict=True)])


@dataclass(frozen=True, slots=True)
class PooledData(PairData):
    """Experiments without partners (COZ's), each compared with all baselines of its region.

    `visits_placebo` and `time_placebo_ns` are the sums over the baselines, the same in every element, and
    `counted_placebo` is 0; `baseline_*` have one element per baseline.
    """

    baseline_visits: Floats
    baseline_time_ns: Floats

    def select(self, keep: Bools) -> PooledData:
        """The experiments for which `keep` is true, still against all baselines."""
        values = self._arrays()
        return PooledData(*[part[keep] for part in values[:-2]], *values[-2:])


def usable(windows: Iterable[Window]) -> list[Window]:
    """The windows that the analysis may use: not void, and with time in them."""
    return [window for window in windows if window.void is None and window.effective_ns > 0]


def visits_of(window: Window, point: str) -> Visits | None:
    """The visits of a progress point in a window; None when the window did not watch it."""
    for visits in window.points:
        if visits.name == point:
            return visits
    return None


def collect_pairs(windows: Iterable[Window], point: str, arm: Arm = "treated") -> PairData:
    """Matches each window of `arm` with the placebo window of its pair; windows without a partner are left out."""
    windows = list(windows)
    if windows and all(window.pair == UNPAIRED for window in windows):
        return _collect_unpaired(windows, point, arm)
    placebos = {(w.region, w.pair): w for w in windows if w.arm == "placebo"}
    rows: list[tuple[float, Window, Visits, Window, Visits]] = []
    for window in windows:
        placebo = placebos.get((window.region, window.pair))
        if window.arm != arm or placebo is None or window.level <= 0:
            continue
        treated_visits, placebo_visits = visits_of(window, point), visits_of(placebo, point)
        if treated_visits is None or placebo_visits is None:
            continue
        if min(_time_ns(window, treated_visits), _time_ns(placebo, placebo_visits)) > 0:
            rows.append((window.level, window, treated_visits, placebo, placebo_visits))
    counts = PairData(
        level=_array(round(row[0], 6) for row in rows),
        visits_treated=_array(row[2].delta for row in rows),
        time_treated_ns=_array(_time_ns(row[1], row[2]) for row in rows),
        visits_placebo=_array(row[4].delta for row in rows),
        time_placebo_ns=_array(_time_ns(row[3], row[4]) for row in rows),
        counted_treated=_array(row[2].delta for row in rows),
        counted_placebo=_array(row[4].delta for row in rows),
    )
    spans = _array(_span_ns(row[2]) for row in rows), _array(_span_ns(row[4]) for row in rows)
    return _by_span(counts, *spans) or counts


def _time_ns(window: Window, visits: Visits) -> int:
    # What the visits are divided by: of a latency, the time that requests were in flight (causal.analysis.latency).
    return window.effective_ns if visits.in_flight_ns is None else visits.in_flight_ns


def _collect_unpaired(windows: Sequence[Window], point: str, arm: Arm) -> PooledData:
    seen = [(window, visits) for window in windows if (visits := visits_of(window, point)) is not None]
    baselines = [(window, visits) for window, visits in seen if window.arm == "placebo"]
    treated = [(window, visits) for window, visits in seen if window.arm == arm and window.level > 0 and baselines]
    base_visits, base_time_ns = _array(v.delta for _, v in baselines), _array(w.effective_ns for w, _ in baselines)
    counted, one = _array(v.delta for _, v in treated), np.ones(len(treated))
    return PooledData(
        level=_array(round(window.level, 6) for window, _ in treated),
        visits_treated=counted,
        time_treated_ns=_array(window.effective_ns for window, _ in treated),
        visits_placebo=one * base_visits.sum(),
        time_placebo_ns=one * base_time_ns.sum(),
        counted_treated=counted,
        counted_placebo=0.0 * one,
        baseline_visits=base_visits,
        baseline_time_ns=base_time_ns,
    )


def _array(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


def _span_ns(visits: Visits) -> float:
    if visits.delta < 2 or visits.first_ns is None or visits.last_ns is None:
        return 0.0
    return float(max(0, visits.last_ns - visits.first_ns))


def _by_span(data: PairData, span_treated_ns: Floats, span_placebo_ns: Floats) -> PairData | None:
    # A program that visits its point like a metronome, three times a window, is counted as 3 or 4 by chance of where
    # the window was cut; the time from first to last visit does not have that noise. But (n - 1) / (last - first)
    # overestimates the rate of irregular visits, because the first and the last gap of a window are longer than the
    # mean gap T: together (1 + cv2) * T (inspection paradox). With n - 1 - cv2 in the numerator the ratio is unbiased
    # to first order for any spacing; for spacings near Poisson it gains nothing over counting, so there we count.
    if len(data) == 0:
        return None
    counts = np.concatenate([data.counted_treated, data.counted_placebo])
    if np.median(counts) >= _RARE_VISITS:
        return None
    spans = np.concatenate([span_treated_ns, span_placebo_ns])
    times = np.concatenate([data.time_treated_ns, data.time_placebo_ns])
    both = (span_treated_ns > 0) & (span_placebo_ns > 0)
    visited = (data.counted_treated + data.counted_placebo) > 0
    if not both.any() or np.mean(~both[visited]) > _MAX_SHARE_WITHOUT_SPAN:
        return None
    spanned = spans > 0
    outer_gaps = (times[spanned] - spans[spanned]) * counts[spanned] / times[spanned]
    cv2 = float(np.clip(np.mean(outer_gaps) - 1.0, 0.0, 1.0))
    if cv2 > _REGULAR_CV2:
        return None
    return PairData(
        level=data.level[both],
        visits_treated=data.counted_treated[both] - 1.0 - cv2,
        time_treated_ns=span_treated_ns[both],
        visits_placebo=data.counted_placebo[both] - 1.0 - cv2,
        time_placebo_ns=span_placebo_ns[both],
        counted_treated=data.counted_treated[both],
        counted_placebo=data.counted_placebo[both],
    )
