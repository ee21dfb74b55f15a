"""Trees: pruning, exact search, and sentences."""

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from causal.drt.features import Feature, Features
from causal.drt.growing import Growth, grow_tree
from causal.drt.optimal import find_optimal
from causal.drt.tree import Node, count_leaves, describe_test, leaf_numbers, prune

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt_data  # noqa: E402


def table_of(truth_table, m):
    rows = np.array(list(product([0.0, 1.0], repeat=m)))
    seen = [i for i, digit in enumerate(truth_table) if digit != "-"]
    counts = np.zeros((len(seen), 4))
    for row, index in enumerate(seen):
        counts[row, int(truth_table[index])] = 100
    return rows[seen], counts


def features_of(values):
    columns = tuple(Feature(f"f{i}", "called") for i in range(values.shape[1]))
    return Features(columns, sparse.csc_matrix(values))


@pytest.mark.parametrize("name", list(drt_data.MICRO))
def test_optimal_tree_has_the_fewest_leaves(name):
    case = drt_data.MICRO[name]
    values, counts = table_of(case.table, case.m)
    tree = find_optimal(values, counts, 20.0, None, Node(counts.sum(axis=0)))
    assert count_leaves(tree) == case.leaves
    assert all((leaf.counts > 0).sum() == 1 for leaf in tree.leaves())


def test_optimal_tree_respects_the_depth():
    values, counts = table_of(drt_data.MICRO["4_1v3"].table, 4)
    for depth in range(4):
        assert find_optimal(values, counts, 1.0, depth, Node(counts.sum(axis=0))).depth <= depth


def test_greedy_tree_finds_parity_of_all_functions():
    values = np.array(list(product([0.0, 1.0], repeat=3)) * 50)
    labels = values.sum(axis=1).astype(int) % 2
    tree = grow_tree(features_of(values), labels, 2, Growth())
    assert count_leaves(tree) == 8


def test_optimal_tree_finds_parity_among_distractions():
    rng = np.random.default_rng(0)
    values = (rng.random((600, 8)) < 0.5).astype(float)
    labels = (values[:, 2] != values[:, 5]).astype(int)
    tree = grow_tree(features_of(values), labels, 2, Growth(optimal=True))
    assert count_leaves(tree) == 4
    assert {node.feature for node in tree.inner()} == {2, 5}


def test_noise_is_pruned():
    rng = np.random.default_rng(1)
    values = (rng.random((400, 6)) < 0.5).astype(float)
    labels = values[:, 3].astype(int)
    flipped = rng.random(400) < 0.05
    tree = grow_tree(features_of(values), np.where(flipped, 1 - labels, labels), 2, Growth())
    assert count_leaves(tree) == 2
    assert tree.feature == 3
    unrelated = grow_tree(features_of(values), rng.integers(0, 2, 400), 2, Growth())
    assert unrelated.children is None


def test_depth_limit():
    values = np.array(list(product([0.0, 1.0], repeat=3)) * 50)
    labels = (values @ [4, 2, 1]).astype(int) // 2
    assert grow_tree(features_of(values), labels, 4, Growth(max_depth=1)).depth == 1


def test_prune_keeps_what_pays():
    def leaf(*counts):
        return Node(np.array(counts, dtype=float))

    useless = Node(np.array([20.0, 20.0]), 0, 0.5, (leaf(10, 10), leaf(10, 10)))
    useful = Node(np.array([20.0, 20.0]), 0, 0.5, (leaf(20, 0), leaf(0, 20)))
    assert prune(useless, 3.0).children is None
    assert prune(useful, 3.0).children is not None
    assert prune(useful, 30.0).children is None


def test_wide_features_are_screened():
    rng = np.random.default_rng(2)
    values = (rng.random((2000, 600)) < 0.5).astype(float)
    labels = np.where(values[:, 500] > 0, 1 + values[:, 7], 0).astype(int)
    tree = grow_tree(features_of(values), labels, 3, Growth())
    assert {node.feature for node in tree.inner()} == {500, 7}
    assert count_leaves(tree) == 3


def test_rows_find_their_leaves():
    inner = Node(np.array([1.0, 1.0]), 1, 1.5, (Node(np.array([1.0, 0.0])), Node(np.array([0.0, 1.0]))))
    tree = Node(np.array([2.0, 1.0]), 0, 0.5, (Node(np.array([1.0, 0.0])), inner))
    values = sparse.csc_matrix(np.array([[0, 9], [1, 1], [1, 2], [0, 0]], dtype=float))
    assert leaf_numbers(tree, values).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("kind", "threshold", "below", "above"),
    [
        ("called", 0.5, "not called", "called at least once"),
        ("calls", 1.5, "called at most once", "called at least 2 times"),
        ("calls", 7.5, "called at most 7 times", "called at least 8 times"),
        ("rate", 0.25, "called at most 0.25 times per unit of size", "called more than 0.25 times per unit of size"),
    ],
)
def test_tests_read_as_sentences(kind, threshold, below, above):
    feature = Feature("f", kind)
    assert describe_test(feature, threshold, False) == below
    assert describe_test(feature, threshold, True) == above
