"""Regions that run in some phases of the program only: from the gain while they run to the gain of the whole run.

Experiments choose what runs now, so a region is tried in its own phases, and what they show is true of those. In COZ's
paper (Curtsinger and Berger, SOSP 2015, section 3.4, "Adjusting for phases") the gain is multiplied by
(t_obs / s_obs) * (s / T), with s the region's samples in the whole run of length T, and s_obs those during its
experiments, t_obs long together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from causal.analysis.results import Curve, CurveFit, Gain
from causal.profile import Profile, Window

# Below this many placebo windows or samples the share during the experiments is a guess.
_MIN_WINDOWS = 3
_MIN_SAMPLES = 30
# What sampling cost and pauses leave of the shares' agreement when there are no phases.
_NOTABLE_FACTOR = 0.9


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


def phase_factor(profile: Profile, region: str, own: Sequence[Window]) -> PhaseFactor:
    """The factor of a region from its usable windows `own`; 1 unless its interval lies below 1.

    The share during experiments is that of placebo windows, for a treatment changes the share. All times are effective.
    """
    whole = _share_of_run(profile, region)
    placebos = [window for window in own if window.arm == "placebo" and window.effective_ns > 0]
    samples = np.array([window.selected_samples for window in placebos], dtype=np.float64)
    time_ns = np.array([window.effective_ns for window in placebos], dtype=np.float64)
    if whole is None or len(placebos) < _MIN_WINDOWS or samples.sum() < _MIN_SAMPLES:
        return NO_PHASES
    share = float(samples.sum() / time_ns.sum())
    # Windows are the replicates: in some the region ran all the time, in others not at all.
    count = len(placebos)
    residual = (samples - share * time_ns) / samples.sum()
    error = math.sqrt(float(np.sum(residual**2)) * count / (count - 1) + 1.0 / samples.sum())
    factor = whole / share
    half = float(stats.t.ppf(0.975, count - 1)) * error
    if factor > _NOTABLE_FACTOR or factor * math.exp(half) >= 1.0:
        return NO_PHASES
    return PhaseFactor(factor, factor * math.expm1(half))


def _share_of_run(profile: Profile, region: str) -> float | None:
    # Samples per ns of effective time over the whole run; None when its totals are not known.
    samples = profile.samples.get(region, 0)
    if profile.end is None or samples < _MIN_SAMPLES:
        return None
    run_ns = profile.end.run_ns - (profile.startup_ns or 0)
    # The settle time before a window is stretched like the window.
    paused = sum(
        window.delay_ns * (1.0 + window.settle_ns / window.wall_ns)
        for window in profile.windows
        if window.arm in ("treated", "dilation") and window.wall_ns > 0
    )
    effective_ns = run_ns - paused
    return samples / effective_ns if effective_ns > 0 else None
