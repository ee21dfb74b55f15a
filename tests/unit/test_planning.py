"""Which experiment comes next: regions by share but evened out, levels equally often, the same for the same seed."""

import random
from collections import Counter

import pytest

from causal.planning import LADDERS, PAIRS_FOR_A_VERDICT, PAIRS_PER_LEVEL, Lengths, Planner, PlanOptions, stretch
from causal.windows import Arm

S = 1_000_000_000


def draw(planner, samples, pairs):
    return [planner.next_pair(samples) for _ in range(pairs)]


# --- what is tried --------------------------------------------------------------------------------------------------


def test_every_level_is_tried_equally_often():
    pairs = draw(Planner(random.Random(1), levels=[10, 30, 70]), {7: 100}, 100)
    used = Counter(pair.level for pair in pairs)
    assert set(used) == {0.1, 0.3, 0.7}
    assert max(used.values()) - min(used.values()) <= 1


def test_levels_are_even_for_each_region():
    pairs = draw(Planner(random.Random(2)), {1: 100, 2: 60, 3: 40}, 200)
    for region in (1, 2, 3):
        used = Counter(pair.level for pair in pairs if pair.region == region)
        assert len(used) == len(LADDERS[0])
        assert max(used.values()) - min(used.values()) <= 1


def test_regions_come_by_share_but_evened_out():
    tried = Counter(pair.region for pair in draw(Planner(random.Random(3)), {1: 900, 2: 90, 3: 10}, 300))
    assert tried[1] > tried[2] > tried[3] > 0
    assert tried[1] < 6 * tried[2]  # and not ten times as often, as the samples are


def test_what_hardly_runs_is_not_tried():
    samples = {1: 990, 2: 9, 3: 0}
    planner = Planner(random.Random(4))
    assert planner.candidates(samples) == {1: pytest.approx(990 / 999)}
    assert {pair.region for pair in draw(planner, samples, 200)} == {1}


def test_regions_the_user_chose_are_tried_whatever_runs():
    planner = Planner(random.Random(5), only=frozenset({2, 4}))
    assert {pair.region for pair in draw(planner, {1: 900, 2: 100}, 50)} == {2, 4}


@pytest.mark.parametrize("samples", [{}, {1: 0}])
def test_nothing_in_scope_runs(samples):
    assert Planner(random.Random(6)).next_pair(samples) is None


def test_a_pair_is_a_treated_and_a_placebo_window_in_random_order():
    pairs = draw(Planner(random.Random(7)), {1: 1}, 400)
    assert [pair.number for pair in pairs] == list(range(1, 401))
    first = 0
    for pair in pairs:
        assert Counter(pair.arms) - Counter({Arm.DILATION: 1}) == Counter([Arm.TREATED, Arm.PLACEBO])
        first += pair.arms.index(Arm.TREATED) < pair.arms.index(Arm.PLACEBO)
    assert 150 < first < 250


def test_some_pairs_have_a_dilation_window():
    options = PlanOptions(dilation_every=4)
    pairs = draw(Planner(random.Random(8), options=options), {1: 500, 2: 500}, 200)
    for region in (1, 2):
        own = [pair for pair in pairs if pair.region == region]
        dilated = [Arm.DILATION in pair.arms for pair in own]
        assert len(own) / 5 < sum(dilated) < len(own) / 3
        assert any(dilated[:3])  # also when the run is short


def test_plain_windows_come_now_and_then():
    planner = Planner(random.Random(9), options=PlanOptions(plain_every=5))
    wanted = []
    for pair in range(1, 21):
        planner.next_pair({1: 1})
        if planner.wants_plain():
            wanted.append(pair)
    assert wanted == [5, 10, 15, 20]


def test_the_same_seed_gives_the_same_plan():
    samples = {1: 500, 2: 300, 3: 200}
    plans = [draw(Planner(random.Random(seed)), samples, 50) for seed in (11, 11, 12)]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize(
    ("pairs", "ladder"),
    [(0, 0), (1, 0), (PAIRS_PER_LEVEL * 10 - 1, 0), (PAIRS_PER_LEVEL * 10, 1), (79, 1), (80, 2), (10_000, 2)],
)
def test_the_finest_ladder_that_the_time_allows(pairs, ladder):
    planner = Planner(random.Random(1))
    planner.fit_budget(pairs, 1)
    assert planner.levels == LADDERS[ladder]


