"""Where K-linear clustering starts from. One random start finds the classes less than half of the time (42 % on
SnapBuddy's data with K = 5), so there are several of three kinds: merging, growing, and chains of random lines.
"""

from __future__ import annotations

import numpy as np

from causal.drt.atoms import Atoms
from causal.drt.lines import Fit, KLinear, fit_moments
from causal.drt.traces import Floats, Ints

# Enough that of candidate lines through random atoms several lie in each class of a tenth of the traces or more:
# 400 * 0.1^2 = 4. Smaller classes are found by growing, which draws from the traces explained worst.
_CANDIDATES = 400
_CHAINS = 6
_GROWN = 4
# Merging takes a matrix of all pairs; the largest groups stand for the rest.
_MOST_MERGED = 256


class Starts:
    """Starting lines for any K; chains and merges are made once and cut at K."""

    def __init__(self, clustering: KLinear, atoms: Atoms, most: int, rng: np.random.Generator) -> None:
        self._clustering = clustering
        self._atoms = atoms
        self._rng = rng
        self._merged = _merge_groups(atoms, most)
        pool = self._candidates(atoms.size / atoms.size.sum(), _CANDIDATES)
        self._chains = self._make_chains(pool, most)

    def at(self, classes: int, smaller: Fit | None) -> Floats:
        """Starts (S, K, Q) for K classes; `smaller` is the best fit with K - 1."""
        starts = [chain[:classes] for chain in self._chains]
        if classes in self._merged:
            starts.append(self._merged[classes])
        if smaller is not None:
            starts.extend(np.vstack([smaller.lines, line]) for line in self._grow(smaller))
        return np.stack(starts)

    def _candidates(self, chance: Floats, count: int) -> Floats:
        """Lines through as many atoms as it takes, drawn by `chance` (A,); (count, Q)."""
        width = self._atoms.width
        picked = self._rng.choice(len(chance), (count, width), p=chance)
        return fit_moments(self._atoms.moments[picked].sum(axis=1), width)[0]

    def _distances(self, lines: Floats) -> Floats:
        """Sums of absolute residuals (L, A), nearly: outliers must not draw lines to themselves by their squares."""
        return np.sqrt(self._clustering.squares(lines) * self._atoms.size)

    def _make_chains(self, pool: Floats, most: int) -> list[Floats]:
        """Sequences of lines, each next one being among the best to add to those before it."""
        distances = self._distances(pool)
        chains = []
        for _ in range(_CHAINS):
            nearest = np.full(len(self._atoms), np.inf)
            chain: list[int] = []
            for _ in range(most):
                totals = np.minimum(distances, nearest).sum(axis=1)
                # The best of a random fifth: good lines, but other ones in each chain.
                some = self._rng.choice(len(pool), max(1, len(pool) // 5), replace=False)
                chosen = int(some[np.argmin(totals[some])])
                chain.append(chosen)
                nearest = np.minimum(nearest, distances[chosen])
            chains.append(pool[chain])
        return chains

    def _grow(self, smaller: Fit) -> Floats:
        """The lines that help most beside those of a smaller fit, through traces which that explains badly."""
        nearest = self._distances(smaller.lines).min(axis=0)
        total = nearest.sum()
        chance = nearest / total if total > 0 else self._atoms.size / self._atoms.size.sum()
        pool = self._candidates(chance, _CANDIDATES // 2)
        totals = np.minimum(self._distances(pool), nearest).sum(axis=1)
        return pool[np.argsort(totals, kind="stable")[:_GROWN]]


def _merge_groups(atoms: Atoms, most: int) -> dict[int, Floats]:
    """Lines of the groups merged step by step, those first whose common line costs least (Ward); by number of lines."""
    groups = np.flatnonzero(~atoms.single)
    if len(groups) < 2:
        return {}
    groups = groups[np.argsort(-atoms.size[groups], kind="stable")[:_MOST_MERGED]]
    moments = atoms.moments[groups].copy()
    width = atoms.width
    own = fit_moments(moments, width)[1]
    costs = np.full((len(moments), len(moments)), np.inf)
    for row in range(len(moments)):
        costs[row] = _merge_costs(moments, own, row, width)
    alive: Ints = np.arange(len(moments))
    lines: dict[int, Floats] = {}
    while True:
        if len(alive) <= most:
            lines[len(alive)] = fit_moments(moments[alive], width)[0]
        if len(alive) == 1:
            return lines
        best = int(np.argmin(costs))
        kept, gone = divmod(best, len(moments))
        moments[kept] += moments[gone]
        own[kept] = fit_moments(moments[kept], width)[1]
        alive = alive[alive != gone]
        updated = np.full(len(moments), np.inf)
        updated[alive] = _merge_costs(moments, own, kept, width)[alive]
        costs[kept], costs[:, kept] = updated, updated
        costs[gone], costs[:, gone] = np.inf, np.inf


def _merge_costs(moments: Floats, own: Floats, row: int, width: int) -> Floats:
    """What one line for group `row` and each other group costs above a line for each; infinite for itself."""
    together = fit_moments(moments + moments[row], width)[1]
    costs = together - own - own[row]
    costs[row] = np.inf
    return np.asarray(costs)
