"""How much faster visits come in one arm of the pairs than in the other, with an honest error.

The model is a quasi-Poisson regression of visits with offset log(effective time), a fixed effect per pair and a
treatment effect per level. Conditioning on the total of each pair removes the fixed effects and leaves a binomial
regression with offset log(time_treated / time_placebo), whose estimates are exactly the same (McCullagh & Nelder,
Generalized Linear Models, 1989, section 6.4.2): hundreds of pairs cost milliseconds instead of a matrix of dummies.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_linear_model import GLM

from causal.analysis.pairs import Floats, Ints, PairData, PooledData
from causal.analysis.results import Gain

# Fewer pairs than this give no number at all: two pairs agree by chance too often.
MIN_PAIRS = 3
# How many degrees of freedom other levels, and then other regions, may lend to a level's own variance.
BORROWED_DF = 6.0
# With fewer replicates than this within levels, the spread about the level means says nothing about the noise.
_MIN_REPLICATES = 5


@dataclass(frozen=True, slots=True)
class Noise:
    """A variance relative to Poisson, and the degrees of freedom it is known with."""

    dispersion: float
    df: float

    @staticmethod
    def pooled(parts: Iterable[Noise]) -> Noise:
        """One for all; without degrees of freedom when there are none."""
        known = [part for part in parts if part.df > 0]
        df = sum(part.df for part in known)
        return Noise(sum(part.dispersion * part.df for part in known) / df if known else 1.0, df)

    def lent(self, others: Noise, most: float) -> Noise:
        """Itself, and of others' as much as makes `most` degrees of freedom in all."""
        return Noise.pooled([self, Noise(others.dispersion, min(others.df, max(0.0, most - self.df)))])


@dataclass(frozen=True, slots=True)
class LevelEffects:
    """Log rate ratios (treated to placebo) by level, ascending; arrays of one element per level.

    `variance` is that of `log_ratio`, `df` the degrees of freedom of its t distribution; `information` is the weight
    of the level in a fit; `dispersion` the pooled variance relative to Poisson with `dispersion_df`. `shared` is the
    part of every variance that is the same error in all of them: that of a baseline they have in common.
    """

    level: Floats
    log_ratio: Floats
    variance: Floats
    df: Floats
    pairs: Floats
    visits: Floats
    information: Floats
    dispersion: float
    dispersion_df: float
    shared: float = 0.0

    @property
    def noise(self) -> Noise:
        """What its pairs say about the noise."""
        return Noise(self.dispersion, self.dispersion_df)

    def gain(self, index: int, confidence: float = 0.95, widening: float = 1.0) -> Gain:
        """The reduction of the time per visit at one level: 1 - exp(-log ratio), with its interval.

        `widening` multiplies the interval's half-width on the log scale (confidence sequences).
        """
        half = widening * stats.t.ppf(0.5 + confidence / 2, self.df[index]) * np.sqrt(self.variance[index])
        center = float(self.log_ratio[index])
        return Gain(gain_of(center), (gain_of(center - half), gain_of(center + half)))


def gain_of(log_ratio: float) -> float:
    """The reduction of the time per visit, 1 - rate_placebo / rate_treated."""
    return float(-np.expm1(-log_ratio))


def level_effects(data: PairData, elsewhere: Noise | None = None) -> LevelEffects | None:
    """Estimates the rate ratio at each level; None with fewer than three informative pairs.

    A level at which one of the arms has no visits at all has no finite estimate and is left out. `elsewhere` is the
    noise of other pairs of the run, for regions whose own pairs say too little about it.
    """
    if isinstance(data, PooledData):
        return _pooled_effects(data)
    data = _informative(data)
    if len(data) < MIN_PAIRS:
        return None
    levels, group = np.unique(data.level, return_inverse=True)
    total = data.visits_treated + data.visits_placebo
    log_ratio, expected = _regress(data, group, len(levels))
    residual = data.visits_treated - total * expected
    weight = total * expected * (1.0 - expected)
    pairs = np.bincount(group).astype(np.float64)
    information = _sums(group, weight)
    own_df = pairs - 1.0
    # The sandwich estimate, robust to whatever the pairs do (cluster-robust: a pair is one row), as a multiple of
    # the model's variance 1 / information, with the small-sample correction n / (n - 1).
    own = _sums(group, residual**2) / information * pairs / np.maximum(own_df, 1.0)
    noise = Noise(*_pooled_dispersion(data, residual, weight, len(levels)))
    if elsewhere is not None:
        noise = noise.lent(elsewhere, BORROWED_DF)
    # Few pairs per level make their own variance a lottery (t with 1 or 2 degrees of freedom), so a level borrows from
    # all levels, as in Smyth, Linear models and empirical Bayes, 2004 (moderated t), here with a fixed prior weight;
    # and where all levels have few pairs, from the rest of the run, which is the same program.
    lent = min(BORROWED_DF, noise.df)
    scale = (own_df * own + lent * noise.dispersion) / (own_df + lent)
    return LevelEffects(
        level=levels,
        log_ratio=log_ratio,
        variance=scale / information,
        df=own_df + lent,
        pairs=pairs,
        visits=_sums(group, data.counted_treated + data.counted_placebo),
        information=information,
        dispersion=noise.dispersion,
        dispersion_df=noise.df,
    )