def test_a_short_run_tries_what_runs_most():
    planner = Planner(random.Random(1))
    samples = {1: 400, 2: 300, 3: 200, 4: 100}
    planner.fit_budget(2 * PAIRS_FOR_A_VERDICT, 4)
    assert set(planner.candidates(samples)) == {1, 2}
    assert {pair.region for pair in draw(planner, samples, 40)} == {1, 2}
    # what was begun goes on when the shares change
    assert set(planner.candidates({1: 100, 2: 100, 3: 800})) == {1, 2}


def test_regions_the_user_chose_are_all_tried():
    planner = Planner(random.Random(1), only=frozenset({3, 4}))
    planner.fit_budget(1, 4)
    assert set(planner.candidates({1: 900, 3: 1})) == {3, 4}


def test_levels_the_user_chose_stay():
    planner = Planner(random.Random(1), levels=[33])
    planner.fit_budget(10_000, 1)
    assert planner.levels == (33,)


# --- how long -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lengths():
    settling = {"min_settle_ns": S // 20, "max_settle_ns": S // 5}
    return Lengths(PlanOptions(min_window_ns=S // 2, max_window_ns=4 * S, target_visits=40, **settling))


def test_without_a_rate_windows_are_short(lengths):
    assert lengths.window_ns() == S // 2


@pytest.mark.parametrize(("rate", "window"), [(1000, S // 2), (20, 2 * S), (1, 4 * S)])
def test_windows_are_long_enough_for_their_visits(lengths, rate, window):
    lengths.observe_rate("p", 10 * rate, 10 * S)
    assert lengths.window_ns() == window


def test_the_rarest_point_decides_unless_it_is_never_visited(lengths):
    lengths.observe_rate("often", 1000, S)
    lengths.observe_rate("rare", 25, S)
    lengths.observe_rate("never", 0, S)
    assert lengths.window_ns() == int(1.6 * S)


def test_rates_follow_the_program_slowly(lengths):
    lengths.observe_rate("p", 100, S)
    lengths.observe_rate("p", 200, S)
    assert 100 < lengths.rates["p"] < 150
    lengths.observe_rate("p", 5, 0)  # no time passed: says nothing
    assert 100 < lengths.rates["p"] < 150


def test_halves_that_disagree_lengthen_the_settling(lengths):
    for _ in range(4):
        lengths.observe_halves(1, 100, 120)
    assert lengths.settle_ns(1) == 2 * S // 5
    assert lengths.settle_ns(2) == S // 5
    for _ in range(40):
        lengths.observe_halves(1, 100, 120)
    assert lengths.settle_ns(1) == lengths.options.max_drain_ns


@pytest.mark.parametrize(("rate", "settle"), [(10, S // 5), (960, S // 10), (1_000_000, S // 20)])
def test_settling_takes_some_tens_of_visits(lengths, rate, settle):
    lengths.observe_rate("p", rate, S)
    assert lengths.settle_ns(1) == settle


def test_other_work_per_visit_that_differs_lengthens_the_settling(lengths):
    before = lengths.settle_ns(1)
    for noise in (0.0, 0.02, -0.02):
        lengths.observe_store(1, 0.63 + noise)
    assert lengths.settle_ns(1) == before
    lengths.observe_store(1, 0.63)
    assert lengths.settle_ns(1) == 2 * before
    assert lengths.settle_ns(2) == before


def test_other_work_per_visit_that_is_the_same_does_not(lengths):
    before = lengths.settle_ns(1)
    for ratio in (1.0, 1.05, 0.95, 0.98, 1.02, 0.0, 1.1, 0.93):
        lengths.observe_store(1, ratio)
    assert lengths.settle_ns(1) == before


def test_halves_that_differ_by_chance_do_not(lengths):
    for difference in (20, -20, 15, -18, 9, -7, 12, -13):
        lengths.observe_halves(1, 100, 100 + difference)
    lengths.observe_halves(1, 0, 100)
    lengths.observe_halves(1, 100, 0)
    assert lengths.settle_ns(1) == S // 5


def test_time_stands_still_for_what_is_sped_up():
    assert stretch(Arm.PLACEBO, 2.0, 0.5) == stretch(Arm.PLAIN, 2.0, 0.5) == 1.0
    assert stretch(Arm.TREATED, 2.0, 0.5) == stretch(Arm.DILATION, 2.0, 0.5) == 2.0
    assert stretch(Arm.TREATED, 1.0, 0.0) == 1.0
