"""A region that runs in some phases only: known answers for the whole run."""

from dataclasses import replace

import numpy as np
import pytest

from causal.analysis import analyse
from causal.analysis.phases import NO_PHASES, PhaseFactor, in_own_phases, phase_factor, undisturbed_run_ns
from causal.analysis.results import Curve, CurveFit, Gain, Verdict
from causal.profile import End, Header, Profile, ProgressPoint, Region, Visits, Window

SECOND, RATE = 10**9, 1000  # samples per second
LEVELS = (0.25, 0.5, 0.75, 1.0)


def two_phases(active, in_experiments, slope=0.8, pairs=24, seed=1, stretch=0.5):
    """A region that runs half of the time of its phases, which are `active` of the run, and `in_experiments` of the
    windows in which it was tried."""
    rng = np.random.default_rng(seed)
    windows, effective = [], 0
    for pair in range(pairs):
        level = LEVELS[pair % 4]
        running = rng.random() < in_experiments
        for arm in ("treated", "placebo"):
            gain = slope * level if arm == "treated" and running else 0.0
            visits = rng.poisson(1000 / (1.0 - gain))
            delay = round(stretch * level * SECOND) if arm == "treated" else 0
            windows.append(
                Window(
                    "work", arm, pair, level, level if arm == "treated" else 0.0, SECOND, SECOND + delay, delay,
                    selected_samples=int(rng.poisson(RATE / 2)) if running else 0, samples=RATE,
                    points=(Visits("point", int(visits)),),
                )
            )  # fmt: skip
            # A faster program leaves its phase sooner.
            effective += round(SECOND / (1.0 - gain))
    run_ns = sum(window.wall_ns for window in windows)
    samples = {"work": round(RATE / 2 * active * effective / SECOND)}
    return Profile(
        Header("test", ("prog",), 1, "", progress_points=(ProgressPoint("point"),)),
        (Region("work", "function"),), tuple(windows), samples, startup_ns=0,
        end=End("duration", 0, 10**6, 10**6, SECOND // RATE, run_ns),
    )  # fmt: skip


def factor_of(profile, windows):
    return phase_factor(profile, "work", windows, undisturbed_run_ns(profile, "point"))


def test_the_gain_of_a_phase_becomes_that_of_the_run():
    # Tried only while it runs, where it gains 0.8 of what it is sped up; its phases are half of the run.
    (result,) = analyse(two_phases(active=0.5, in_experiments=1.0)).regions
    assert result.phase_factor == pytest.approx(0.5, abs=0.02)
    at_half = next(point for point in result.points if point.speedup == 0.5)
    assert at_half.raw == pytest.approx(0.4, abs=0.04) and at_half.program_speedup == pytest.approx(0.2, abs=0.02)
    assert at_half.ci[0] < 0.2 < at_half.ci[1]
    assert result.fit.at(1.0).gain == pytest.approx(0.4, abs=0.03)
    assert result.verdict is Verdict.OPTIMISE and "in the phases" in result.explanation
    assert "40% faster" in result.explanation and "50% as much" in result.explanation


def test_without_phases_nothing_is_corrected():
    (result,) = analyse(two_phases(active=1.0, in_experiments=1.0)).regions
    assert result.phase_factor == 1.0 and result.points[2].raw == result.points[2].program_speedup
    assert "phases" not in result.explanation


def mostly_waiting(active, cpus=0.8, samples=40):
    """The same for a region that waits for 0.8 of the time of its phases and has next to no samples, of which more came
    in its experiments by chance."""
    profile = two_phases(active=1.0, in_experiments=1.0)
    windows = tuple(replace(window, selected_samples=3, cpus=cpus) for window in profile.windows)
    run_ns = undisturbed_run_ns(profile, "point")
    return replace(
        profile, windows=windows, samples={"work": samples}, waits={"work": {"I/O": round(active * cpus * run_ns)}},
        header=replace(profile.header, options={"unit": "function"}),
    )  # fmt: skip


def test_of_a_region_that_waits_the_time_is_compared_and_not_its_few_samples():
    (result,) = analyse(mostly_waiting(active=1.0)).regions
    assert result.phase_factor == 1.0
    (result,) = analyse(mostly_waiting(active=0.5)).regions
    assert result.phase_factor == pytest.approx(0.5, abs=0.05)


def test_experiments_that_met_the_other_phase_are_left_out():
    # Half of the experiments were made while it runs. Taken together, those at 100 % would be decided by the windows
    # in which it ran, for they have more visits.
    profile = two_phases(active=0.5, in_experiments=0.5, pairs=40)
    kept = in_own_phases(profile.windows)
    assert {window.pair for window in kept} < {window.pair for window in profile.windows}
    assert all(window.selected_samples > 0 for window in kept) and len(kept) % 2 == 0
    (result,) = analyse(profile).regions
    assert result.phase_factor == pytest.approx(0.5, abs=0.02) and result.pairs == len(kept) // 2
    assert result.fit.at(1.0).gain == pytest.approx(0.4, abs=0.03)


def test_chance_is_no_phase():
    # A region with a handful of samples per window misses some windows by chance.
    rng = np.random.default_rng(5)
    windows = [
        Window("rare", arm, pair, 0.5, 0.5 if arm == "treated" else 0.0, SECOND, SECOND,
               selected_samples=int(rng.poisson(3)), samples=RATE, points=(Visits("point", 1000),))
        for pair in range(40) for arm in ("treated", "placebo")
    ]  # fmt: skip
    assert in_own_phases(windows) == windows


def test_a_factor_whose_interval_contains_one_is_not_applied():
    profile = two_phases(active=0.85, in_experiments=1.0, pairs=4)
    noisy = [
        replace(window, selected_samples=window.selected_samples * (1 + window.pair % 2)) for window in profile.windows
    ]
    assert factor_of(profile, profile.windows).applies
    assert factor_of(profile, noisy) == NO_PHASES


def test_experiments_in_other_phases_never_make_a_gain_larger():
    profile = two_phases(active=1.0, in_experiments=0.5)
    assert factor_of(profile, profile.windows) == NO_PHASES


@pytest.mark.parametrize("broken", ["end", "samples", "windows"])
def test_what_is_not_known_is_not_corrected(broken):
    profile = two_phases(active=0.5, in_experiments=1.0)
    values = {name: getattr(profile, name) for name in profile.__slots__}
    values |= {"end": {"end": None}, "samples": {"samples": {}}, "windows": {"windows": ()}}[broken]
    assert factor_of(Profile(**values), values["windows"]) == NO_PHASES


def test_both_errors_are_in_the_interval():
    factor = PhaseFactor(0.5, 0.1)
    whole = factor.gain(Gain(0.4, (0.3, 0.5)))
    assert whole.gain == pytest.approx(0.2)
    assert whole.ci[1] - 0.2 == pytest.approx(np.hypot(0.05, 0.04)) and 0.2 - whole.ci[0] == pytest.approx(
        whole.ci[1] - 0.2
    )
    curve = factor.fit(CurveFit(0.4, (0.3, 0.5), 0.01, 0.5, 1.0, (Curve(0.5, 0.4, 0.1),)))
    assert curve.slope == pytest.approx(0.2) and curve.knee == 0.5 and curve.p_value == 0.01
    assert curve.at(1.0).gain == pytest.approx(0.1)
    assert curve.at(1.0).ci[1] == pytest.approx(0.5 * (0.2 + np.hypot(0.05, 0.04)))


def test_intervals_cover_the_gain_of_the_run():
    hits = []
    for seed in range(40):
        (result,) = analyse(two_phases(active=0.4, in_experiments=1.0, seed=seed)).regions
        low, high = result.fit.at(0.5).ci
        hits.append(low <= 0.16 <= high)
    assert sum(hits) >= 36
