"""The curve through the gains of a region: a line through the origin, up to a knee where something else takes over."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from causal.analysis.pairs import Floats
from causal.analysis.rates import LevelEffects
from causal.analysis.results import Curve, CurveFit
from causal.race import sequence_factor, sequence_p_value

# The knee is searched in steps of one point.
_KNEES = np.arange(0.05, 1.0, 0.01)
# A straight line is believed until a knee explains the data significantly better.
_KNEE_P_VALUE = 0.05
# Errors are widened for a misfit between the levels that is no accident.
_MISFIT_P_VALUE = 0.05
# Gains above this are out of reach of the model (the program would take no time).
_MAX_GAIN = 0.98
_STEPS = 30


@dataclass(frozen=True, slots=True)
class _Fit:
    # `misfit` is the weighted sum of squares.
    knee: float
    slope: float
    error: float
    misfit: float


def fit_curve(effects: LevelEffects, systematic: float = 0.0, sequential: bool = False) -> CurveFit:
    """Fits gain(s) = slope * min(s, knee) to the levels by weighted least squares.

    The fit is made to log rate ratios, -log(1 - gain): there the error of a level hardly depends on its estimate. On
    the scale of gains it does, and weights that follow the noise bias the slope. The knee is taken only when it
    improves the fit significantly, with a level at or below it and two at or beyond it. `systematic` is an error of the
    slope that does not shrink with the number of pairs, on the scale of a 95 % interval's half-width. `sequential`
    makes interval and p-value hold at all times together, for pairs that went on until there was an effect.
    """
    line = _fit_slope(effects, 1.0)
    bent = [_fit_slope(effects, knee) for knee in _candidate_knees(effects.level)]
    best = min(bent, key=lambda fit: fit.misfit, default=line)
    levels = len(effects.level)
    noise = _excess_noise(min(best.misfit, line.misfit), levels - 2)
    if best.misfit < line.misfit and stats.chi2.sf((line.misfit - best.misfit) / noise, 1) < _KNEE_P_VALUE:
        chosen, parameters = best, 2
    else:
        chosen, parameters = line, 1
    noise = _excess_noise(chosen.misfit, levels - parameters)
    # Levels that vary about the curve as expected are themselves replicates.
    df = min(float(np.sum(effects.pairs)), effects.dispersion_df + levels) - parameters
    df = max(float(np.max(effects.df)), df)
    pairs = float(np.sum(effects.pairs))
    quantile = float(stats.t.ppf(0.975, df)) * (sequence_factor(pairs) if sequential else 1.0)
    plausible = [
        replace(curve, half_width=float(np.hypot(curve.half_width, systematic)))
        for curve in _plausible([line, *bent], chosen, noise, quantile)
    ]
    p_value = _p_value(effects, chosen, parameters, noise, systematic / quantile, df)
    if sequential:
        p_value = sequence_p_value(float(stats.norm.isf(max(p_value, 1e-300) / 2)), pairs)
    return CurveFit(
        slope=chosen.slope,
        ci=_slope_interval(plausible, chosen),
        p_value=p_value,
        knee=None if chosen is line else chosen.knee,
        max_level=float(effects.level.max()),
        plausible=tuple(plausible),
    )


def _excess_noise(misfit: float, df: int) -> float:
    # Misfit between the levels beyond their own noise means that the errors of the levels are underestimated. By
    # chance alone four curves in ten misfit by more than expected: widened for all of these, intervals are too long.
    if df < 1 or float(stats.chi2.sf(misfit, df)) >= _MISFIT_P_VALUE:
        return 1.0
    return misfit / df


def _p_value(effects: LevelEffects, chosen: _Fit, parameters: int, noise: float, systematic: float, df: float) -> float:
    # F test of the curve against no gain at any level. A straight line alone would be the wrong alternative for a gain
    # that saturates early: its misfit would hide the gain.
    nothing = _weighted_product(effects, effects.log_ratio, effects.log_ratio)
    explained = max(nothing - chosen.misfit, 0.0) / parameters / noise
    known = noise * chosen.error**2
    return float(stats.f.sf(explained * known / (known + systematic**2), parameters, df))


def _candidate_knees(level: Floats) -> list[float]:
    if len(level) < 4:
        return []
    return [float(round(knee, 2)) for knee in _KNEES if level[0] <= knee <= level[-2]]


def _plausible(fits: list[_Fit], chosen: _Fit, noise: float, quantile: float) -> list[Curve]:
    # The profile likelihood interval: a curve that fits worse by d (in variances) keeps sqrt(quantile^2 - d) of its
    # half-width. Intervals conditional on one knee cover a quarter of the time when the knee is uncertain.
    lowest = min(fit.misfit for fit in fits)
    curves = []
    for fit in fits:
        room = quantile**2 - (fit.misfit - lowest) / noise
        if fit is chosen:
            room = quantile**2
        if room > 0:
            curves.append(Curve(fit.knee, fit.slope, float(fit.error * np.sqrt(noise * room))))
    return curves


def _slope_interval(plausible: list[Curve], chosen: _Fit) -> tuple[float, float]:
    # For a line the interval is that of the line: with a knee below the first level any slope would be possible.
    curves = [curve for curve in plausible if chosen.knee < 1.0 or curve.knee == 1.0]
    return min(c.slope - c.half_width for c in curves), max(c.slope + c.half_width for c in curves)


def _fit_variance(effects: LevelEffects) -> Floats:
    # A pair that happened to fit perfectly must not decide the curve. What the levels share is no noise between them.
    own = effects.variance - effects.shared
    return np.maximum(own, 1e-3 * max(float(np.mean(own)), 1e-12))


def _weighted_product(effects: LevelEffects, a: Floats, b: Floats) -> float:
    # With a shared error the levels are correlated; the inverse of such a covariance matrix is known (Sherman &
    # Morrison, 1950).
    weight = 1.0 / _fit_variance(effects)
    common = effects.shared / (1.0 + effects.shared * float(np.sum(weight)))
    return float(np.sum(weight * a * b) - common * np.sum(weight * a) * np.sum(weight * b))


def _fit_slope(effects: LevelEffects, knee: float) -> _Fit:
    # Gauss-Newton for the one parameter that is left when the knee is fixed.
    reach = np.minimum(effects.level, knee)

    def product(a: Floats, b: Floats) -> float:
        return _weighted_product(effects, a, b)

    limit = _MAX_GAIN / float(reach.max())
    gains = -np.expm1(-effects.log_ratio)
    slope = float(np.clip(product(gains, reach) / product(reach, reach), -10.0 * limit, limit))
    for _ in range(_STEPS):
        left = 1.0 - slope * reach
        gradient = reach / left
        residual = effects.log_ratio + np.log(left)
        step = product(gradient, residual) / product(gradient, gradient)
        # Never more than halfway to the pole at which the program takes no time.
        new_slope = min(slope + step, (slope + limit) / 2)
        if abs(new_slope - slope) < 1e-10:
            break
        slope = new_slope
    left = 1.0 - slope * reach
    error = product(reach / left, reach / left) ** -0.5
    residual = effects.log_ratio + np.log(left)
    return _Fit(knee, slope, error, product(residual, residual))
