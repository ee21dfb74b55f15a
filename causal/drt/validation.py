"""What an explanation is worth on traces that it was not learned from: cross-validated accuracy and R^2.

The classes are those found on all traces. For each part of the traces, the lines are fitted and the tree is grown,
with its choice of functions, on the other parts, and then asked about this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from causal.drt.features import Features
from causal.drt.growing import Growth, TreeGrower
from causal.drt.ladder import Clustering, canonical_order, fit_rows, r_squared
from causal.drt.traces import Ints, Traces
from causal.drt.tree import leaf_numbers

FOLDS = 5


@dataclass(frozen=True)
class Scores:
    """Cross-validated: the share of traces whose class the tree predicts, and R^2 of the predicted output.

    Outliers are not counted in either. None where there are too few traces to leave any out.
    """

    accuracy: float | None
    r2: float | None


def cross_validate(
    traces: Traces, features: Features, clustering: Clustering, growth: Growth, grower: TreeGrower
) -> Scores:
    """Scores by five folds; every fold holds traces of all classes and sizes."""
    labels, classes = clustering.labels, clustering.k
    inside = np.flatnonzero(labels >= 0)
    if len(inside) < 2 * FOLDS:
        return Scores(None, None)
    folds = _folds(traces, labels)
    # The greedy tree stands in for the optimal one: it is the choice of functions that is validated.
    quick = Growth(growth.max_depth)
    right = 0
    predicted = np.zeros(len(labels))
    problem = clustering.problem
    for fold in range(FOLDS):
        train, test = inside[folds[inside] != fold], inside[folds[inside] == fold]
        lines = clustering.scaled_lines.copy()
        for k in range(classes):
            members = train[labels[train] == k]
            if len(members) > problem.design.shape[1]:
                lines[k] = fit_rows(problem, members)
        tree = grower.grow(labels, classes, quick, train)
        leaves = np.stack([leaf.distribution for leaf in tree.leaves()])
        weights = leaves[leaf_numbers(tree, features.values)[test]]
        right += int((np.argmax(weights, axis=1) == labels[test]).sum())
        costs = problem.design[test] @ lines.T * problem.scatter[test, None]
        predicted[test] = (weights * costs).sum(axis=1) * problem.output_scale
    return Scores(right / len(inside), r_squared(traces.output[inside], predicted[inside]))


def _folds(traces: Traces, labels: Ints) -> Ints:
    """Fold of each trace: dealt out in turn, class by class from small to large, so that chance has no part in it."""
    order = canonical_order(traces.inputs, traces.output)
    order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(order)) % FOLDS
    return folds
