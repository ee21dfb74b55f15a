"""The tree: tests on functions at the nodes, and at each leaf how its traces are spread over the classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from causal.drt.features import Feature
from causal.drt.traces import Floats, Ints, Sparse


@dataclass
class Node:
    """A leaf, or a test: traces with `feature` at or below `threshold` go to the first child, others to the second.

    `counts` (K,) are the traces of each class, `members` the indices of all traces that come here, outliers included.
    """

    counts: Floats
    feature: int | None = None  # index among the features
    threshold: float = 0.0
    children: tuple[Node, Node] | None = None
    members: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def distribution(self) -> Floats:
        """Probability of each class."""
        total = self.counts.sum()
        return self.counts / total if total > 0 else np.full(len(self.counts), 1.0 / len(self.counts))

    @property
    def majority(self) -> int:
        """The class of most traces; the fastest of several."""
        return int(np.argmax(self.counts))

    def leaves(self) -> Iterator[Node]:
        """All leaves, from left to right."""
        if self.children is None:
            yield self
        else:
            for child in self.children:
                yield from child.leaves()

    def inner(self) -> Iterator[Node]:
        """All tests, from the root down."""
        if self.children is not None:
            yield self
            for child in self.children:
                yield from child.inner()

    @property
    def depth(self) -> int:
        """Tests on the longest way down."""
        return 0 if self.children is None else 1 + max(child.depth for child in self.children)


def count_leaves(node: Node) -> int:
    """The number of leaves."""
    return sum(1 for _ in node.leaves())


def dense_column(values: Sparse, column: int) -> Floats:
    """One column of a sparse matrix in compressed columns; (N,)."""
    dense = np.zeros(values.shape[0])
    where = slice(values.indptr[column], values.indptr[column + 1])
    dense[values.indices[where]] = values.data[where]
    return dense


def leaf_numbers(node: Node, values: Sparse) -> Ints:
    """For each row of a sparse (N, F) matrix of features the number of its leaf, counted from left to right."""
    numbers = np.empty(values.shape[0], dtype=np.int64)
    columns = values.tocsc()
    following = iter(range(count_leaves(node)))

    def descend(here: Node, rows: Ints) -> None:
        if here.children is None:
            numbers[rows] = next(following)
            return
        assert here.feature is not None
        above = dense_column(columns, here.feature)[rows] > here.threshold
        descend(here.children[0], rows[~above])
        descend(here.children[1], rows[above])

    descend(node, np.arange(values.shape[0]))
    return numbers


def place_traces(node: Node, values: Sparse) -> None:
    """Set `members` at every node: the rows of the sparse (N, F) matrix that come there."""
    columns = values.tocsc()

    def descend(here: Node, rows: Ints) -> None:
        here.members = rows
        if here.children is not None:
            assert here.feature is not None
            above = dense_column(columns, here.feature)[rows] > here.threshold
            descend(here.children[0], rows[~above])
            descend(here.children[1], rows[above])

    descend(node, np.arange(values.shape[0]))


def renumber(node: Node, chosen: Ints) -> Node:
    """The same tree, its features numbered as `chosen[i]` instead of i."""
    if node.children is None:
        return Node(node.counts)
    assert node.feature is not None
    first, second = node.children
    return Node(
        node.counts, int(chosen[node.feature]), node.threshold, (renumber(first, chosen), renumber(second, chosen))
    )


def prune(node: Node, leaf_cost: float) -> Node:
    """The cheapest of all trees obtained by cutting branches: a leaf costs the entropy of its traces + `leaf_cost`.

    This is pruning by minimum description length (Mehta, Rissanen and Agrawal, 1995): a branch stays when what it
    saves in coding its traces' classes is more than what it takes to write it down.
    """
    return _prune(node, leaf_cost)[0]


def _prune(node: Node, leaf_cost: float) -> tuple[Node, float]:
    cut = entropy(node.counts) + leaf_cost
    if node.children is None:
        return node, cut
    (first, first_cost), (second, second_cost) = (_prune(child, leaf_cost) for child in node.children)
    kept = first_cost + second_cost
    if kept >= cut - 1e-9 * abs(cut):
        return Node(node.counts), cut
    return Node(node.counts, node.feature, node.threshold, (first, second)), kept


def tree_cost(node: Node, leaf_cost: float) -> float:
    """Description length of a tree in nats."""
    return sum(entropy(leaf.counts) + leaf_cost for leaf in node.leaves())


def leaf_cost(features: int, classes: int, traces: float) -> float:
    """What a leaf costs in nats: naming one of the features, and a distribution to the precision of the traces."""
    return float(np.log(max(features, 1)) + 0.5 * max(classes - 1, 1) * np.log(max(traces, 2.0)))


def entropy(counts: Floats) -> float:
    """Nats to tell the classes of traces with these counts."""
    total = counts.sum()
    some = counts[counts > 0]
    return float(-(some * np.log(some / total)).sum()) if total > 0 else 0.0


def describe_test(feature: Feature, threshold: float, above: bool, per: str = "size") -> str:
    """A side of a test, to be read behind the function's name: `called at least once`."""
    if feature.kind == "rate":
        return f"called {'more than' if above else 'at most'} {threshold:.4g} times per unit of {per}"
    least = int(np.floor(threshold)) + 1
    if above:
        return f"called at least {'once' if least == 1 else f'{least} times'}"
    if least == 1:
        return "not called"
    return f"called at most {'once' if least == 2 else f'{least - 1} times'}"
