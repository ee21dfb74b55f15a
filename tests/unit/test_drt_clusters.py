"""Classes: the right number of the right lines, on data whose classes are known."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from causal.drt.atoms import split_groups
from causal.drt.features import group_identical, make_features
from causal.drt.ladder import cluster
from causal.drt.model import Options, explain
from causal.drt.modes import has_valley
from causal.drt.problem import make_problem
from causal.drt.shapes import LINEAR
from causal.drt.tree import count_leaves
from causal.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt, drt_data  # noqa: E402

make_traces = drt_data.make_traces


def lines_of(rng, labels, slopes, intercepts=0.0, noise=0.01):
    size = rng.uniform(1, 100, len(labels))
    cost = np.asarray(intercepts) + np.asarray(slopes)[labels] * size
    return size, np.abs(cost * (1 + noise * rng.standard_normal(len(labels))))


@pytest.mark.parametrize("name", [name for name in drt_data.MICRO if name != "7_1"])
def test_micro_benchmarks(name):
    data = drt_data.make_micro(name, 0)
    found = explain(data.traces)
    assert found.clustering.k == data.k
    assert drt.agreement(data.labels, found.clustering.labels) >= 0.98
    assert found.scores.r2 >= 0.995
    assert count_leaves(found.tree) <= data.greedy_leaves


def test_snapbuddy():
    data = drt_data.make_snapbuddy(0)
    found = explain(data.traces)
    assert found.clustering.k == 5
    assert (found.clustering.labels == data.labels).all()
    assert count_leaves(found.tree) == 8
    assert found.clustering.lines[:, 1] == pytest.approx([0.00131, 0.00747, 0.01404, 0.02049, 0.02644], rel=0.1)


def test_a_group_in_which_a_class_that_grows_leaves_one_that_does_not():
    """Words, blanks, and blanks before a letter for a pattern that backtracks: only the last grows, as a square."""
    rng = np.random.default_rng(1)
    size = np.tile(np.arange(400.0, 8400.0, 400.0), 3)
    kind = np.repeat(np.arange(3), 20)
    cost = (15.6 + np.where(kind == 2, 2.36e-6 * size**2, 0)) * (1 + 0.02 * np.abs(rng.standard_normal(60)))
    blanks = (kind > 0).astype(int)  # called for both, so that they are one group
    found = cluster(make_traces(size, cost, ["blanks"], blanks[:, None]), blanks, blanks)
    assert (found.k, found.shape.name) == (2, "square")
    assert (found.labels == (kind == 2)).all()


def test_small_groups_are_rarely_taken_for_two_lines():
    """A dozen traces along one line fit two lines too well by chance; two lines that meet are found all the same."""
    rng = np.random.default_rng(13)
    count, each = 120, 12
    size = rng.uniform(1, 100, (count, each))
    cost = 20 + size
    cost[:20, ::2] = 20  # one half of the first groups does not grow
    cost += 2 * rng.standard_normal(cost.shape)
    groups = np.repeat(np.arange(count), each)
    problem = make_problem(size.reshape(-1, 1), cost.ravel(), LINEAR, 0.0)
    atoms = split_groups(problem, groups, groups).reshape(count, each)
    split = np.array([len(set(row)) > 1 for row in atoms])
    assert split[:20].mean() >= 0.7
    assert split[20:].mean() <= 0.05


@pytest.mark.parametrize("grouped", [True, False])
def test_long_tails_are_no_classes(grouped):
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 3, 1200)
    size = rng.uniform(1, 100, 1200)
    cost = np.array([100, 250, 400])[labels] * size
    cost = cost * np.exp(0.03 * np.abs(rng.standard_t(4, 1200))) + rng.exponential(20, 1200)
    calls = np.column_stack([labels > 0, labels > 1])
    if not grouped:
        calls = np.hstack([calls, rng.random((1200, 24)) < 0.5])
    found = explain(make_traces(size, cost, [f"f{i:02}" for i in range(calls.shape[1])], calls))
    assert found.clustering.k == 3
    assert drt.agreement(labels, found.clustering.labels) >= 0.98
    assert count_leaves(found.tree) == 3


def test_a_valley_is_needed_between_classes():
    rng = np.random.default_rng(12)
    assert has_valley(np.concatenate([rng.normal(0, 0.1, 90), rng.normal(1, 0.2, 30)]))
    assert not has_valley(rng.exponential(0.5, 500))
    assert not has_valley(rng.normal(0.5, 0.5, 500))
    assert not has_valley(np.empty(0))


def test_outliers_are_no_class():
    data = drt_data.make_fop(0, methods=200)
    found = explain(data.traces)
    assert found.clustering.k == 3
    assert set(np.flatnonzero(data.labels < 0)) <= set(found.outliers)
    assert found.clustering.share.min() >= 0.01


def test_without_groups_lines_are_still_found():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 600)
    size, cost = lines_of(rng, labels, [1, 2, 4])
    # Every trace calls other functions, so there is nothing to group by.
    calls = np.hstack([rng.random((600, 24)) < 0.5, (labels == 1)[:, None], (labels == 2)[:, None]])
    found = explain(make_traces(size, cost, [f"f{i:02}" for i in range(26)], calls))
    assert found.clustering.k == 3
    assert drt.agreement(labels, found.clustering.labels) >= 0.98
    assert count_leaves(found.tree) == 3
    assert {found.features.columns[i].name for i in found.features_used} == {"f24", "f25"}


def test_a_class_that_functions_do_not_explain_stays_visible():
    rng = np.random.default_rng(4)
    called = rng.integers(0, 2, 800)
    slow = (called == 1) & (rng.random(800) < 0.3)
    size, cost = lines_of(rng, slow.astype(int), [1, 3])
    found = explain(make_traces(size, cost, ["f", "g"], np.column_stack([called, np.ones(800)])))
    assert found.clustering.k == 2
    above = found.tree.children[1]
    assert above.distribution[1] == pytest.approx(slow[called == 1].mean(), abs=0.02)
    assert found.tree.children[0].distribution[0] == 1


def test_classes_that_do_not_differ_in_functions():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 500)
    size, cost = lines_of(rng, labels, [1, 3])
    found = explain(make_traces(size, cost, ["f", "g"], rng.integers(0, 2, (500, 2))))
    assert found.clustering.k == 2
    assert not found.differs


def test_one_line_is_one_class():
    rng = np.random.default_rng(6)
    size, cost = lines_of(rng, np.zeros(400, int), [2], noise=0.1)
    found = explain(make_traces(size, cost, ["f"], rng.integers(0, 2, (400, 1))))
    assert found.clustering.k == 1
    assert not found.differs


@pytest.mark.parametrize(
    ("shape", "cost"),
    [
        ("linear", lambda n: n),
        ("n log n", lambda n: n * np.log2(1 + n) / 8),
        ("square", lambda n: n**2 / 100),
        ("power", lambda n: n**1.5 / 10),
    ],
)
def test_shapes(shape, cost):
    rng = np.random.default_rng(7)
    size = rng.uniform(1, 1000, 600)
    labels = rng.integers(0, 2, 600)
    time = (5 + 3 * cost(size) * (1 + labels)) * (1 + 0.01 * rng.standard_normal(600))
    found = explain(make_traces(size, time, ["f"], labels[:, None]))
    assert found.clustering.k == 2
    assert found.clustering.shape.name == shape
    assert (found.clustering.labels == labels).all()


def test_several_inputs():
    rng = np.random.default_rng(8)
    inputs = rng.uniform(1, 100, (600, 2))
    labels = rng.integers(0, 2, 600)
    slopes = np.array([[1.0, 2.0], [4.0, 3.0]])
    cost = ((inputs * slopes[labels]).sum(axis=1) + 10) * (1 + 0.01 * rng.standard_normal(600))
    found = explain(make_traces(inputs, cost, ["f"], labels[:, None], inputs=("width", "height")))
    assert found.clustering.k == 2
    assert found.clustering.lines[:, 1:] == pytest.approx(slopes, rel=0.1)


def test_fixed_number_of_classes():
    data = drt_data.make_snapbuddy(1)
    features = make_features(data.traces)
    groups = group_identical(features)
    for k in (1, 2, 6):
        assert cluster(data.traces, groups, groups, k).k == k
    with pytest.raises(UsageError, match="616 traces are too few for 300 classes"):
        explain(data.traces, Options(clusters=300))


def test_max_error_adds_classes():
    data = drt_data.make_snapbuddy(1)
    chosen = explain(data.traces)
    finer = explain(data.traces, Options(max_error=0.0001))
    assert finer.clustering.k > chosen.clustering.k
    assert any("the error is" in each for each in finer.warnings)
    assert explain(data.traces, Options(max_error=0.5)).clustering.k == 5


def test_spectral():
    data = drt_data.make_snapbuddy(0)
    found = explain(data.traces, Options(method="spectral"))
    assert found.clustering.k == 5
    assert drt.agreement(data.labels, found.clustering.labels) >= 0.98
    two_inputs = replace(
        data.traces, inputs=np.column_stack([data.traces.inputs, data.traces.inputs]), input_names=["a", "b"]
    )
    with pytest.raises(UsageError, match="spectral works with one input"):
        explain(two_inputs, Options(method="spectral"))


def test_a_column_that_is_the_output_is_left_out():
    data = drt_data.make_micro("2_1", 0)
    calls = np.hstack([data.traces.calls.toarray(), data.traces.output[:, None]])
    found = explain(make_traces(data.traces.inputs, data.traces.output, ["f0", "f1", "clock"], calls))
    assert found.warnings == ("column 'clock' is the output itself, so it was left out",)
    assert found.features.names == ["f0", "f1"]


def test_very_many_constant_columns():
    from scipy import sparse

    data = drt_data.make_micro("2_1", 0)
    count = len(data.traces)
    calls = sparse.hstack([data.traces.calls, sparse.csc_matrix((count, 100_000))], format="csc")
    names = ["f0", "f1", *(f"c{i}" for i in range(100_000))]
    found = explain(make_traces(data.traces.inputs, data.traces.output, names, calls))
    assert found.features.constant == 100_000
    assert count_leaves(found.tree) == 4


def test_counts_that_follow_the_size_become_rates():
    rng = np.random.default_rng(9)
    size = rng.integers(10, 1000, 500)
    labels = rng.integers(0, 2, 500)
    cost = size * (1.0 + labels) * (1 + 0.01 * rng.standard_normal(500))
    found = explain(make_traces(size, cost, ["inner"], (size * (1 + labels))[:, None]))
    (feature,) = [found.features.columns[i] for i in found.features_used]
    assert (feature.name, feature.kind) == ("inner", "rate")
    assert count_leaves(found.tree) == 2


def test_how_often_counts_when_whether_does_not():
    rng = np.random.default_rng(10)
    reads = rng.integers(0, 4, 800)
    labels = (reads > 1).astype(int)
    size, cost = lines_of(rng, labels, [1, 3])
    found = explain(make_traces(size, cost, ["read"], reads[:, None]))
    assert found.clustering.k == 2
    assert (found.clustering.labels == labels).all()
    assert found.tree.threshold == 1.5
    assert count_leaves(found.tree) == 2
