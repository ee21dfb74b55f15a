"""The whole explanation of some traces: classes, tree, and what both are worth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from causal.drt.failures import describe_failures, without_failures
from causal.drt.features import Features, group_identical, make_features
from causal.drt.growing import Growth, TreeGrower
from causal.drt.ladder import Clustering, check_classes, cluster
from causal.drt.relabel import relabel
from causal.drt.shapes import SHAPES, Shape
from causal.drt.spectral import cluster_spectrally
from causal.drt.traces import Floats, Ints, Sparse, Traces
from causal.drt.tree import Node, count_leaves, leaf_numbers, place_traces
from causal.drt.validation import Scores, cross_validate
from causal.errors import UsageError

METHODS = ("k-linear", "spectral")


@dataclass(frozen=True)
class Options:
    """What the user may decide; `clusters` None means that K is chosen, `max_error` is a share of the output."""

    clusters: int | None = None
    method: str = "k-linear"
    max_depth: int | None = None
    tree: str = "greedy"
    max_error: float | None = None
    seed: int = 0
    shapes: tuple[Shape, ...] = SHAPES


@dataclass(frozen=True)
class Explanation:
    """Classes of N traces and the tree that tells them apart; `features_used` are indices among the features."""

    traces: Traces
    features: Features
    clustering: Clustering
    tree: Node
    scores: Scores
    options: Options
    warnings: tuple[str, ...] = field(default=())

    @property
    def features_used(self) -> list[int]:
        """The features that the tree asks about, each once, from the root down."""
        return list(dict.fromkeys(node.feature for node in self.tree.inner() if node.feature is not None))

    @property
    def outliers(self) -> Ints:
        """Traces that belong to no class."""
        return np.flatnonzero(self.clustering.labels < 0)

    @property
    def could_be_smaller(self) -> bool:
        """Whether an exact search for the tree is worth a try: no tree has fewer leaves than there are classes."""
        return self.options.tree == "greedy" and count_leaves(self.tree) > self.clustering.k

    @property
    def differs(self) -> bool:
        """Whether the functions say anything about the classes."""
        return self.tree.children is not None


def explain(traces: Traces, options: Options | None = None) -> Explanation:
    """Cluster the traces, learn the tree, and validate both. Raises CausalError where the traces do not allow it.

    Runs that failed are classes of their own, told in `warnings`; everything else is about those that succeeded.
    """
    options = options or Options()
    failures = describe_failures(traces)
    traces = without_failures(traces)
    features = make_features(traces)
    coarse, fine = group_identical(features), group_identical(features, exact=True)
    growth = Growth(options.max_depth, options.tree == "optimal")
    grower = TreeGrower(features)
    clustering = _cluster(traces, coarse, fine, options)
    # One round settles the labels where lines meet; greedy splits do for that.
    first = grower.grow(clustering.labels, clustering.k, replace(growth, optimal=False))
    cells = leaf_numbers(first, features.values)
    settled = relabel(clustering, cells, traces.output)
    tree = first
    if growth.optimal or not np.array_equal(settled.labels, clustering.labels):
        tree = grower.grow(settled.labels, settled.k, growth)
    place_traces(tree, features.values)
    scores = cross_validate(traces, features, settled, growth, grower)
    warnings = (*failures, *_warnings(features, settled, options, traces))
    return Explanation(traces, features, settled, tree, scores, options, warnings)


def _cluster(traces: Traces, coarse: Ints, fine: Ints, options: Options) -> Clustering:
    if options.method not in METHODS:
        raise UsageError(f"there is no method {options.method!r}", f"choose one of {', '.join(METHODS)}")
    if options.method == "spectral":
        check_classes(options.clusters, len(traces), traces.inputs.shape[1])
        return cluster_spectrally(traces, coarse, fine, options.clusters, options.seed)
    clustering = cluster(traces, coarse, fine, options.clusters, options.seed, options.shapes)
    if options.max_error is None or options.clusters is not None:
        return clustering
    return _reach_error(clustering, traces, coarse, fine, options)


def _reach_error(clustering: Clustering, traces: Traces, coarse: Ints, fine: Ints, options: Options) -> Clustering:
    """More classes, until the typical error is at most the share of the output that the user allows."""
    assert options.max_error is not None
    for classes in [rung.k for rung in clustering.ladder if rung.k > clustering.k]:
        if typical_error(clustering, traces.output) <= options.max_error:
            break
        clustering = cluster(traces, coarse, fine, classes, options.seed, options.shapes)
    return clustering


def typical_error(clustering: Clustering, output: Floats) -> float:
    """Root mean squared error of the traces' own lines, as a share of the mean output."""
    inside = clustering.labels >= 0
    residual = output[inside] - own_costs(clustering)[inside]
    return float(np.sqrt(np.mean(residual**2)) / np.mean(output[inside]))


def own_costs(clustering: Clustering) -> Floats:
    """What each trace's own line predicts for it, (N,); for outliers the first line."""
    costs = class_costs(clustering)
    return np.asarray(costs[np.arange(len(costs)), np.maximum(clustering.labels, 0)])


def class_costs(clustering: Clustering) -> Floats:
    """What each line predicts for each trace, (N, K), in the user's unit."""
    problem = clustering.problem
    costs = problem.design @ clustering.scaled_lines.T * problem.scatter[:, None]
    return np.asarray(costs * problem.output_scale)


def predict(explanation: Explanation, inputs: Floats, values: Sparse) -> Floats:
    """Expected output (M,) of new traces: the lines, weighted with the probabilities of the leaf of each trace.

    `inputs` is (M, P), `values` a sparse (M, F) matrix of the explanation's features.
    """
    leaves = np.stack([leaf.distribution for leaf in explanation.tree.leaves()])
    weights = leaves[leaf_numbers(explanation.tree, values)]
    transformed = explanation.clustering.shape.transform(inputs)
    design = np.column_stack([np.ones(len(transformed)), transformed])
    return np.asarray((weights * (design @ explanation.clustering.lines.T)).sum(axis=1))


def _warnings(features: Features, clustering: Clustering, options: Options, traces: Traces) -> tuple[str, ...]:
    found = [f"column {name!r} is the output itself, so it was left out" for name in features.leaks]
    if options.clusters is not None and clustering.k < options.clusters:
        found.append(f"only {clustering.k} of {options.clusters} classes have traces")
    error = typical_error(clustering, traces.output)
    if options.max_error is not None and error > options.max_error:
        found.append(f"the error is {error:.1%}, more than {options.max_error:.1%}: no number of classes does better")
    return tuple(found)


def describe_size(explanation: Explanation) -> str:
    """Leaves and functions of the tree in words."""
    leaves, used = count_leaves(explanation.tree), len(explanation.features_used)
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'} on {used} function{'' if used == 1 else 's'}"
