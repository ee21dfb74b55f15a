"""Runs that failed: a class of their own for each exit code, kept away from the cost lines of those that succeeded.

A run that gives up early is fast for a reason that has nothing to do with cost; what can be explained is which
functions it called that the others did not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from causal.drt.features import make_features
from causal.drt.growing import Growth, grow_tree
from causal.drt.traces import Ints, Traces, check_traces
from causal.drt.tree import Node, describe_test
from causal.errors import CausalError

_MAX_DEPTH = 3


def without_failures(traces: Traces) -> Traces:
    """The traces of runs that succeeded. Raises CausalError where too few of them are left to be explained."""
    failed = traces.exit_codes != 0
    if not failed.any():
        return traces
    kept = [int(i) for i in np.flatnonzero(~failed)]
    if len(kept) < 2:
        raise CausalError(
            f"{int(failed.sum())} of {len(traces)} runs failed", "what succeeds is explained; look at the exit codes"
        )
    chosen = replace(
        traces,
        ids=[traces.ids[i] for i in kept],
        inputs=traces.inputs[kept],
        output=traces.output[kept],
        calls=traces.calls.tocsr()[kept].tocsc(),
        rows=[traces.rows[i] for i in kept] if len(traces.rows) else [],
        exit_codes=traces.exit_codes[kept],
    )
    check_traces(chosen)
    return chosen


def describe_failures(traces: Traces) -> list[str]:
    """A sentence for each exit code other than 0: how many runs, and the functions by which they are known."""
    codes, counts = np.unique(traces.exit_codes[traces.exit_codes != 0], return_counts=True)
    if not len(codes):
        return []
    features = make_features(traces)
    sentences = []
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        labels: Ints = (traces.exit_codes == code).astype(np.int64)
        tree = grow_tree(features, labels, 2, Growth(_MAX_DEPTH))
        leaf, path = max(_paths(tree, ()), key=lambda found: found[0].counts[1])
        plural = "" if count == 1 else "s"
        text = f"{count:,} run{plural} with exit code {code}, a class of {'its' if count == 1 else 'their'} own"
        if path:
            tests = " and ".join(
                f"{features.columns[feature].name} {describe_test(features.columns[feature], at, above)}"
                for feature, at, above in path
            )
            text += f": {tests} ({leaf.counts[1]:,.0f} of them, {leaf.counts[0]:,.0f} others)"
        else:
            text += "; no function tells them from the others"
        sentences.append(text)
    return sentences


def _paths(
    node: Node, path: tuple[tuple[int, float, bool], ...]
) -> list[tuple[Node, tuple[tuple[int, float, bool], ...]]]:
    """All leaves, each with the tests that lead to it: feature, threshold, above."""
    if node.children is None:
        return [(node, path)]
    assert node.feature is not None
    found = []
    for above, child in enumerate(node.children):
        found += _paths(child, (*path, (node.feature, node.threshold, bool(above))))
    return found