def _pooled_effects(data: PooledData) -> LevelEffects | None:
    # Quasi-Poisson rates of unpaired experiments, the baseline being one more level. Drift of the program between
    # experiments is noise here, where pairs would have cancelled it.
    levels, group = np.unique(data.level, return_inverse=True)
    visits = _sums(group, data.visits_treated)
    if len(data) < MIN_PAIRS or len(data.baseline_visits) < 2 or data.baseline_visits.sum() <= 0:
        return None
    if np.any(visits == 0):
        rest = data.select(visits[group] > 0)
        return _pooled_effects(rest) if len(rest) else None
    baseline = len(levels)
    group = np.concatenate([group, np.full(len(data.baseline_visits), baseline)])
    counts = np.concatenate([data.visits_treated, data.baseline_visits])
    times = np.concatenate([data.time_treated_ns, data.baseline_time_ns])
    total, number = _sums(group, counts), np.bincount(group).astype(np.float64)
    rate = total / _sums(group, times)
    expected = rate[group] * times
    squares = (counts - expected) ** 2
    own_df = number - 1.0
    pooled_df = float(np.sum(own_df))
    pooled = float(np.sum(squares / expected) / max(pooled_df, 1.0))
    lent = min(BORROWED_DF, max(pooled_df, 1.0))
    own = _sums(group, squares) / total * number / np.maximum(own_df, 1.0)
    variance = (own_df * own + lent * pooled) / (own_df + lent) / total
    return LevelEffects(
        level=levels,
        log_ratio=np.log(rate[:-1] / rate[baseline]),
        variance=variance[:-1] + variance[baseline],
        df=np.minimum(own_df[:-1], own_df[baseline]) + lent,
        pairs=number[:-1],
        visits=total[:-1],
        information=total[:-1],
        dispersion=pooled,
        dispersion_df=pooled_df,
        shared=float(variance[baseline]),
    )


def pooled_effect(parts: list[PairData]) -> LevelEffects | None:
    """One effect for all pairs whatever their level; None where there is too little."""
    parts = [part for part in parts if len(part) > 0]
    if not parts:
        return None
    if any(isinstance(part, PooledData) for part in parts):
        # Regions with baselines of their own do not pool; one alone does.
        if len(parts) > 1:
            return None
        data = parts[0]
    else:
        data = PairData.concatenate(parts)
    return level_effects(replace(data, level=np.ones(len(data))))


def pooled_gain(parts: list[PairData]) -> tuple[Gain, float] | None:
    """The gain of `pooled_effect` and its two-sided p-value."""
    effects = pooled_effect(parts)
    if effects is None:
        return None
    error = float(np.sqrt(effects.variance[0]))
    p_value = float(2 * stats.t.sf(abs(effects.log_ratio[0]) / error, effects.df[0])) if error > 0 else 1.0
    return effects.gain(0), p_value


def _sums(group: Ints, values: Floats) -> Floats:
    return np.bincount(group, values).astype(np.float64)


def _informative(data: PairData) -> PairData:
    # A pair without visits says nothing about a ratio of rates. A level with visits in one arm only says "infinite".
    data = data.select((data.visits_treated + data.visits_placebo) > 0)
    if len(data) == 0:
        return data
    group = np.unique(data.level, return_inverse=True)[1]
    finite = (_sums(group, data.visits_treated) > 0) & (_sums(group, data.visits_placebo) > 0)
    return data.select(finite[group])


def _regress(data: PairData, group: Ints, levels: int) -> tuple[Floats, Floats]:
    # Returns the coefficient per level and the expected treated share of each pair's visits.
    total = data.visits_treated + data.visits_placebo
    model = GLM(
        data.visits_treated / total,
        np.equal.outer(group, np.arange(levels)).astype(np.float64),
        family=Binomial(),
        offset=np.log(data.time_treated_ns / data.time_placebo_ns),
        var_weights=total,
    )
    with warnings.catch_warnings():
        # One pair per level is fitted exactly, which statsmodels takes for a mistake.
        warnings.simplefilter("ignore")
        # By QR: thousands of pairs at twenty levels would have the default decompose a large matrix each step.
        result = model.fit(wls_method="qr")
    return np.asarray(result.params), np.asarray(result.mu)


def _pooled_dispersion(data: PairData, residual: Floats, weight: Floats, levels: int) -> tuple[float, float]:
    # Pearson's estimate from the spread within levels, or, when nearly every pair has a level of its own, from the
    # differences between neighbouring levels (as Rice, Annals of Statistics 12, 1984), whose true effects are nearly
    # the same once a straight line is taken off.
    within_df = len(residual) - levels
    if within_df >= _MIN_REPLICATES:
        return float(np.sum(residual**2 / weight) / within_df), float(within_df)
    order = np.argsort(data.level, kind="stable")
    treated_rate = data.visits_treated[order] / data.time_treated_ns[order]
    placebo_rate = data.visits_placebo[order] / data.time_placebo_ns[order]
    known = (treated_rate > 0) & (placebo_rate > 0)
    log_ratio = np.log(treated_rate[known] / placebo_rate[known])
    if len(log_ratio) < MIN_PAIRS:
        return max(1.0, float(np.sum(residual**2 / weight) / max(within_df, 1))), float(max(within_df, 1))
    variance, level = 1.0 / weight[order][known], data.level[order][known]
    slope = float(np.sum(level * log_ratio / variance) / np.sum(level**2 / variance))
    rest = log_ratio - slope * level
    squares = np.diff(rest) ** 2 / (variance[1:] + variance[:-1])
    # Neighbouring differences share a pair, so they count for about two thirds of their number; the slope takes one of
    # them, but hardly makes them smaller.
    return float(np.mean(squares)), max(1.0, (len(squares) - 1.0) * 2.0 / 3.0)
