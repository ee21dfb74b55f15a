"""Work per visit, treated against placebo: full stores that a speedup lives off, and hardware that pauses free."""

import random
from dataclasses import replace

import pytest

from causal.analysis.per_visit import PerVisit, compare_per_visit
from causal.profile import Visits, Window

S = 1_000_000_000


def window(arm, pair, *, visits, others_s, own_s=0.5, spins=0):
    return Window(
        region="r", arm=arm, pair=pair, level=0.5, speedup=0.5 if arm == "treated" else 0.0, effective_ns=S, wall_ns=S,
        samples=1000, cpus=own_s, points=(Visits("p", visits),), audit={"others_ns": others_s * S, "spins": spins},
    )  # fmt: skip


def pairs(count, *, others, own=1.0, spins=0, noise=0.02, seed=1):
    """Treated windows with twice the visits, and so many times the work per visit of the placebo windows."""
    rng = random.Random(seed)

    def noisy():
        return rng.uniform(1 - noise, 1 + noise)

    for pair in range(count):
        yield window("placebo", pair, visits=100, others_s=0.4 * noisy(), own_s=0.5 * noisy(), spins=spins)
        yield window(
            "treated", pair, visits=200, others_s=0.8 * others * noisy(), own_s=1.0 * own * noisy(), spins=spins
        )


def test_as_much_work_per_visit_in_both_arms():
    assert compare_per_visit(list(pairs(10, others=1.0)), "p") == PerVisit()


def test_a_store_that_drains():
    found = compare_per_visit(list(pairs(10, others=0.63)), "p")
    assert found.others == pytest.approx(0.63, abs=0.02) and found.own == 1.0
    # A queue of 1,000 in the simulator: 50 % seen, 20 % in the long run.
    assert found.sustained(0.5) == pytest.approx(0.2, abs=0.03)


def test_a_store_that_drains_at_all_speedups():
    """The closer to 100 %, the less other work per visit: that must not pass for noise."""
    windows = []
    for pair in range(16):
        share = (0.85, 0.6, 0.3, 1e-4)[pair % 4]
        windows += [replace(w, pair=pair) for w in pairs(1, others=share, seed=pair)]
    assert compare_per_visit(windows, "p").others < 0.7


def test_threads_that_nothing_is_handed_to_or_from_fill_no_store():
    """Threads beside do as much per second as before, so less per visit the faster the others are."""
    linked = {"placebo": 0.0, "treated": 0.0}
    apart = [replace(w, audit={**w.audit, "linked_ns": linked[w.arm]}) for w in pairs(10, others=0.63)]
    assert compare_per_visit(apart, "p") == PerVisit()
    together = [replace(w, audit={**w.audit, "linked_ns": w.audit["others_ns"]}) for w in apart]
    assert compare_per_visit(together, "p").others == pytest.approx(0.63, abs=0.02)


def test_hardware_that_paused_threads_leave_to_the_region():
    found = compare_per_visit(list(pairs(10, others=1.0, own=0.8)), "p")
    assert found.own == pytest.approx(0.8, abs=0.02) and found.others == 1.0


def test_noise_is_no_difference():
    for seed in range(20):
        found = compare_per_visit(list(pairs(6, others=0.95, noise=0.3, seed=seed)), "p")
        assert found.others == 1.0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_pairs(count):
    assert compare_per_visit(list(pairs(count, others=0.5)), "p") == PerVisit()


def test_a_program_that_spins_says_nothing():
    assert compare_per_visit(list(pairs(10, others=0.63, spins=100)), "p") == PerVisit()


def test_windows_without_a_partner_or_the_point_are_left_out():
    alone = [each for each in pairs(10, others=0.5) if each.arm == "treated"]
    assert compare_per_visit(alone, "p") == PerVisit()
    assert compare_per_visit(list(pairs(10, others=0.5)), "another") == PerVisit()
