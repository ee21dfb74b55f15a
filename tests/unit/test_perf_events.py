"""Sampling ticks: which CPUs there are, and periods that never fall into lock step."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal.perf_events import online_cpus, spread_periods


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0\n", [0]), ("0-3\n", [0, 1, 2, 3]), ("0-1,4,6-7", [0, 1, 4, 6, 7]), ("2", [2])],
)
def test_the_list_format_of_the_kernel(text, cpus):
    assert online_cpus(text) == cpus


def test_the_cpus_of_this_machine():
    assert set(online_cpus()) >= set(os.sched_getaffinity(0))


@given(st.integers(50_000, 100_000_000), st.integers(1, 16))
def test_periods_are_odd_different_and_near_the_one_asked_for(period_ns, cpus):
    periods = spread_periods(period_ns, cpus)
    assert len(periods) == len(set(periods)) == cpus
    assert all(period % 2 == 1 for period in periods)
    assert all(period_ns <= period <= 1.04 * period_ns for period in periods)


@given(st.integers(17, 1024))
def test_neighbours_differ_on_any_number_of_cpus(cpus):
    periods = spread_periods(1_000_000, cpus)
    assert len(periods) == cpus
    assert all(first != second for first, second in itertools.pairwise(periods))
