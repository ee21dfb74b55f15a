"""The verdict on a region in words, from its numbers alone."""

from __future__ import annotations

import math

from causal.analysis.results import CurveFit, Gain, Verdict

SIGNIFICANT = 0.05
# A gain that cannot be told from nothing in practice is not worth a programmer's day.
_WORTHWHILE_GAIN = 0.01
# What is worth nothing was predicted up to 2.8 points low (docs/accuracy.md), just outside of its interval. Before
# anybody is sent to look for a lock, a loss must be more certain than that.
_CERTAIN_LOSS = 0.01
# How well a gain must be known before "no effect" may be said.
TARGET_HALF_WIDTH = 0.025
# A false gain of more than this in the dilation arm makes the numbers of the region worthless.
MATERIAL_DILATION = 0.02
_LONGEST_ADVICE = 100


# A paced program shows in the dilation arm what it shows in the treated arm. Less than this part of it is no pace, but
# an error of the method (pauses cost something, or take pressure off locks and caches), and goes into the interval.
_PACED_PART = 0.5


def is_paced(dilation: Gain | None, dilation_level: float, treated: Gain | None, treated_level: float) -> bool:
    """Whether something outside sets the pace of the program.

    In the dilation arm nothing is sped up and everything pauses: a program that depends on nothing outside shows no
    gain there, a paced one the same false gain as in the treated arm (design: section 4). The arms are compared per
    virtual speedup, so `*_level` are the mean levels behind the gains (fractions).
    """
    if dilation is None or dilation_level <= 0:
        return False
    claimed = treated.gain / treated_level if treated is not None and treated_level > 0 else 0.0
    # There is a false gain for sure, and it is nearer to that of a paced program than to none.
    certain = dilation.ci[0] > 0 and dilation.gain > MATERIAL_DILATION
    return certain and dilation.gain / dilation_level >= _PACED_PART * claimed


def judge(fit: CurveFit | None, p_value: float | None, paced: bool, why_no_fit: str) -> tuple[Verdict, str]:
    """The verdict and a sentence that explains it; `p_value` is the adjusted one."""
    if paced:
        return Verdict.PACED, (
            "paced from outside: stretching time alone changes the rate (a deadline, a timer or an outside client"
            " sets the pace), so no gain can be predicted"
        )
    if fit is None or p_value is None:
        return Verdict.UNDECIDED, f"undecided: {why_no_fit}"
    level = fit.max_level if fit.knee is None else min(fit.knee, fit.max_level)
    best = fit.at(level)
    low, high = best.ci
    if p_value < SIGNIFICANT and abs(best.gain) >= _WORTHWHILE_GAIN:
        if low > 0:
            return Verdict.OPTIMISE, (
                f"worth optimising: the program gets up to {_percent(best.gain)} faster by making this"
                f" {_percent(level)} faster"
            )
        if high < -_CERTAIN_LOSS:
            return Verdict.CONTENTION, (
                f"contention: making this {_percent(level)} faster makes the program {_percent(-best.gain)} slower: it"
                " comes back sooner to something that others need (a lock, a cache line, a full queue); change that"
            )
    half = best.margin
    if half <= TARGET_HALF_WIDTH:
        return Verdict.NO_EFFECT, (
            f"no effect: making this {_percent(level)} faster changes the program by {_signed(low)} to {_signed(high)}"
        )
    if not fit.is_evidence:
        return Verdict.UNDECIDED, f"undecided: {longer(half)}"
    return Verdict.UNDECIDED, (
        f"undecided: the gain at {_percent(level)} is known to {half * 100:.1f} points only; {longer(half)}"
    )


def phases_words(measured: CurveFit, factor: float) -> str:
    """What a correction for phases did, in words; `measured` is the curve without it."""
    level = measured.max_level if measured.knee is None else min(measured.knee, measured.max_level)
    gain = measured.at(level).gain
    return (
        f"{_percent(abs(gain))} in the phases in which its experiments were made; over the whole run it is active"
        f" {_percent(factor)} as much"
    )


def longer_factor(half_width: float) -> int:
    """How many times as long to run for the target half-width: it shrinks with the root of the number of pairs."""
    return max(2, math.ceil((half_width / TARGET_HALF_WIDTH) ** 2))


def longer(half_width: float) -> str:
    """The advice that goes with an interval that is too wide."""
    factor = longer_factor(half_width)
    if factor > _LONGEST_ADVICE:
        return "far too little was seen: run for minutes, or choose a progress point that is visited more often"
    return f"run {factor} times as long, or try fewer regions (--only)"


def _percent(fraction: float) -> str:
    # Digits only where they mean something: 0.4%, 12%.
    points = fraction * 100
    return f"{points:.1f}%" if abs(points) < 10 and round(points, 1) != round(points) else f"{points:.0f}%"


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.1f}%"
