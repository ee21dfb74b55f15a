"""Atoms: what is clustered. Traces with the same internals are one atom when one line fits them, else one each.

Internals explain, so traces that called the same functions should get the same label; that also settles the traces
where two lines meet. But a difference that the internals do not explain must stay visible: a group in which two lines
are more likely than one is taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from causal.drt.modes import has_valley, has_valley_between
from causal.drt.problem import Problem
from causal.drt.traces import Bools, Floats, Ints

# A trace that far from its group's line (in robust standard deviations) does not speak for the group: one Gaussian
# trace in two million.
_FAR = 5.0
_ROBUST_SD = 1.4826  # the standard deviation of a Gaussian over its median absolute deviation
_ROBUST_ROUNDS = 12
_TWO_ROUNDS = 12
# Two lines in a group must bring more than in so many groups that have one: an error level of 1 %.
_CHANCES = 99
# In groups of more traces chance does not bring two lines (simulated: in less than 1 % of them).
_SURE = 60


@dataclass(frozen=True)
class Atoms:
    """A atoms with their sums: `size` (A,) traces, `moments` (A, 1 + Q + Q*Q) of y*y, x*y and x*x'.

    `of_trace` (N,) is the atom of each trace, -1 for traces that were left out by sampling.
    """

    size: Floats
    moments: Floats
    of_trace: Ints
    single: Bools

    @property
    def width(self) -> int:
        """Q, the number of coefficients of a line."""
        return int((np.sqrt(4 * self.moments.shape[1] - 3) - 1) / 2)

    def __len__(self) -> int:
        return len(self.size)


def smallest_group(width: int) -> int:
    """Traces needed before a group can be tested: enough for two lines, twice over."""
    return 4 * width


def make_atoms(problem: Problem, partition: Ints) -> Atoms:
    """The atoms of a partition of the traces; `partition` (N,) numbers them from 0."""
    target, design = problem.target, problem.design
    columns = [target * target]
    columns += [design[:, i] * target for i in range(design.shape[1])]
    columns += [design[:, i] * design[:, j] for i in range(design.shape[1]) for j in range(design.shape[1])]
    count = int(partition.max()) + 1
    moments: Floats = np.stack([np.bincount(partition, column, count) for column in columns], axis=1, dtype=np.float64)
    size: Floats = np.bincount(partition, minlength=count).astype(np.float64)
    return Atoms(size, moments, partition, np.asarray(size == 1))


def sample_atoms(atoms: Atoms, most: int, rng: np.random.Generator) -> Atoms:
    """All groups, and at most `most` of the single traces, which then count for those left out."""
    singles = np.flatnonzero(atoms.single)
    if len(singles) <= most:
        return atoms
    kept_singles = np.sort(rng.choice(singles, most, replace=False))
    weight = len(singles) / most
    kept = np.sort(np.concatenate([np.flatnonzero(~atoms.single), kept_singles]))
    factor = np.where(atoms.single[kept], weight, 1.0)
    number = np.full(len(atoms), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    return Atoms(
        atoms.size[kept] * factor, atoms.moments[kept] * factor[:, None], number[atoms.of_trace], atoms.single[kept]
    )


def split_groups(problem: Problem, coarse: Ints, fine: Ints) -> Ints:
    """The partition of the traces into atoms: coarse groups where one line fits, else fine ones, else single traces.

    `coarse` and `fine` (N,) number the groups; every fine group lies in one coarse group.
    """
    whole = _fitting(problem, coarse)
    rest = np.flatnonzero(whole < 0)
    parts = np.full(len(coarse), -1, dtype=np.int64)
    if len(rest):
        parts[rest] = _fitting(problem, np.unique(fine[rest], return_inverse=True)[1], rest)
    # Three kinds of numbers made one: kept coarse groups, kept fine groups, and one per remaining trace.
    kind = np.where(whole >= 0, 0, np.where(parts >= 0, 1, 2))
    number = np.where(kind == 0, whole, np.where(kind == 1, parts, np.arange(len(coarse))))
    return np.asarray(np.unique(kind * (len(coarse) + 1) + number, return_inverse=True)[1], dtype=np.int64)


def _fitting(problem: Problem, groups: Ints, rows: Ints | None = None) -> Ints:
    """The groups' numbers for traces in groups that one line fits, -1 for all other traces."""
    rows = np.arange(len(groups)) if rows is None else rows
    design, target = problem.design[rows], problem.target[rows]
    least = smallest_group(design.shape[1])
    large = np.bincount(groups)[groups] >= least
    result = np.full(len(groups), -1, dtype=np.int64)
    if not large.any():
        return result
    where = np.flatnonzero(large)
    local = np.unique(groups[where], return_inverse=True)[1]
    residual = _robust_residuals(design[where], target[where], local)
    near = np.abs(residual) <= _FAR * _robust_scale(residual, local, problem.smallest_sigma)[local]
    where, local, residual = where[near], local[near], residual[near]
    # In equal and in size-proportional scatter: two lines that fan out show in the second, parallel ones in the first.
    scatter = problem.scatter[rows[where]]
    expected = np.maximum(np.abs(design[where] @ np.ones(design.shape[1])), 1e-12)
    two = np.zeros(int(local.max()) + 1, dtype=np.bool_)
    for scaled in (residual, residual * scatter, residual / expected):
        two |= _looks_like_two(scaled, local, problem.smallest_sigma, least // 4)
    for group in np.flatnonzero(two):
        two[group] = _has_two_modes(residual[local == group], scatter[local == group], expected[local == group])
    two |= _has_two_lines(design[where], target[where], residual, local, problem.smallest_sigma)
    enough = np.bincount(local) >= least
    one = ~two[local] & enough[local]
    result[where[one]] = groups[where[one]]
    return result


def _robust_residuals(design: Floats, target: Floats, groups: Ints) -> Floats:
    """Residuals from each group's least-absolute-deviations line, by iteratively reweighted least squares."""
    count, width = int(groups.max()) + 1, design.shape[1]
    weights = np.ones(len(target))
    residual = target
    for _ in range(_ROBUST_ROUNDS):
        weighted = design * weights[:, None]
        gram = np.empty((count, width, width))
        right = np.empty((count, width, 1))
        for i in range(width):
            right[:, i, 0] = np.bincount(groups, weighted[:, i] * target, count)
            for j in range(width):
                gram[:, i, j] = np.bincount(groups, weighted[:, i] * design[:, j], count)
        lines = solve_lines(gram, right[..., 0])
        residual = target - np.einsum("nq,nq->n", design, lines[groups])
        scale = np.bincount(groups, np.abs(residual), count) / np.bincount(groups, minlength=count)
        # No weight above that of a residual of one thousandth of the mean one: exact fits would weigh infinitely.
        weights = 1.0 / np.maximum(np.abs(residual), np.maximum(1e-3 * scale, 1e-12)[groups])
    return np.asarray(residual)


def solve_lines(gram: Floats, right: Floats) -> Floats:
    """Least-squares lines (..., Q) from their normal equations; with too few points, the smallest of those that fit."""
    width = gram.shape[-1]
    trace = np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
    # A ridge of the size of rounding errors: it decides only where the data do not.
    ridge = (1e-10 * trace / width + 1e-300) * np.eye(width)
    return np.asarray(np.linalg.solve(gram + ridge, right[..., None])[..., 0])


def _robust_scale(residual: Floats, groups: Ints, floor: float) -> Floats:
    """Robust standard deviation per group."""
    magnitude = np.abs(residual)
    order = np.lexsort((magnitude, groups))
    sizes = np.bincount(groups)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.maximum(_ROBUST_SD * magnitude[order][starts + sizes // 2], floor)


def _has_two_modes(residual: Floats, scatter: Floats, expected: Floats) -> bool:
    """Whether a group that looks like two heaps in one of the three views has a valley there, and not just a tail."""
    for scaled in (residual, residual * scatter, residual / expected):
        values = np.sort(scaled)
        before = np.cumsum(values)[:-1]
        left = np.arange(1, len(values))
        # The cut that leaves the least sum of squares, as in one step of 2-means.
        between = (before - values.sum() * left / len(values)) ** 2 / (left * (len(values) - left))
        cut = int(np.argmax(between)) + 1
        low, high = float(np.median(values[:cut])), float(np.median(values[cut:]))
        if high > low and has_valley((values - low) / (high - low)):
            return True
    return False


def _has_two_lines(design: Floats, target: Floats, residual: Floats, groups: Ints, floor: float) -> Bools:
    """Per group, whether two lines are more likely than one, with a valley between them.

    Two lines that meet leave no two heaps of residuals from a line between them: most residuals are small. So both
    lines are fitted, as in the ladder, from two starts: traces above the common line and below, far from it and near.
    """
    width = design.shape[1]
    found = np.zeros(int(groups.max()) + 1, dtype=np.bool_)
    for two in _fit_two_lines(design, target, residual, groups, floor):
        for group in np.flatnonzero((two.gain > 0) & (two.sizes.min(axis=1) > width) & ~found):
            rows = groups == group
            pair = slice(2 * group, 2 * group + 2)
            found[group] = has_valley_between(design[rows], target[rows], two.lines[pair], two.sigma[pair]) and (
                rows.sum() > _SURE or two.gain[group] > _gain_by_chance(design[rows], target[rows], floor)
            )
    return found


@dataclass(frozen=True)
class _TwoLines:
    """G groups in two: `gain` (G,), `sizes` (G, 2), `lines` (2 G, Q), `sigma` (2 G,)."""

    gain: Floats
    sizes: Ints
    lines: Floats
    sigma: Floats


def _fit_two_lines(design: Floats, target: Floats, residual: Floats, groups: Ints, floor: float) -> Iterator[_TwoLines]:
    """Two lines per group from each start, and how much more likely they are than one."""
    count, width = int(groups.max()) + 1, design.shape[1]
    size = np.bincount(groups, minlength=count).astype(np.float64)
    magnitude = np.abs(residual)
    typical = _robust_scale(residual, groups, 0.0) / _ROBUST_SD
    before = _lines_of(design, target, groups, count, floor)[1]
    for side in (residual > 0, magnitude > typical[groups]):
        for _ in range(_TWO_ROUNDS):
            lines, sigma = _lines_of(design, target, 2 * groups + side, 2 * count, floor)
            costs = [
                np.log(sigma[2 * groups + k])
                + 0.5 * ((target - np.einsum("nq,nq->n", design, lines[2 * groups + k])) / sigma[2 * groups + k]) ** 2
                for k in (0, 1)
            ]
            side = costs[1] < costs[0]
        lines, sigma = _lines_of(design, target, 2 * groups + side, 2 * count, floor)
        sizes = np.bincount(2 * groups + side, minlength=2 * count).reshape(count, 2)
        # As in _looks_like_two: what is saved, less the entropy of the shares and the price of line, scatter, share.
        saved = size * np.log(before) - (sizes * np.log(sigma.reshape(count, 2))).sum(axis=1)
        entropy = -(sizes * np.log(np.maximum(sizes, 1) / size[:, None])).sum(axis=1)
        yield _TwoLines(saved - entropy - (width + 2) / 2 * np.log(size), sizes, lines, sigma)


def _gain_by_chance(design: Floats, target: Floats, floor: float) -> float:
    """The gain that two lines bring in the luckiest of _CHANCES groups that have one line and bell-shaped scatter.

    Among a dozen traces three are close to some line by chance, and the likelihood of so small a scatter is without
    bounds: no penalty for parameters holds it. So the gain is compared with what it is on the same inputs without a
    second line (parametric bootstrap of the likelihood ratio: McLachlan, Applied Statistics 36, 1987).
    """
    rng = np.random.default_rng(len(target))
    one = np.zeros(len(target), dtype=np.int64)
    line, sigma = _lines_of(design, target, one, 1, floor)
    noise = sigma[0] * rng.standard_normal((_CHANCES, len(target)))
    targets = (design @ line[0] + noise).ravel()
    designs = np.tile(design, (_CHANCES, 1))
    groups = np.repeat(np.arange(_CHANCES), len(target))
    residual = _robust_residuals(designs, targets, groups)
    gains = [
        np.where(two.sizes.min(axis=1) > design.shape[1], two.gain, 0.0)
        for two in _fit_two_lines(designs, targets, residual, groups, floor)
    ]
    return float(np.max(gains))


def _lines_of(design: Floats, target: Floats, groups: Ints, count: int, floor: float) -> tuple[Floats, Floats]:
    """Least-squares lines (count, Q) of groups of traces, and their scatters (count,)."""
    width = design.shape[1]
    gram, right = np.empty((count, width, width)), np.empty((count, width))
    for i in range(width):
        right[:, i] = np.bincount(groups, design[:, i] * target, count)
        for j in range(width):
            gram[:, i, j] = np.bincount(groups, design[:, i] * design[:, j], count)
    lines = solve_lines(gram, right)
    squares = np.bincount(groups, (target - np.einsum("nq,nq->n", design, lines[groups])) ** 2, count)
    sigma = np.sqrt(squares / np.maximum(np.bincount(groups, minlength=count), 1))
    return lines, np.maximum(sigma, floor)


def _looks_like_two(residual: Floats, groups: Ints, floor: float, least: int) -> Bools:
    """Per group, whether its residuals are more likely two heaps than one, in the sense of the ladder's criterion.

    Cutting n residuals in two saves n log(sd before / sd after), and costs n times the entropy of the cut and half
    the logarithm of n per additional parameter (mean, scatter, share).
    """
    order = np.lexsort((residual, groups))
    values, at = residual[order], groups[order]
    sizes = np.bincount(groups)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    total = np.bincount(at, values, len(sizes))
    values = values - (total / sizes)[at]
    sums = np.cumsum(values)
    before = np.concatenate([[0.0], sums])[starts][at]
    left = np.arange(len(values)) - starts[at] + 1.0
    size = sizes[at].astype(np.float64)
    right = size - left
    possible = (left >= least) & (right >= least)
    left, right = np.where(possible, left, 1.0), np.where(possible, right, 1.0)
    squares = np.bincount(at, values**2, len(sizes))[at]
    within = squares - (sums - before) ** 2 * (1.0 / left + 1.0 / right)
    floor_squares = size * floor**2
    saved = size / 2 * np.log((squares + floor_squares) / (np.maximum(within, 0.0) + floor_squares))
    entropy = -(left * np.log(left / size) + right * np.log(right / size))
    gain = np.where(possible, saved - entropy - 1.5 * np.log(size), -np.inf)
    return np.asarray(np.maximum.reduceat(gain, starts) > 0)
