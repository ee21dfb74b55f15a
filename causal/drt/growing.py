"""Grows the tree: scikit-learn's greedy splits on what distinct traces there are, then pruned.

Traces with the same features are one weighted row, so 12,800 traces of seven functions are 128 rows. Of thousands of
functions only those are tried that say something about the classes, at the root or within a leaf that is still mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from causal.drt.features import Features
from causal.drt.optimal import find_optimal
from causal.drt.traces import Floats, Ints, Sparse
from causal.drt.tree import Node, leaf_cost, leaf_numbers, prune, renumber, tree_cost

# Up to here all features are tried; above, the most telling ones: a tree that a person can read uses a dozen.
_MOST_FEATURES = 256
_SCREENED_ROOT, _SCREENED_LEAF = 64, 8
_SCREENING_ROUNDS = 6
# Among equal splits scikit-learn takes any, and which are equal depends on how impurity is measured and on whether
# traces or distinct rows are counted. With few rows there is time to try what makes the smallest tree.
_RETRIES, _RETRY_ROWS = 4, 2000
_VARIANTS = tuple(product(("gini", "entropy"), (True, False), range(_RETRIES)))
# Beyond this many leaves no tree is read; it bounds the time spent on labels that nothing explains.
_MOST_LEAVES = 256


@dataclass(frozen=True)
class Table:
    """Distinct rows: `values` (U, F) in the order of features, `row_of` (N,) the row of each trace.

    The values are rounded to single precision, in which scikit-learn compares.
    """

    values: Floats
    row_of: Ints

    def counts(self, labels: Ints, classes: int, chosen: Ints | None = None) -> Floats:
        """Traces of each class in each row (U, K); negative labels (outliers) are not counted."""
        rows = self.row_of if chosen is None else self.row_of[chosen]
        labels = labels if chosen is None else labels[chosen]
        inside = labels >= 0
        flat = rows[inside] * classes + labels[inside]
        size = len(self.values) * classes
        return np.bincount(flat, minlength=size).reshape(len(self.values), classes).astype(np.float64)


def make_table(values: Sparse) -> Table:
    """The distinct rows of a sparse (N, F) matrix, as few columns as to be made dense."""
    dense = np.ascontiguousarray(np.asarray(values.todense(), dtype=np.float32))
    numbers: dict[bytes, int] = {}
    row_of = np.empty(len(dense), dtype=np.int64)
    first: list[int] = []
    for index, row in enumerate(dense):
        key = row.tobytes()
        number = numbers.setdefault(key, len(numbers))
        if number == len(first):
            first.append(index)
        row_of[index] = number
    return Table(dense[first].astype(np.float64), row_of)


@dataclass(frozen=True)
class Growth:
    """How trees are to be grown: at most `max_depth` tests on any way, by greedy splits or optimally."""

    max_depth: int | None = None
    optimal: bool = False


class TreeGrower:
    """Grows trees on the same features again and again, for other labels or some of the traces."""

    def __init__(self, features: Features) -> None:
        self._features = features
        wide = len(features) > _MOST_FEATURES
        self._table = None if wide else make_table(features.values)
        self._screen = Screen(features) if wide else None

    def grow(self, labels: Ints, classes: int, growth: Growth, chosen: Ints | None = None) -> Node:
        """The tree that predicts the labels (N,); `chosen` are the traces to learn from, by default all.

        Outliers (negative labels) are not learned from.
        """
        rows = np.arange(len(labels)) if chosen is None else chosen
        rows = rows[labels[rows] >= 0]
        penalty = leaf_cost(len(self._features), classes, float(len(rows)))
        if self._table is not None:
            return _grow(self._table.values, self._table.counts(labels, classes, rows), penalty, growth)
        assert self._screen is not None
        return _grow_screened(self._features.values, self._screen, labels, classes, growth, rows, penalty)


def grow_tree(features: Features, labels: Ints, classes: int, growth: Growth) -> Node:
    """One tree, as `TreeGrower.grow`."""
    return TreeGrower(features).grow(labels, classes, growth)


def _grow(values: Floats, counts: Floats, penalty: float, growth: Growth) -> Node:
    seen = counts.sum(axis=1) > 0
    values, counts = values[seen], counts[seen]
    greedy = _grow_greedily(values, counts, penalty, growth.max_depth)
    if not growth.optimal:
        return greedy
    return find_optimal(values, counts, penalty, growth.max_depth, greedy)


def _grow_greedily(values: Floats, counts: Floats, penalty: float, max_depth: int | None) -> Node:
    root = counts.sum(axis=0)
    if values.shape[1] == 0 or (root > 0).sum() < 2 or len(values) < 2:
        return Node(root)
    variants = _VARIANTS if len(values) <= _RETRY_ROWS else _VARIANTS[:1]
    trees = []
    # Whether a function is called is easier to understand than how often: of equal trees, the one that asks only that.
    simple = np.flatnonzero(((values == 0) | (values == 1)).all(axis=0))
    if 0 < len(simple) < values.shape[1]:
        plain = [_fit(values[:, simple], counts, max_depth, *variant) for variant in variants]
        trees = [renumber(prune(tree, penalty), simple) for tree in plain]
    trees += [prune(_fit(values, counts, max_depth, *variant), penalty) for variant in variants]
    best = min(trees, key=lambda tree: tree_cost(tree, penalty))
    return _use_fewer(best, values, counts, penalty, max_depth) if len(variants) > 1 else best


def _use_fewer(tree: Node, values: Floats, counts: Floats, penalty: float, max_depth: int | None) -> Node:
    """A tree that costs no more and asks about fewer functions, where there is one: fewer names to look up."""
    used = sorted({node.feature for node in tree.inner() if node.feature is not None})
    for feature in used[::-1]:
        chosen = np.array([each for each in used if each != feature], dtype=np.int64)
        if not len(chosen) or not _tell_as_much(values, counts, used, chosen, penalty):
            continue
        fewer = renumber(prune(_fit(values[:, chosen], counts, max_depth), penalty), chosen)
        if tree_cost(fewer, penalty) <= tree_cost(tree, penalty) + 1e-9:
            tree, used = fewer, list(chosen)
    return tree


def _tell_as_much(values: Floats, counts: Floats, used: list[int], chosen: Ints, penalty: float) -> bool:
    """Whether rows that agree in the `chosen` features have nearly the classes of those that agree in all `used`."""
    before, after = (_merged_entropy(values[:, each], counts) for each in (used, chosen))
    return after - before < penalty


def _merged_entropy(values: Floats, counts: Floats) -> float:
    rows = np.unique(values, axis=0, return_inverse=True)[1].ravel()
    merged: Floats = np.stack([np.bincount(rows, column) for column in counts.T], axis=1, dtype=np.float64)
    return float(_entropies(merged).sum())


def _fit(
    values: Floats, counts: Floats, max_depth: int | None, criterion: str = "gini", traces: bool = True, seed: int = 0
) -> Node:
    """scikit-learn's tree, with the classes counted at every node; rows weigh by their traces, or all the same."""
    from sklearn.tree import DecisionTreeClassifier

    rows, classes = np.nonzero(counts)
    weights = counts if traces else counts / counts.sum(axis=1, keepdims=True)
    learner = DecisionTreeClassifier(
        criterion=criterion,
        max_depth=max_depth,
        max_leaf_nodes=_MOST_LEAVES if len(values) > _RETRY_ROWS else None,
        random_state=seed,
    )
    if max_depth == 0:
        return Node(counts.sum(axis=0))
    learner.fit(values[rows], classes, sample_weight=weights[rows, classes])
    inner = learner.tree_

    def convert(number: int, here: Ints) -> Node:
        node = Node(counts[here].sum(axis=0))
        left, right = int(inner.children_left[number]), int(inner.children_right[number])
        if left >= 0:
            node.feature, node.threshold = int(inner.feature[number]), float(inner.threshold[number])
            below = values[here, node.feature] <= node.threshold
            node.children = (convert(left, here[below]), convert(right, here[~below]))
        return node

    return convert(0, np.arange(len(values)))


