"""What must not matter: the order of rows and columns, units, and columns that stand twice."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from causal.drt.model import explain

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt_data  # noqa: E402

CASES = st.sampled_from(["2_1", "3_1v2", "4_1v2"])
SEEDS = st.integers(0, 1000)


def shape_of(found, node=None):
    """The tree without what depends on rows: names, thresholds, counts."""
    node = found.tree if node is None else node
    if node.children is None:
        return tuple(node.counts)
    feature = found.features.columns[node.feature].name
    return (feature, node.threshold, *(shape_of(found, child) for child in node.children))


def same(one, other):
    assert one.clustering.k == other.clustering.k
    assert shape_of(one) == shape_of(other)
    assert one.scores.accuracy == other.scores.accuracy


@settings(max_examples=8)
@given(CASES, SEEDS)
def test_order_of_rows(name, seed):
    traces = drt_data.make_micro(name, seed).traces
    order = np.random.default_rng(seed).permutation(len(traces))
    shuffled = replace(
        traces, ids=[traces.ids[i] for i in order], inputs=traces.inputs[order], output=traces.output[order],
        calls=traces.calls.tocsr()[order].tocsc(),
    )  # fmt: skip
    one, other = explain(traces), explain(shuffled)
    same(one, other)
    assert (one.clustering.labels[order] == other.clustering.labels).all()
    np.testing.assert_allclose(one.clustering.lines, other.clustering.lines, rtol=1e-6, atol=1e-6)


@settings(max_examples=8)
@given(CASES, SEEDS)
def test_order_of_columns(name, seed):
    traces = drt_data.make_micro(name, seed).traces
    order = np.random.default_rng(seed).permutation(len(traces.functions))
    shuffled = replace(traces, functions=[traces.functions[i] for i in order], calls=traces.calls[:, order])
    one, other = explain(traces), explain(shuffled)
    same(one, other)
    assert (one.clustering.labels == other.clustering.labels).all()


@settings(max_examples=8)
@given(CASES, SEEDS, st.sampled_from([1e-9, 1e-3, 0.125, 60, 1e6]), st.sampled_from([1e-3, 1024, 1e9]))
def test_units(name, seed, time_factor, size_factor):
    traces = drt_data.make_micro(name, seed).traces
    scaled = replace(traces, inputs=traces.inputs * size_factor, output=traces.output * time_factor)
    one, other = explain(traces), explain(scaled)
    same(one, other)
    assert (one.clustering.labels == other.clustering.labels).all()
    factors = time_factor / np.array([1.0, size_factor])
    typical = np.abs(one.clustering.lines).max(axis=0) * factors
    np.testing.assert_allclose(
        other.clustering.lines / typical, one.clustering.lines * factors / typical, rtol=1e-5, atol=1e-5
    )


@settings(max_examples=8)
@given(CASES, SEEDS)
def test_columns_that_stand_twice(name, seed):
    traces = drt_data.make_micro(name, seed).traces
    doubled = replace(
        traces,
        functions=[*traces.functions, *(f"{each}_again" for each in traces.functions)],
        calls=sparse.hstack([traces.calls, traces.calls], format="csc"),
    )
    one, other = explain(traces), explain(doubled)
    same(one, other)
    assert (one.clustering.labels == other.clustering.labels).all()
    assert [each.same_as for each in other.features.columns] == [(f"{name}_again",) for name in traces.functions]
