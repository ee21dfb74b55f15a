"""Regions that run in some phases of the program only: from the gain while they run to the gain of the whole run.

Experiments choose what runs now, so a region is tried in its own phases, and what they show is true of those. In COZ's
paper (Curtsinger and Berger, SOSP 2015, section 3.4, "Adjusting for phases") the gain is multiplied by
(t_obs / s_obs) * (s / T), with s the region's samples in the whole run of length T, and s_obs those during its
experiments, t_obs long together. Experiments that met another phase all the same would mix two truths in one number
(and the faster the region, the more visits the windows in which it ran); where windows are clearly of two kinds, only
those in which the region ran are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from causal.analysis.pairs import visits_of
from causal.analysis.results import Curve, CurveFit, Gain
from causal.profile import UNPAIRED, Profile, Window
from causal.waiting import mode_of, shortened

# Below this many placebo windows or samples the share during the experiments is a guess.
_MIN_WINDOWS = 3
_MIN_SAMPLES = 30
# Two kinds of windows: in one the region has less than the first part of its usual share of the samples; what has less
# than the second part contains some of another phase. Few samples differ as much by chance.
_ABSENT_PART, _PRESENT_PART = 0.2, 0.7
_ABSENT_WINDOWS, _USUAL_SAMPLES = 0.1, 20
# What sampling cost and pauses leave of the shares' agreement when there are no phases. Waits are counted in the one in
# other ways than in the other (the time in which a core wakes up), so that they agree less.
_NOTABLE_FACTOR = 0.9
_NOTABLE_FACTOR_OF_WAITS = 0.75


@dataclass(frozen=True, slots=True)
class PhaseFactor:
    """What the gain of a region is multiplied by: at most 1, with the half-width of its 95 % interval."""

    factor: float = 1.0
    half_width: float = 0.0

    @property
    def applies(self) -> bool:
        """Whether there is something to correct."""
        return self.factor < 1.0

    def gain(self, gain: Gain) -> Gain:
        """The gain of the whole run, the errors of both combined."""
        low, high = (self._bound(gain.gain, bound) for bound in gain.ci)
        return Gain(gain.gain * self.factor, (low, high))

    def _bound(self, value: float, bound: float) -> float:
        spread = math.hypot((bound - value) * self.factor, value * self.half_width)
        return value * self.factor + math.copysign(spread, bound - value)

    def fit(self, fit: CurveFit) -> CurveFit:
        """The curve of the whole run."""
        slope = self.gain(Gain(fit.slope, fit.ci))
        plausible = tuple(self._curve(curve) for curve in fit.plausible)
        return replace(fit, slope=slope.gain, ci=slope.ci, plausible=plausible)

    def _curve(self, curve: Curve) -> Curve:
        spread = math.hypot(curve.half_width * self.factor, curve.slope * self.half_width)
        return Curve(curve.knee, curve.slope * self.factor, spread)


NO_PHASES = PhaseFactor()


def in_own_phases(windows: Sequence[Window]) -> list[Window]:
    """The windows of one region without the pairs that met a phase in which it does not run; else all of them."""
    kept = list(windows)
    placebos = [window for window in kept if window.arm == "placebo" and window.samples > 0]
    if len(placebos) < 2 * _MIN_WINDOWS:
        return kept
    shares = np.array([_share(window) for window in placebos])
    usual = float(np.quantile(shares, 0.75))
    absent = float(np.mean(shares < _ABSENT_PART * usual))
    expected = usual * float(np.median([window.samples for window in placebos]))
    if absent < _ABSENT_WINDOWS or expected < _USUAL_SAMPLES:
        return kept
    elsewhere = {
        window.pair
        for window in kept
        if window.arm in ("treated", "placebo") and _share(window) < _PRESENT_PART * usual
    }
    return [window for window in kept if window.pair not in elsewhere]


def _share(window: Window) -> float:
    return window.selected_samples / window.samples if window.samples > 0 else 0.0


def phase_factor(profile: Profile, region: str, own: Sequence[Window], run_ns: float | None) -> PhaseFactor:
    """The factor of a region from its usable windows `own`; 1 unless its interval lies below 1.

    `run_ns` is that of `undisturbed_run_ns`. The share during experiments is that of placebo windows, for a treatment
    changes it. Samples are compared with samples; of a region that mostly waits, which has few, time with time.
    """
    placebos = [window for window in own if window.arm == "placebo" and window.effective_ns > 0]
    if run_ns is None or run_ns <= 0 or len(placebos) < _MIN_WINDOWS or profile.samples.get(region, 0) < _MIN_SAMPLES:
        return NO_PHASES
    whole, notable = float(profile.samples[region]), _NOTABLE_FACTOR
    seen = np.array([window.selected_samples for window in placebos], dtype=np.float64)
    if seen.sum() < _MIN_SAMPLES:
        return NO_PHASES
    noise = 1.0 / float(seen.sum())
    if waiting := _mostly_waiting_ns(profile, region):
        whole, notable = waiting, _NOTABLE_FACTOR_OF_WAITS
        seen = np.array([window.cpus * window.wall_ns for window in placebos], dtype=np.float64)
        noise = 0.0  # it is the time itself
    time_ns = np.array([window.effective_ns for window in placebos], dtype=np.float64)
    share = float(seen.sum() / time_ns.sum())
    if share <= 0:
        return NO_PHASES
    # Windows are the replicates: in some the region ran all the time, in others not at all.
    count = len(placebos)
    residual = (seen - share * time_ns) / seen.sum()
    error = math.sqrt(float(np.sum(residual**2)) * count / (count - 1) + noise)
    factor = whole / run_ns / share
    half = float(stats.t.ppf(0.975, count - 1)) * error
    if factor > notable or factor * math.exp(half) >= 1.0:
        return NO_PHASES
    return PhaseFactor(factor, factor * math.expm1(half))


def _mostly_waiting_ns(profile: Profile, region: str) -> float:
    """Thread time in ns, waits included, of a region that waits more than it computes; 0 of any other."""
    period_ns = profile.end.period_ns if profile.end else 0
    kinds = {kind.label for kind in shortened(mode_of(str(profile.header.options.get("unit"))))}
    waits_ns = sum(spent_ns for kind, spent_ns in profile.waits.get(region, {}).items() if kind in kinds)
    computed_ns = profile.samples[region] * period_ns
    return float(waits_ns + computed_ns) if waits_ns > computed_ns else 0.0


def undisturbed_run_ns(profile: Profile, point: str) -> float | None:
    """How long the run would have taken for the same visits of a point without any experiment; None when not known.

    Effective time, but in treated windows the time that their visits take at the rate of the placebo: the program gets
    on faster there, so it also leaves its phases sooner.
    """
    # Executions of a command have no phases between them, and the time in which none runs is none of theirs. COZ does
    # not say how much of its run time were delays.
    end_to_end = any(named.kind == "end-to-end" for named in profile.header.progress_points)
    of_coz = any(window.pair == UNPAIRED for window in profile.windows)
    # A speedup that was given stretched all windows, also those that count here as undisturbed.
    if profile.end is None or profile.end.run_ns <= 0 or end_to_end or of_coz or profile.given:
        return None
    total = float(profile.end.run_ns - (profile.startup_ns or 0))
    placebos = {(w.region, w.pair): w for w in profile.windows if w.arm == "placebo"}
    for window in profile.windows:
        if window.arm not in ("treated", "dilation") or window.wall_ns <= 0:
            continue
        undisturbed = _undisturbed_ns(window, placebos.get((window.region, window.pair)), point)
        # The settle time before a window is stretched like the window.
        total += (undisturbed - window.wall_ns) * (1.0 + window.settle_ns / window.wall_ns)
    return total


def _undisturbed_ns(window: Window, placebo: Window | None, point: str) -> float:
    seen, base = visits_of(window, point), None if placebo is None else visits_of(placebo, point)
    if window.arm != "treated" or placebo is None or seen is None or base is None or min(seen.delta, base.delta) <= 0:
        return float(window.effective_ns)
    return seen.delta / base.delta * placebo.effective_ns