def _grow_screened(
    values: Sparse, screen: Screen, labels: Ints, classes: int, growth: Growth, rows: Ints, penalty: float
) -> Node:
    """Alternates between choosing features within the leaves of a tree and growing it on all chosen so far."""
    inside = labels[rows]
    leaves = np.zeros(len(rows), dtype=np.int64)
    columns: set[int] = set()
    node = Node(np.bincount(inside, minlength=classes).astype(np.float64))
    for turn in range(_SCREENING_ROUNDS):
        wanted = _SCREENED_ROOT if turn == 0 else _SCREENED_LEAF
        found = screen.telling(rows, inside, classes, leaves, penalty, wanted)
        if found <= columns:
            break
        columns |= found
        chosen = np.array(sorted(columns))
        table = make_table(values[:, chosen].tocsr()[rows])
        node = renumber(_grow(table.values, table.counts(inside, classes), penalty, growth), chosen)
        leaves = leaf_numbers(node, values)[rows]
    return node


class Screen:
    """Finds the features that tell classes apart by two yes-or-no tests of each: called, and called often.

    Often is more than the mean of those calls that were made.
    """

    def __init__(self, features: Features) -> None:
        values = features.values.tocsr()
        counted = any(each.kind != "called" for each in features.columns)
        self._tests = [values]
        if counted:
            binary, often = values.copy(), values.copy()
            binary.data = np.ones_like(binary.data)
            made = np.maximum(np.asarray(binary.sum(axis=0)).ravel(), 1.0)
            mean = np.asarray(values.sum(axis=0)).ravel() / made
            often.data = (values.data > mean[values.indices] * (1 + 1e-9)).astype(np.float64)
            often.eliminate_zeros()
            self._tests = [binary, often]

    def telling(self, rows: Ints, labels: Ints, classes: int, leaves: Ints, penalty: float, wanted: int) -> set[int]:
        """In each leaf, the features whose test saves more nats than a leaf costs, at most `wanted` by each test.

        `rows` (R,) are the traces to look at, with their labels (R,) and leaves (R,).
        """
        found: set[int] = set()
        for leaf in range(int(leaves.max()) + 1):
            here = np.flatnonzero(leaves == leaf)
            one_hot = np.eye(classes)[labels[here]]
            total = one_hot.sum(axis=0)
            if (total > 0).sum() < 2:
                continue
            for test in self._tests:
                part = test if len(here) == test.shape[0] else test[rows[here]]
                yes = np.asarray(part.T @ one_hot)
                gain = _entropies(total[None])[0] - _entropies(yes) - _entropies(total - yes)
                best = np.argsort(-gain, kind="stable")[:wanted]
                found |= {int(i) for i in best if gain[i] > penalty}
        return found


def rank_callers(features: Features, labels: Ints, classes: int) -> list[int]:
    """Features whose being called tells most about the classes, best first; those that tell nothing are left out."""
    binary = features.values.tocsr(copy=True)
    binary.data = np.ones_like(binary.data)
    rows = np.flatnonzero(labels >= 0)
    one_hot = np.eye(classes)[labels[rows]]
    total = one_hot.sum(axis=0)
    yes = np.asarray(binary[rows].T @ one_hot)
    gain = _entropies(total[None])[0] - _entropies(yes) - _entropies(total - yes)
    least = leaf_cost(len(features), classes, float(len(rows)))
    return [int(i) for i in np.argsort(-gain, kind="stable") if gain[i] > least]


def _entropies(counts: Floats) -> Floats:
    """As `entropy`, for every row of (F, K)."""
    counts = np.maximum(counts, 0.0)
    total = counts.sum(axis=1, keepdims=True)
    logs = np.log(np.maximum(counts, 1e-300) / np.maximum(total, 1e-300))
    return np.asarray(-(np.where(counts > 0, counts, 0.0) * logs).sum(axis=1))
