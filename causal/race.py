"""When a region has had enough experiments: the fixed-confidence rule of the scheduler.

Regions are sampled by turns until their verdict is settled and then left out (successive elimination: Even-Dar, Mannor
and Mansour, JMLR 7, 2006), so that time goes where a verdict is open. Two rules settle one:

- *precise*: the fixed-sample interval of the gain is narrow enough for any verdict, "no effect" included. Whether it is
  narrow depends on the noise and not on the gain, so the interval needs no correction (Chow and Robbins, Annals of
  Mathematical Statistics 36, 1965), provided that the noise is not just underestimated: of many regions looked at after
  every pair, those would be ended whose few pairs happen to agree, and their intervals would be too short. So the noise
  is never taken for less than that of all regions together, and then at its upper bound.
- *effect*: the gain is beyond doubt, and known well in proportion. That does depend on the gain, and looking until it
  is so would find something in noise: the test is a confidence sequence, an interval that holds at all times together
  (Robbins, 1970; as in Howard, Ramdas, McAuliffe and Sekhon, Annals of Statistics 49, 2021), and the analysis reports
  the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Rule = Literal["precise", "effect"]

# A gain that nobody would work for.
WORTHWHILE_GAIN = 0.01
# As a gain at a virtual speedup of 100 %: narrow enough for "no effect" also with the error of the method.
_PRECISE_HALF_WIDTH = 0.02
_EFFECT_PART = 0.25
_MIN_PAIRS = 6
_ALPHA = 0.05
# Of the bound on the noise: one in a thousand, since it is looked at after every pair of every region.
_NOISE_Z = 3.09
_Z = 1.959963985
# The number of pairs at which the confidence sequence is tightest.
_TUNED_FOR = 12.0
_NARROWEST = 1e-9


@dataclass(frozen=True, slots=True)
class Noise:
    """What pairs differ by beyond the gain: their squared misfit in sum, and its degrees of freedom."""

    misfit: float = 0.0
    df: float = 0.0

    def __add__(self, other: Noise) -> Noise:
        return Noise(self.misfit + other.misfit, self.df + other.df)

    @property
    def variance(self) -> float:
        """Of one pair; 0 while nothing is known."""
        return self.misfit / self.df if self.df > 0 else 0.0


@dataclass(slots=True)
class RunningGain:
    """The gain per virtual speedup of one region at one point, from its pairs so far (a line through the origin)."""

    pairs: int = 0
    _levels: float = 0.0
    _products: float = 0.0
    _gains: float = 0.0

    def add(self, level: float, gain: float) -> None:
        """One pair: the virtual speedup and the gain it showed, as fractions."""
        self.pairs += 1
        self._levels += level * level
        self._products += level * gain
        self._gains += gain * gain

    @property
    def slope(self) -> float:
        """The gain at a virtual speedup of 100 %."""
        return self._products / self._levels if self._levels else 0.0

    @property
    def noise(self) -> Noise:
        """That of the pairs about the line."""
        return Noise(max(0.0, self._gains - self.slope * self._products), max(0.0, self.pairs - 1.0))

    def half_width(self, least_variance: float = 0.0) -> float:
        """Of the fixed-sample 95 % interval of the slope; infinite below three pairs.

        `least_variance`: what the variance of a pair is at least, whatever these pairs say.
        """
        if self.pairs < 3:
            return math.inf
        variance = max(self.noise.variance, least_variance) / self._levels
        return t_quantile(self.pairs - 1) * math.sqrt(max(variance, _NARROWEST))

    def settled(self, elsewhere: Noise | None = None) -> Rule | None:
        """The rule that makes more pairs needless; None while the verdict is open.

        `elsewhere` is the noise of the other regions at the same point.
        """
        known = self.noise + (elsewhere or Noise())
        careful = self.half_width(known.variance) * _noise_bound(known.df)
        if self.pairs >= _MIN_PAIRS and careful <= _PRECISE_HALF_WIDTH:
            return "precise"
        half = self.half_width()
        sequence = half * sequence_factor(self.pairs)
        beyond = abs(self.slope) - sequence > WORTHWHILE_GAIN and sequence <= _EFFECT_PART * abs(self.slope)
        return "effect" if self.pairs >= _MIN_PAIRS and beyond else None


def _noise_bound(df: float) -> float:
    # The upper bound of a standard deviation, relative to its estimate (Wilson and Hilferty's chi-squared).
    if df <= 0:
        return math.inf
    part = 2.0 / (9.0 * df)
    return math.pow(max(1.0 - part - _NOISE_Z * math.sqrt(part), 0.05), -1.5)


def sequence_factor(pairs: float) -> float:
    """How much wider a 95 % confidence sequence is than the fixed-sample interval after so many pairs.

    The normal mixture of Robbins with its scale tuned for a dozen pairs: between 1.5 and 1.9 for anything practical.
    """
    if pairs <= 0:
        return math.inf
    scale = pairs * _mixture_variance()
    return math.sqrt((1.0 + 1.0 / scale) * math.log((1.0 + scale) / _ALPHA**2)) / _Z


def sequence_p_value(z: float, pairs: float) -> float:
    """The p-value that holds at all times together, from a normal deviate `z` after so many pairs (Ville, 1939)."""
    scale = pairs * _mixture_variance()
    return min(1.0, math.sqrt(1.0 + scale) * math.exp(-z * z * scale / (2.0 * (1.0 + scale))))


def _mixture_variance() -> float:
    # Waudby-Smith et al., Time-uniform central limit theory, 2021, appendix: tightest at a given time.
    wanted = -2.0 * math.log(_ALPHA)
    return (wanted + math.log(wanted + 1.0)) / _TUNED_FOR


def t_quantile(df: float) -> float:
    """The 97.5 % quantile of Student's t for 2 degrees of freedom or more, within 0.5 % from 3 on.

    Expansion in 1 / df (Abramowitz and Stegun, 26.7.5): the scheduler does not load scipy while it measures.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / df ** (power + 1) for power, term in enumerate(terms))
