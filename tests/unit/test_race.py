"""The rule that ends experiments with a region: what it decides, and that looking often does not fool it."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from causal.planning import Planner, PlanOptions
from causal.race import RunningGain, sequence_factor, sequence_p_value, t_quantile

LEVELS = (0.25, 0.5, 0.75, 1.0)


def run_until_settled(rng, slope, noise, most=400):
    running = RunningGain()
    for pair in range(most):
        level = LEVELS[pair % 4]
        running.add(level, slope * level + rng.normal(0.0, noise))
        rule = running.settled()
        if rule is not None:
            return rule, running
    return None, running


@pytest.mark.parametrize("df", [3, 4, 6, 10, 30, 300])
def test_student(df):
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=0.005)


def test_the_running_gain_is_least_squares_through_the_origin():
    rng = np.random.default_rng(1)
    levels, gains = np.tile(LEVELS, 5), rng.normal(0.3, 0.1, 20)
    running = RunningGain()
    for level, gain in zip(levels, gains, strict=True):
        running.add(level, gain)
    slope = np.sum(levels * gains) / np.sum(levels**2)
    error = math.sqrt(np.sum((gains - slope * levels) ** 2) / 19 / np.sum(levels**2))
    assert running.slope == pytest.approx(slope)
    assert running.half_width() == pytest.approx(stats.t.ppf(0.975, 19) * error, rel=1e-3)


def test_a_strong_effect_needs_few_pairs():
    rng = np.random.default_rng(2)
    found = [run_until_settled(rng, 0.4, 0.05) for _ in range(50)]
    assert all(rule == "effect" for rule, _ in found)
    assert max(running.pairs for _, running in found) <= 20


def test_no_effect_takes_until_it_is_precise():
    rng = np.random.default_rng(3)
    found = [run_until_settled(rng, 0.0, 0.05) for _ in range(50)]
    assert all(rule == "precise" for rule, _ in found)
    assert all(running.half_width() <= 0.02 and running.pairs > 30 for _, running in found)


def test_looking_after_every_pair_hardly_ever_finds_an_effect_in_noise():
    # Fixed-sample intervals looked at as often would find one in a third of these runs.
    rng = np.random.default_rng(4)
    rules = [run_until_settled(rng, 0.0, 0.3, most=150)[0] for _ in range(300)]
    assert sum(rule == "effect" for rule in rules) <= 15


def test_precise_intervals_cover_although_the_width_decides():
    rng = np.random.default_rng(5)
    hits = []
    for _ in range(200):
        rule, running = run_until_settled(rng, 0.03, 0.04)
        if rule == "precise":
            hits.append(abs(running.slope - 0.03) <= running.half_width())
    assert len(hits) > 150 and np.mean(hits) >= 0.91


def test_identical_pairs_settle_and_few_do_not():
    running = RunningGain()
    assert running.half_width() == math.inf and running.settled() is None and running.slope == 0.0
    for pair in range(5):
        running.add(LEVELS[pair % 4], 0.5 * LEVELS[pair % 4])
        assert running.settled() is None
    running.add(0.5, 0.25)
    assert running.settled() is not None


def test_the_sequence_is_wider_and_its_p_value_agrees():
    for pairs in (6, 12, 50, 1000):
        assert 1.5 < sequence_factor(pairs) < 2.0
        assert sequence_p_value(1.959964 * sequence_factor(pairs), pairs) == pytest.approx(0.05, rel=0.01)
    assert sequence_factor(0) == math.inf and sequence_p_value(0.0, 10) == 1.0


# The plan


def settle(planner, region, gain):
    rules = [planner.observe(region, LEVELS[pair % 4], {"p": gain * LEVELS[pair % 4]}) for pair in range(12)]
    return [rule for rule in rules if rule]


def test_what_is_settled_makes_room():
    planner = Planner(random.Random(1))
    samples = {1: 500, 2: 300, 3: 200}
    assert settle(planner, 1, 0.5) == ["precise"]  # without noise; said once only
    assert {planner.next_pair(samples).region for _ in range(40)} == {2, 3}


def test_when_all_is_settled_it_goes_on_refining():
    planner = Planner(random.Random(1))
    for region in (1, 2):
        settle(planner, region, 0.3)
    assert {planner.next_pair({1: 500, 2: 500}).region for _ in range(40)} == {1, 2}


def test_a_settled_region_lets_another_one_in():
    planner = Planner(random.Random(1), options=PlanOptions())
    samples = {1: 600, 2: 300, 3: 100}
    planner.fit_budget(6, 3)  # enough for one region
    assert {planner.next_pair(samples).region for _ in range(20)} == {1}
    settle(planner, 1, 0.5)
    assert {planner.next_pair(samples).region for _ in range(20)} == {2}


def test_a_region_is_settled_when_all_its_points_are():
    planner = Planner(random.Random(1))
    rng = np.random.default_rng(1)
    for pair in range(60):
        level = LEVELS[pair % 4]
        planner.observe(1, level, {"clear": 0.5 * level, "noisy": rng.normal(0.0, 1.0)})
    assert planner.settled == {}
    assert Planner(random.Random(1)).observe(1, 0.5, {}) is None


def test_few_pairs_that_happen_to_agree_are_not_precise_beside_others_that_do_not():
    planner = Planner(random.Random(1))
    rng = np.random.default_rng(1)
    for pair in range(24):
        level = LEVELS[pair % 4]
        for region in (1, 2):
            planner.observe(region, level, {"p": rng.normal(0.0, 0.05)})
    for pair in range(8):
        level = LEVELS[pair % 4]
        planner.observe(3, level, {"p": 0.0005 * (pair % 3)})
        assert 3 not in planner.settled
    alone = Planner(random.Random(1))
    for pair in range(8):
        alone.observe(3, LEVELS[pair % 4], {"p": 0.0005 * (pair % 3)})
    assert alone.settled == {3: "precise"}


def test_hardly_any_region_is_precise_by_chance():
    # As many pairs as cannot suffice; with a bound on the noise of 95 % one in forty would be.
    rng = np.random.default_rng(6)
    rules = [run_until_settled(rng, 0.0, 0.05, most=20)[0] for _ in range(1000)]
    assert sum(rule == "precise" for rule in rules) <= 2


def test_what_is_given_is_not_tried():
    planner = Planner(random.Random(1), given=[1])
    assert set(planner.candidates({1: 500, 2: 300, 3: 200})) == {2, 3}
    assert planner.candidates({1: 500, 2: 300})[2] == pytest.approx(0.375)  # of all samples, what is given included
    named = Planner(random.Random(1), only=frozenset({1, 2}), given=[1])
    assert set(named.candidates({1: 500, 3: 300})) == {2}
