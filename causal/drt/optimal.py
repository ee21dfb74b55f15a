"""The smallest tree, by exact search: greedy splits cannot see parity, where no single function tells anything.

Dynamic programming over the sets of rows that tests can separate, as in DL8 (Nijssen and Fromont, 2007): the best tree
for a set is a leaf, or the cheapest test with the best trees of both its sides. Because traces with equal features are
one row, there are few sets: at most 3^m for m functions, and at most 2^U for U rows.
"""

from __future__ import annotations

import numpy as np

from causal.drt.traces import Bools, Floats, Ints
from causal.drt.tree import Node, entropy

# Sets looked at before giving up, some ten seconds: enough for ten functions in all combinations (3^10 = 59,049).
_MOST_SETS = 60_000


class _TooManySets(Exception):
    pass


def find_optimal(values: Floats, counts: Floats, penalty: float, max_depth: int | None, greedy: Node) -> Node:
    """The tree of least description length for rows `values` (U, F) with class counts (U, K).

    Tests are "called", and the thresholds of the `greedy` tree. Where that is too much to search, only the functions
    of the greedy tree are used; where that still is too much, the greedy tree is returned.
    """
    everything = _make_tests(values, greedy, range(values.shape[1]))
    used = sorted({node.feature for node in greedy.inner() if node.feature is not None})
    for tests in (everything, _make_tests(values, greedy, used)):
        try:
            return _Search(values, counts, penalty, tests).best(max_depth)
        except _TooManySets:
            continue
    return greedy


def _make_tests(values: Floats, greedy: Node, features: range | list[int]) -> list[tuple[int, float]]:
    """Pairs of feature and threshold, each of which separates the rows in another way."""
    wanted = [(feature, 0.5 * _smallest(values[:, feature])) for feature in features]
    wanted += [(node.feature, node.threshold) for node in greedy.inner() if node.feature is not None]
    tests: dict[bytes, tuple[int, float]] = {}
    for feature, threshold in wanted:
        above = values[:, feature] > threshold
        if above.any() and not above.all():
            key = min(above.tobytes(), (~above).tobytes())
            tests.setdefault(key, (feature, threshold))
    return list(tests.values())


def _smallest(column: Floats) -> float:
    """The smallest number of calls, where there are calls; for counts that is 1, and for a rate it is any number."""
    called = column[column > 0]
    return float(called.min()) if len(called) else 1.0


class _Search:
    """One search; remembers the best tree of every set of rows."""

    def __init__(self, values: Floats, counts: Floats, penalty: float, tests: list[tuple[int, float]]) -> None:
        self._counts = counts
        self._penalty = penalty
        self._tests = tests
        self._above: Bools = np.array([values[:, f] > t for f, t in tests]).reshape(len(tests), len(values))
        # Traces of one row cannot be told apart by any tree.
        self._own = np.array([entropy(row) for row in counts])
        self._known: dict[tuple[bytes, int], tuple[float, Node]] = {}

    def best(self, max_depth: int | None) -> Node:
        """The cheapest tree for all rows."""
        depth = len(self._tests) if max_depth is None else min(max_depth, len(self._tests))
        return self._solve(np.arange(len(self._counts)), depth)[1]

    def _solve(self, rows: Ints, depth: int) -> tuple[float, Node]:
        key = (rows.tobytes(), min(depth, len(rows)))
        if key not in self._known:
            if len(self._known) >= _MOST_SETS:
                raise _TooManySets
            self._known[key] = self._search(rows, depth)
        return self._known[key]

    def _search(self, rows: Ints, depth: int) -> tuple[float, Node]:
        total = self._counts[rows].sum(axis=0)
        cost, node = entropy(total) + self._penalty, Node(total)
        least = float(self._own[rows].sum()) + 2 * self._penalty
        if depth == 0 or cost <= least:
            return cost, node
        sides = self._above[:, rows]
        yes = sides.sum(axis=1)
        for number in np.flatnonzero((yes > 0) & (yes < len(rows))):
            above = sides[number]
            second_rows = rows[above]
            first_cost, first = self._solve(rows[~above], depth - 1)
            if first_cost + self._penalty + float(self._own[second_rows].sum()) >= cost:
                continue
            second_cost, second = self._solve(second_rows, depth - 1)
            if first_cost + second_cost < cost - 1e-9:
                feature, threshold = self._tests[number]
                cost, node = first_cost + second_cost, Node(total, feature, threshold, (first, second))
        return cost, node
