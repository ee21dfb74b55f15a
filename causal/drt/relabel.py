"""Labels made consistent: where two lines meet, the traces' internals say which of them a trace belongs to.

Traces of the same leaf of the tree mostly belong to one class. That share is taken as the prior probability of each
class in the leaf, and every trace gets the class that is most probable given both the leaf and its own cost. Traces
far from the leaf's usual line keep their own class, so a difference that functions do not explain stays visible.
"""

from __future__ import annotations

import numpy as np

from causal.drt.ladder import Clustering, finish_clustering
from causal.drt.lines import OUTLIER, SMALLEST_SHARE
from causal.drt.traces import Bools, Floats, Ints

_ROUNDS = 5


def relabel(clustering: Clustering, cells: Ints, output: Floats) -> Clustering:
    """The clustering with new labels; `cells` (N,) numbers the leaf, or group, of each trace."""
    problem = clustering.problem
    lines, sigma, labels = clustering.scaled_lines, clustering.sigma, clustering.labels
    classes, count = len(lines), int(cells.max()) + 1
    for _ in range(_ROUNDS):
        prior = _priors(cells, labels, classes, count)
        residual = problem.target[:, None] - problem.design @ lines.T
        fit = -0.5 * (residual / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))
        posterior = fit + np.log(prior)[cells]
        updated = np.argmax(posterior, axis=1)
        updated = np.where(_outside(posterior.max(axis=1), labels, problem.spread), OUTLIER, updated)
        if np.array_equal(updated, labels):
            break
        labels = updated
        found = finish_clustering(problem, labels, classes, clustering.ladder, output, clustering.method)
        if found.k != classes:
            return clustering  # a class would vanish: it was not distinct enough for this
        lines, sigma, labels = found.scaled_lines, found.sigma, found.labels
    return finish_clustering(problem, labels, classes, clustering.ladder, output, clustering.method)


def _priors(cells: Ints, labels: Ints, classes: int, count: int) -> Floats:
    """Shares of the classes in each cell (C, K). One exception among all traces is expected before any is seen."""
    inside = labels >= 0
    counts = np.bincount(cells[inside] * classes + labels[inside], minlength=count * classes).reshape(count, classes)
    overall = (counts.sum(axis=0) + 1.0) / (counts.sum() + classes)
    size = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    exceptions = size / size.sum()
    return np.asarray((counts + overall * exceptions) / (size + exceptions))


def _outside(likelihood: Floats, labels: Ints, spread: float) -> Bools:
    """Which traces are more likely outliers, by the same rule as in clustering, but never more than may be."""
    total = len(labels)
    share = min((float((labels == OUTLIER).sum()) + 1.0) / total, SMALLEST_SHARE)
    gain = np.log(share) - np.log(spread) - likelihood
    outside: Bools = np.asarray(gain > 0)
    most = max(int(SMALLEST_SHARE * total), 1 if total >= 8 else 0)
    if outside.sum() > most:
        outside = np.zeros(total, dtype=np.bool_)
        outside[np.argsort(-gain, kind="stable")[:most]] = True
    return outside
