"""K-linear clustering: K-means with lines as centroids, from many starts at once.

Each class k is a line b_k with scatter s_k. As in K-means, atoms are given to the class under which they are most
likely, and classes are fitted to their atoms, until nothing changes. This maximises the classification likelihood. It
is judged with the shares of the classes and the penalty of BIC, which is the integrated completed likelihood
(Biernacki, Celeux and Govaert, 2000): it counts a class only where traces can be told to belong to it. Single traces
may also belong to no class: outliers have a uniform density.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from causal.drt.atoms import Atoms, smallest_group, solve_lines
from causal.drt.modes import all_distinct
from causal.drt.problem import Problem
from causal.drt.traces import Floats, Ints

# A class is at least this share of the traces, and more traces than exceptions than that are not exceptions.
SMALLEST_SHARE = 0.01
_LOG_TAU = float(np.log(2 * np.pi))
OUTLIER = -1


@dataclass(frozen=True)
class Fit:
    """One clustering of atoms into K classes.

    `lines` is (K, Q) in the problem's units, `sigma` and `share` (K,), `labels` (A,) the class of each atom or OUTLIER.
    `criterion` is -2 log likelihood + penalty: the smaller the better. `valid` is false for classes that are too small,
    or so close that their scatter hides the difference.
    """

    lines: Floats
    sigma: Floats
    share: Floats
    labels: Ints
    criterion: float
    valid: bool

    @property
    def empty(self) -> int:
        """How many classes have no atoms."""
        return len(self.lines) - len(np.unique(self.labels[self.labels != OUTLIER]))


@dataclass
class _State:
    """S starts at once: lines (S, K, Q), sigma and share (S, K), outlier_share (S,)."""

    lines: Floats
    sigma: Floats
    share: Floats
    outlier_share: Floats


class KLinear:
    """Clusters the atoms of one problem; `rng` serves to reseed classes that lost all their atoms."""

    def __init__(self, problem: Problem, atoms: Atoms, rng: np.random.Generator) -> None:
        self._problem = problem
        self._atoms = atoms
        self._rng = rng
        self._width = atoms.width
        self._total = float(atoms.size.sum())
        self.smallest_class = max(SMALLEST_SHARE * self._total, self._width + 2.0)
        one = 1.0 if self._total >= smallest_group(self._width) else 0.0
        self._most_outliers = max(SMALLEST_SHARE * self._total, one)

    def squares(self, lines: Floats) -> Floats:
        """Sums of squared residuals of every atom from lines (L, Q): (L, A)."""
        products = (lines[:, :, None] * lines[:, None, :]).reshape(len(lines), -1)
        factors = np.concatenate([np.ones((len(lines), 1)), -2.0 * lines, products], axis=1)
        return np.maximum(factors @ self._atoms.moments.T, 0.0)

    def run(self, starts: Floats, rounds: int = 60) -> Fit:
        """The best fit from starts (S, K, Q): valid before invalid, few empty classes, then the smaller criterion."""
        fits = sorted(self._converge(starts, rounds), key=lambda fit: (not fit.valid, fit.empty, fit.criterion))
        for fit in fits:
            if not fit.valid:
                break
            if all_distinct(self._problem, fit.lines, fit.sigma, label_traces(self._atoms, fit)):
                return fit
        return replace(fits[0], valid=False)

    def _converge(self, starts: Floats, rounds: int) -> list[Fit]:
        count, classes, width = starts.shape
        squares = self.squares(starts.reshape(-1, width)).reshape(count, classes, -1)
        labels = np.argmin(squares, axis=1)
        state = self._fit(labels, classes)
        for turn in range(rounds):
            if turn < rounds // 2:
                self._reseed(state)
            updated = self._assign(self._costs(state))
            if np.array_equal(updated, labels):
                break
            labels = updated
            state = self._fit(labels, classes)
        state = self._fit(labels, classes)
        costs = self._costs(state)
        costs[:, :-1] -= np.log(classes * state.share)[:, :, None] * self._atoms.size
        return [self._judge(state, labels, costs, start) for start in range(count)]

    def _assign(self, costs: Floats) -> Ints:
        """The cheapest class of each atom, (S, A); of more outliers than may be, the nearest ones join a class."""
        classes = costs.shape[1] - 1
        labels = np.argmin(costs, axis=1)
        outside = labels == classes
        for start in np.flatnonzero(outside @ self._atoms.size > self._most_outliers):
            inside = costs[start, :-1]
            gain = inside.min(axis=0) - costs[start, -1]
            farthest = np.flatnonzero(outside[start])
            farthest = farthest[np.argsort(-gain[farthest], kind="stable")]
            back = farthest[np.cumsum(self._atoms.size[farthest]) > self._most_outliers]
            labels[start, back] = np.argmin(inside[:, back], axis=0)
        return np.where(labels == classes, OUTLIER, labels)

    def _fit(self, labels: Ints, classes: int) -> _State:
        """Lines, scatters and shares for labels (S, A)."""
        atoms = self._atoms
        member = (labels[:, None, :] == np.arange(classes)[None, :, None]).astype(np.float64)
        size = member @ atoms.size
        moments = member @ atoms.moments
        lines, squares = fit_moments(moments, self._width)
        sigma = np.sqrt(squares / np.maximum(size, 1.0))
        outliers = np.maximum(self._total - size.sum(axis=1), 0.0)
        return _State(
            lines,
            np.maximum(sigma, self._problem.smallest_sigma),
            np.maximum(size, 0.5) / self._total,
            # One more than there are: the chance of an outlier must not be 0 while there is none.
            np.minimum((outliers + 1.0) / self._total, SMALLEST_SHARE),
        )

    def _costs(self, state: _State) -> Floats:
        """Negative log likelihoods (S, K + 1, A); the last class is that of outliers, open to single traces alone."""
        count, classes, width = state.lines.shape
        squares = self.squares(state.lines.reshape(-1, width)).reshape(count, classes, -1)
        # All shares alike: with their own, small classes would be eaten by large ones before they are judged.
        constant = np.log(state.sigma) + 0.5 * _LOG_TAU + np.log(classes)
        costs = squares / (2.0 * state.sigma**2)[:, :, None] + constant[:, :, None] * self._atoms.size
        outside = np.log(self._problem.spread) - np.log(state.outlier_share)
        outlier = np.where(self._atoms.single, outside[:, None] * self._atoms.size, np.inf)
        return np.concatenate([costs, outlier[:, None, :]], axis=1)

    def _reseed(self, state: _State) -> None:
        """Gives classes without atoms a new line, through the atoms that are explained worst."""
        empty = np.argwhere(state.share * self._total < 1.0)
        if not len(empty):
            return
        costs = self._costs(state)[:, :-1].min(axis=1)
        for start, classes in empty:
            chance = np.maximum(costs[start] - costs[start].min(), 1e-12)
            picked = self._rng.choice(len(chance), self._width, p=chance / chance.sum())
            line, _ = fit_moments(self._atoms.moments[picked].sum(axis=0)[None], self._width)
            state.lines[start, classes] = line[0]
            state.sigma[start, classes] = np.median(state.sigma[start])
            state.share[start, classes] = 1.0 / state.lines.shape[1]

    def _judge(self, state: _State, labels: Ints, costs: Floats, start: int) -> Fit:
        lines, sigma, share = state.lines[start], state.sigma[start], state.share[start]
        own = np.where(labels[start] == OUTLIER, len(lines), labels[start])
        likelihood = -float(costs[start][own, np.arange(len(own))].sum())
        classes = len(lines)
        parameters = classes * (self._width + 1) + classes - 1 + self._problem.shape.free_parameters
        criterion = -2.0 * likelihood + parameters * float(np.log(self._total))
        valid = bool(
            (share * self._total >= self.smallest_class - 1e-9).all() and self._distinct(lines, sigma, labels[start])
        )
        return Fit(lines, sigma, share, labels[start], criterion, valid)

    def _distinct(self, lines: Floats, sigma: Floats, labels: Ints) -> bool:
        """Whether any two lines differ, over the traces of both, by more than both their scatters together."""
        grams = np.stack([self._atoms.moments[labels == k].sum(axis=0) for k in range(len(lines))])
        sizes = np.array([self._atoms.size[labels == k].sum() for k in range(len(lines))])
        grams = grams[:, 1 + self._width :].reshape(-1, self._width, self._width)
        for a in range(len(lines)):
            for b in range(a):
                gap = lines[a] - lines[b]
                apart = gap @ (grams[a] + grams[b]) @ gap / max(sizes[a] + sizes[b], 1.0)
                if not apart > (sigma[a] + sigma[b]) ** 2:
                    return False
        return True


def fit_moments(moments: Floats, width: int) -> tuple[Floats, Floats]:
    """Least-squares lines (..., Q) and their sums of squared residuals (...) from moments (..., 1 + Q + Q*Q)."""
    right = moments[..., 1 : 1 + width]
    gram = moments[..., 1 + width :].reshape(*moments.shape[:-1], width, width)
    lines = solve_lines(gram, right)
    squares = moments[..., 0] - 2.0 * (lines * right).sum(axis=-1) + np.einsum("...i,...ij,...j", lines, gram, lines)
    return lines, np.maximum(squares, 0.0)


def label_traces(atoms: Atoms, fit: Fit) -> Ints:
    """Labels (N,) of the traces from those of their atoms; traces that were not sampled are OUTLIER."""
    return np.where(atoms.of_trace >= 0, fit.labels[atoms.of_trace], OUTLIER)
