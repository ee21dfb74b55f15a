"""How often to sample: what a tick costs, what it may cost, and how fast the program goes round."""

import pytest

from causal.calibration import choose_period

MS = 1_000_000


@pytest.mark.parametrize("cost_ns", [1_000, 15_000, 35_000])
@pytest.mark.parametrize("round_ns", [None, 0.1 * MS, 1 * MS, 10 * MS, 100 * MS])
@pytest.mark.parametrize("budget", [0.02, 0.1, 0.3])
def test_ticks_stay_within_the_budget(cost_ns, round_ns, budget):
    period_ns = choose_period(cost_ns, budget, round_ns)
    assert cost_ns / period_ns <= budget * 1.001 or period_ns == 2 * MS
    assert 100_000 <= period_ns <= 2 * MS


def test_half_the_budget_unless_rounds_are_short():
    assert choose_period(15_000, 0.1) == pytest.approx(300_000, abs=1)
    assert choose_period(15_000, 0.1, 8 * MS) == pytest.approx(300_000, abs=1)
    assert choose_period(15_000, 0.1, 0.5 * MS) == pytest.approx(150_000, abs=1)
    assert choose_period(15_000, 0.1, 3.2 * MS) == pytest.approx(200_000, abs=1)


def test_long_rounds_need_fewer_samples():
    assert choose_period(15_000, 0.1, 40 * MS) == pytest.approx(40 * MS / 64, abs=1)
    assert choose_period(15_000, 0.1, 10_000 * MS) == 1 * MS


def test_a_smaller_budget_means_a_longer_period():
    assert choose_period(15_000, 0.05) > choose_period(15_000, 0.1) > choose_period(15_000, 0.2)
