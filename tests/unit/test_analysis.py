"""The estimates against simulated programs whose true gains are known."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from causal.analysis import analyse
from causal.analysis.curve import fit_curve
from causal.analysis.multiple import benjamini_hochberg
from causal.analysis.pairs import PairData, collect_pairs
from causal.analysis.rates import level_effects, pooled_gain
from causal.analysis.results import Curve, CurveFit, Gain, Verdict
from causal.profile import (
    UNPAIRED,
    End,
    Header,
    Profile,
    ProfileWriter,
    ProgressPoint,
    Region,
    Visits,
    Window,
    read_profile,
)

QUARTERS = (0.25, 0.5, 0.75, 1.0)
SECOND = 10**9


def simulate_pairs(rng, gain, mean, pairs=40, levels=QUARTERS, dispersion=1.0, drift=0.3):
    """Pairs of windows with overdispersed visits; the rate drifts between pairs by a factor of about exp(drift)."""
    level = np.asarray(levels)[np.arange(pairs) % len(levels)]
    rate = mean * np.exp(rng.normal(0.0, drift, pairs))
    time_treated, time_placebo = rng.uniform(0.5, 1.5, (2, pairs))

    def visits(expected):
        if dispersion > 1.0:
            expected = rng.gamma(expected / (dispersion - 1.0), dispersion - 1.0)
        return rng.poisson(expected).astype(float)

    treated = visits(rate * time_treated / (1.0 - np.array([gain(s) for s in level])))
    placebo = visits(rate * time_placebo)
    return PairData(level, treated, time_treated * SECOND, placebo, time_placebo * SECOND, treated, placebo)


def simulate_windows(seed, region, gain, pairs=40, mean=300, levels=QUARTERS, false_gain=0.0, first_pair=0, **fields):
    """The windows of a region as the profile has them; every other pair has a dilation window."""
    rng = np.random.default_rng(seed)
    windows = []
    for pair in range(first_pair, first_pair + pairs):
        level = levels[pair % len(levels)]
        rate = mean * math.exp(rng.normal(0.0, 0.1))
        arms = [("treated", level, gain(level)), ("placebo", 0.0, 0.0)]
        if pair % 2 == 0:
            arms.append(("dilation", 0.0, false_gain * level))
        for arm, speedup, effect in arms:
            count = int(rng.poisson(rate / (1.0 - effect)))
            visits = Visits("point", count, 0, SECOND, int(rng.binomial(count, 0.5)))
            windows.append(
                Window(
                    region, arm, pair, level, speedup, SECOND,
                    wall_ns=SECOND, points=(visits,), half_effective_ns=SECOND // 2,
                    selected_samples=100, samples=400, **fields,
                )
            )  # fmt: skip
    return windows


def make_profile(windows, samples=None, end=True):
    names = dict.fromkeys(window.region for window in windows)
    samples = dict.fromkeys(names, 100) if samples is None else samples
    total = sum(samples.values())
    return Profile(
        Header("test", ("prog",), 1, "", options={"unit": "function"}, progress_points=(ProgressPoint("point"),)),
        regions=tuple(Region(name, "function", "/bin/prog") for name in names),
        windows=tuple(windows),
        samples=samples,
        end=End("duration", 0, total * 2, total) if end else None,
    )


# Estimates


@pytest.mark.parametrize(("mean", "dispersion"), [(5, 1.0), (30, 1.5), (300, 3.0)])
@pytest.mark.parametrize("slope", [0.0, 0.5, -0.4])
def test_intervals_cover_the_truth(mean, dispersion, slope):
    rng = np.random.default_rng([mean, int(slope * 10) % 100])
    level_hits, curve_hits = [], []
    for _ in range(200):
        effects = level_effects(simulate_pairs(rng, lambda s: slope * s, mean, dispersion=dispersion))
        for index, level in enumerate(effects.level):
            low, high = effects.gain(index).ci
            level_hits.append(low <= slope * level <= high)
        low, high = fit_curve(effects).at(0.25).ci
        curve_hits.append(low <= slope * 0.25 <= high)
    assert 0.9 <= np.mean(level_hits) <= 0.99
    assert 0.9 <= np.mean(curve_hits) <= 0.995


def test_estimates_are_not_biased_at_few_visits():
    rng = np.random.default_rng(3)
    data = simulate_pairs(rng, lambda s: 0.4, mean=5, pairs=4000, levels=(0.5,))
    assert level_effects(data).gain(0).gain == pytest.approx(0.4, abs=0.02)


def test_the_conditional_form_equals_the_poisson_regression_with_pair_effects():
    import statsmodels.api as sm

    data = simulate_pairs(np.random.default_rng(4), lambda s: 0.3 * s, mean=30, pairs=24)
    effects = level_effects(data)
    pairs = len(data)
    pair = np.tile(np.arange(pairs), 2)
    treated = np.repeat([1.0, 0.0], pairs)
    design = np.column_stack(
        [np.equal.outer(pair, np.arange(pairs))] + [treated * (np.tile(data.level, 2) == s) for s in effects.level]
    ).astype(float)
    visits = np.concatenate([data.visits_treated, data.visits_placebo])
    offset = np.log(np.concatenate([data.time_treated_ns, data.time_placebo_ns]))
    full = sm.GLM(visits, design, family=sm.families.Poisson(), offset=offset).fit()
    assert effects.log_ratio == pytest.approx(full.params[pairs:], abs=1e-6)
    # The model's own variance is the inverse of our information; 6 pairs per level.
    assert 1.0 / effects.information == pytest.approx(full.bse[pairs:] ** 2, rel=1e-6)


def test_many_levels_with_one_pair_each_still_give_intervals():
    rng = np.random.default_rng(5)
    levels = np.arange(1, 21) / 20
    hits = []
    for _ in range(100):
        effects = level_effects(simulate_pairs(rng, lambda s: 0.4 * s, 100, pairs=20, levels=levels, dispersion=2.0))
        low, high = fit_curve(effects).at(0.5).ci
        hits.append(low <= 0.2 <= high)
    assert np.mean(hits) >= 0.9


def test_a_knee_is_found_and_not_invented():
    rng = np.random.default_rng(6)
    levels = np.arange(1, 21) / 20
    knees = []
    for _ in range(50):
        bent = simulate_pairs(rng, lambda s: 0.5 * min(s, 0.4), 1000, pairs=60, levels=levels)
        fit = fit_curve(level_effects(bent))
        knees.append(fit.knee)
        assert fit.ci[0] <= fit.slope <= fit.ci[1]
    found = [knee for knee in knees if knee is not None]
    assert len(found) >= 48
    assert np.median(found) == pytest.approx(0.4, abs=0.05)
    straight = [
        fit_curve(level_effects(simulate_pairs(rng, lambda s: 0.5 * s, 1000, pairs=60, levels=levels))).knee
        for _ in range(50)
    ]
    assert sum(knee is not None for knee in straight) <= 6


def test_a_negative_slope_is_found():
    fit = fit_curve(level_effects(simulate_pairs(np.random.default_rng(7), lambda s: -0.3 * s, 500)))
    assert fit.ci[0] <= -0.3 <= fit.ci[1] and fit.ci[1] < 0


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_too_few_pairs_give_no_number(pairs):
    assert level_effects(simulate_pairs(np.random.default_rng(8), lambda s: 0.0, 50, pairs=pairs)) is None


def test_no_visits_give_no_number():
    data = simulate_pairs(np.random.default_rng(9), lambda s: 0.0, 50)
    nothing = np.zeros(len(data))
    assert level_effects(replace(data, visits_treated=nothing, visits_placebo=nothing)) is None
    # Visits in one arm only: an infinite ratio is no number either.
    assert level_effects(replace(data, visits_treated=nothing)) is None
    assert level_effects(replace(data, visits_placebo=nothing)) is None
    assert pooled_gain([]) is None


def test_a_level_without_visits_does_not_spoil_the_others():
    data = simulate_pairs(np.random.default_rng(10), lambda s: 0.3 * s, 200)
    spoiled = replace(data, visits_treated=np.where(data.level == 0.5, 0.0, data.visits_treated))
    assert list(level_effects(spoiled).level) == [0.25, 0.75, 1.0]


def test_identical_visits_everywhere_are_survived():
    # Perfectly regular data have no spread at all: no division by zero, no NaN.
    level = np.repeat(QUARTERS, 5)
    same, time = np.full(20, 10.0), np.full(20, 1e9)
    effects = level_effects(PairData(level, same, time, same, time, same, same))
    fit = fit_curve(effects)
    assert fit.slope == pytest.approx(0.0, abs=1e-9) and math.isfinite(fit.p_value)
    assert all(math.isfinite(bound) for bound in (*fit.ci, *fit.at(0.5).ci))


# Rare visits


def periodic_windows(seed, gain, visits_per_window, jitter, pairs=40):
    """A program that visits its point like a clock, cut into windows at random moments."""
    rng = random.Random(seed)
    windows = []
    for pair in range(pairs):
        level = QUARTERS[pair % 4]
        for arm, effect in (("treated", gain * level), ("placebo", 0.0)):
            period = SECOND / visits_per_window * (1.0 - effect)
            time, times = -rng.random() * 20 * period, []
            while time < SECOND:
                if time >= 0:
                    times.append(int(time))
                time += rng.expovariate(1.0 / period) if jitter == "poisson" else period * rng.gauss(1.0, 0.03)
            first, last = (times[0], times[-1]) if times else (None, None)
            visits = Visits("point", len(times), first, last)
            speedup = level if arm == "treated" else 0.0
            windows.append(Window("r", arm, pair, level, speedup, SECOND, points=(visits,)))
    return windows


def test_timestamps_remove_the_quantisation_of_rare_regular_visits():
    windows = periodic_windows(1, 0.3, 3.4, "regular")
    data = collect_pairs(windows, "point")
    assert not np.array_equal(data.visits_treated, data.counted_treated)
    by_span = fit_curve(level_effects(data))
    stripped = [replace(w, points=tuple(replace(v, first_ns=None) for v in w.points)) for w in windows]
    by_count = fit_curve(level_effects(collect_pairs(stripped, "point")))
    assert by_span.ci[0] <= 0.3 <= by_span.ci[1]
    assert by_span.ci[1] - by_span.ci[0] < 0.5 * (by_count.ci[1] - by_count.ci[0])


def test_rare_irregular_visits_are_counted():
    # Here timestamps would be biased towards no effect.
    data = collect_pairs(periodic_windows(2, 0.4, 5, "poisson", pairs=400), "point")
    assert np.array_equal(data.visits_treated, data.counted_treated)
    fit = fit_curve(level_effects(data))
    assert fit.ci[0] <= 0.4 <= fit.ci[1]


def test_frequent_visits_are_counted():
    data = collect_pairs(periodic_windows(3, 0.4, 500, "regular"), "point")
    assert np.array_equal(data.visits_treated, data.counted_treated)


# Pairs


def test_only_complete_pairs_that_are_not_void_count():
    windows = simulate_windows(1, "r", lambda s: 0.0, pairs=6)
    windows = [w for w in windows if not (w.pair == 0 and w.arm == "placebo")]
    windows = [replace(w, void="throttled") if w.pair == 1 and w.arm == "treated" else w for w in windows]
    (result,) = analyse(make_profile(windows)).regions
    assert result.pairs == 4


def test_pairs_of_different_regions_are_never_mixed():
    # Both number their pairs from 0.
    windows = simulate_windows(1, "a", lambda s: 0.5 * s) + simulate_windows(2, "b", lambda s: 0.0, mean=20)
    results = {result.region: result for result in analyse(make_profile(windows)).regions}
    assert results["a"].verdict is Verdict.OPTIMISE and results["b"].verdict is not Verdict.OPTIMISE


# Multiple testing


def test_benjamini_hochberg_agrees_with_statsmodels():
    from statsmodels.stats.multitest import multipletests

    p_values = [0.001, 0.2, 0.012, 0.03, 0.9, 0.04, 0.04]
    assert benjamini_hochberg(p_values) == pytest.approx(list(multipletests(p_values, method="fdr_bh")[1]))


def test_regions_without_a_number_count_as_tried():
    assert benjamini_hochberg([0.01, None, None, None]) == [pytest.approx(0.04), None, None, None]
    assert benjamini_hochberg([]) == []


def test_few_of_many_useless_regions_look_useful():
    windows = [w for n in range(60) for w in simulate_windows(n, f"r{n}", lambda s: 0.0, pairs=12, mean=100)]
    verdicts = [result.verdict for result in analyse(make_profile(windows)).regions]
    assert sum(verdict in (Verdict.OPTIMISE, Verdict.CONTENTION) for verdict in verdicts) <= 1


# Verdicts and ranking


def test_verdicts_and_ranking():
    windows = [
        *simulate_windows(1, "negative", lambda s: -0.3 * s),
        *simulate_windows(2, "nothing", lambda s: 0.0, pairs=200, mean=1000),
        *simulate_windows(3, "large", lambda s: 0.4 * s),
        *simulate_windows(4, "small", lambda s: 0.1 * s, pairs=80),
        *simulate_windows(5, "unclear", lambda s: 0.0, pairs=20, mean=100),
        *simulate_windows(6, "barely", lambda s: 0.0, pairs=2),
    ]
    analysis = analyse(make_profile(windows))
    verdicts = {result.region: result.verdict for result in analysis.regions}
    assert verdicts == {
        "large": Verdict.OPTIMISE,
        "small": Verdict.OPTIMISE,
        "nothing": Verdict.NO_EFFECT,
        "unclear": Verdict.UNDECIDED,
        "negative": Verdict.CONTENTION,
        "barely": Verdict.UNDECIDED,
    }
    assert [result.region for result in analysis.regions][:3] == ["large", "small", "nothing"]
    assert analysis.regions[-1].region == "barely"
    large = analysis.regions[0]
    assert "100% faster" in large.explanation and large.slope_ci[0] <= 0.4 <= large.slope_ci[1]
    assert [point.speedup for point in large.points] == [0.0, *QUARTERS]
    assert large.unit == "function" and large.cpu_share == pytest.approx(1 / 12)
    assert large.baseline_rate == pytest.approx(300, rel=0.05)
    assert "times as long" in next(r for r in analysis.regions if r.region == "unclear").explanation
    assert analysis.diagnosis.conclusion is None


def test_no_slope_below_five_levels():
    (result,) = analyse(make_profile(simulate_windows(1, "r", lambda s: 0.4 * s, levels=(0.5, 1.0)))).regions
    assert (result.slope, result.slope_ci, result.knee) == (None, None, None)
    assert result.verdict is Verdict.OPTIMISE and result.p_value < 0.001


def test_a_program_that_is_paced_from_outside_gets_no_number():
    windows = [
        *simulate_windows(1, "paced", lambda s: 0.25 * s, false_gain=0.25),
        *simulate_windows(2, "free", lambda s: 0.25 * s),
    ]
    results = {result.region: result for result in analyse(make_profile(windows)).regions}
    paced = results["paced"]
    assert paced.verdict is Verdict.PACED and results["free"].verdict is Verdict.OPTIMISE
    assert paced.slope is None and paced.fit is None and paced.p_value is None
    assert all(point.program_speedup is None and point.ci is None for point in paced.points)
    assert paced.points[-1].raw == pytest.approx(0.25, abs=0.05)


def test_a_region_without_dilation_windows_of_its_own_follows_the_program():
    small = [w for w in simulate_windows(1, "small", lambda s: 0.2 * s) if w.arm != "dilation"]
    windows = small + simulate_windows(2, "large", lambda s: 0.25 * s, false_gain=0.25)
    assert {result.verdict for result in analyse(make_profile(windows)).regions} == {Verdict.PACED}


def test_pauses_that_could_not_be_made_widen_the_intervals():
    clean = simulate_windows(1, "r", lambda s: 0.3 * s, delay_ns=SECOND)
    dirty = [replace(w, audit={"owed_ns": 100, "forgiven_ns": 12}) for w in clean]
    (sharp,), (wide,) = (analyse(make_profile(w)).regions for w in (clean, dirty))
    assert wide.slope == sharp.slope
    assert wide.slope_ci[0] < sharp.slope_ci[0] - 0.1 and wide.slope_ci[1] > sharp.slope_ci[1] + 0.1


def test_a_region_that_never_ran_gets_no_number():
    """Half a percent of noise is not "no effect" of a speedup that never was."""
    windows = [replace(w, selected_samples=0) for w in simulate_windows(1, "r", lambda s: 0.0, pairs=200, mean=3000)]
    (result,) = analyse(make_profile(windows)).regions
    assert result.verdict is Verdict.UNDECIDED and "never ran" in result.explanation
    assert result.fit is None and all(point.program_speedup is None for point in result.points)


# Diagnosis


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (make_profile([], {"r": 0}), "no CPU time"),
        (replace(make_profile([]), end=End("exit", 0, 500, 0)), "in scope"),
        (replace(make_profile([], {"r": 100}), end=End("exit", 0, 100, 100)), "before the first experiment"),
        (replace(make_profile([], {"r": 100}), end=End("duration", None, 100, 100)), "did not run"),
        (replace(make_profile([], {"r": 100}), end=End("exit", 0, 100, 100, diagnosis={"unpaused": 1})), None),
        (make_profile(simulate_windows(1, "r", lambda s: 0.0, mean=0)), "never visited"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.0, mean=1, pairs=2)), "too few visits"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.0, pairs=2)), "too few experiments"),
        (make_profile(simulate_windows(2, "r", lambda s: 0.0, pairs=300, mean=1000)), "none of the regions"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.0, pairs=12, mean=50)), "times as long"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.3 * s, false_gain=0.3)), "sets the pace"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.3 * s, void="throttled")), "void"),
        (make_profile(simulate_windows(1, "r", lambda s: 0.3 * s)), None),
    ],
)
def test_the_likely_cause_is_named(profile, expected):
    conclusion = analyse(profile).diagnosis.conclusion
    assert conclusion is None if expected is None else expected in conclusion


def test_the_diagnosis_counts():
    windows = simulate_windows(1, "r", lambda s: 0.3 * s, pairs=20)
    windows.append(replace(windows[0], void="cgroup throttled"))
    profile = make_profile(windows, {"r": 90, "untried": 10})
    end = replace(
        profile.end, diagnosis={"signals_lost": 5, "pause_error_p99_ns": 7}, messages=("said while recording",)
    )
    diagnosis = analyse(replace(profile, end=end)).diagnosis
    assert (diagnosis.experiments, diagnosis.regions_tried) == (20, 1)
    assert diagnosis.coverage == pytest.approx(0.9)
    assert diagnosis.visits["point"] == sum(w.points[0].delta for w in windows[:-1])
    assert (diagnosis.signals_lost, diagnosis.pause_error_p99_ns, diagnosis.stacks_truncated) == (5, 7, None)
    assert any("1 of 51 windows are void" in message for message in diagnosis.messages)
    assert "said while recording" in diagnosis.messages


def test_windows_that_did_not_settle_are_reported():
    windows = simulate_windows(1, "r", lambda s: 0.0)
    assert not any("settled" in message for message in analyse(make_profile(windows)).diagnosis.messages)
    filling = [
        replace(w, points=(replace(w.points[0], half_delta=int(w.points[0].delta * 0.7)),)) if w.arm == "treated" else w
        for w in windows
    ]
    assert any("40 of 40" in message for message in analyse(make_profile(filling)).diagnosis.messages)


def test_a_recording_that_was_killed_is_analysed():
    windows = simulate_windows(1, "r", lambda s: 0.4 * s)
    analysis = analyse(replace(make_profile(windows, end=False), samples={}, truncated=True))
    assert analysis.regions[0].verdict is Verdict.OPTIMISE
    assert analysis.regions[0].cpu_share == pytest.approx(0.25)
    assert analysis.diagnosis.samples is None and analysis.diagnosis.coverage is None
    assert any("cut off" in message for message in analysis.diagnosis.messages)


def test_overhead_compares_placebo_with_plain_windows():
    windows = simulate_windows(1, "r", lambda s: 0.0, mean=800, pairs=100)
    plain = [Window("", "plain", 900 + n, 0, 0, SECOND, SECOND, points=(Visits("point", 1000),)) for n in range(9)]
    analysis = analyse(make_profile(windows + plain))
    assert analysis.overhead.sampling == pytest.approx(0.2, abs=0.03)
    assert analysis.regions[0].baseline_rate == pytest.approx(1000)
    assert analysis.diagnosis.regions_tried == 1 and len(analysis.regions) == 1


def test_points_are_judged_alone():
    idle = Visits("idle", 0)
    windows = [replace(w, points=(*w.points, idle)) for w in simulate_windows(1, "r", lambda s: 0.4 * s)]
    verdicts = {result.progress_point: result.verdict for result in analyse(make_profile(windows)).regions}
    assert verdicts == {"point": Verdict.OPTIMISE, "idle": Verdict.UNDECIDED}


def test_a_run_without_pairs_or_points_is_survived():
    plain = Window("", "plain", 0, 0.0, 0.0, SECOND)
    for windows in ([], [plain], [replace(plain, arm="treated", level=0.5, speedup=0.5)], [replace(plain, void="x")]):
        profile = replace(make_profile(windows), header=Header("test", ("prog",), 1, ""))
        assert analyse(profile).diagnosis.conclusion is not None


def test_the_analysis_is_deterministic():
    profile = make_profile(simulate_windows(1, "r", lambda s: 0.4 * s))
    assert json.dumps(repr(analyse(profile))) == json.dumps(repr(analyse(profile)))


# Regions that were stopped early


def test_a_region_stopped_by_its_effect_reports_an_interval_for_all_times():
    windows = simulate_windows(21, "a", lambda s: 0.3 * s, pairs=12)
    fixed = analyse(make_profile(windows)).regions[0]
    stopped = {rule: analyse(replace(make_profile(windows), settled={"a": rule})).regions[0]
               for rule in ("effect", "precise")}  # fmt: skip
    assert stopped["precise"].fit == fixed.fit
    assert stopped["effect"].fit.slope == fixed.fit.slope and stopped["effect"].p_value > fixed.p_value
    for wide, narrow in zip(stopped["effect"].points[1:], fixed.points[1:], strict=True):
        assert wide.ci[1] - wide.ci[0] > 1.2 * (narrow.ci[1] - narrow.ci[0])


def test_which_rule_stopped_a_region_is_in_the_profile(tmp_path):
    with ProfileWriter(tmp_path / "p") as writer:
        writer.header(Header("test", ("prog",), 1, ""))
        writer.settled("größe", "effect")
    assert read_profile(tmp_path / "p").settled == {"größe": "effect"}


# Experiments without partners (COZ's)


def unpaired(rng, slope, experiments=60, drift=0.05):
    windows = []
    for _ in range(experiments):
        level = 0.0 if rng.random() < 0.3 else rng.integers(1, 21) / 20
        count = rng.poisson(400 * math.exp(rng.normal(0.0, drift)) / (1.0 - slope * level))
        points = (Visits("point", int(count)),)
        windows.append(Window("a", "treated" if level else "placebo", UNPAIRED, level, level, SECOND, points=points))
    return windows


def test_unpaired_intervals_cover_the_truth():
    rng = np.random.default_rng(31)
    curve_hits, level_hits = [], []
    for _ in range(60):
        effects = level_effects(collect_pairs(unpaired(rng, 0.3), "point"))
        low, high = fit_curve(effects).at(0.5).ci
        curve_hits.append(low <= 0.15 <= high)
        for index, level in enumerate(effects.level):
            low, high = effects.gain(index).ci
            level_hits.append(low <= 0.3 * level <= high)
    assert np.mean(curve_hits) >= 0.9 and 0.92 <= np.mean(level_hits) <= 0.995


def test_the_error_of_a_common_baseline_does_not_average_out():
    # Many levels, one poor baseline: the slope is as uncertain as the baseline, however many levels there are.
    rng = np.random.default_rng(32)
    windows = unpaired(rng, 0.0, experiments=400)
    few = [w for w in windows if w.arm == "placebo"][:3] + [w for w in windows if w.arm == "treated"]
    effects = level_effects(collect_pairs(few, "point"))
    assert fit_curve(effects).at(1.0).margin > math.sqrt(effects.shared)
    assert effects.shared > 10 * level_effects(collect_pairs(windows, "point")).shared


def test_one_baseline_is_none():
    windows = [w for w in unpaired(np.random.default_rng(33), 0.0) if w.arm == "treated"]
    assert level_effects(collect_pairs(windows, "point")) is None


# Evidence


def test_what_is_no_evidence_is_no_number():
    def about(gain, factor):
        return Gain(gain, (1.0 - (1.0 - gain) * factor, 1.0 - (1.0 - gain) / factor))

    def curve(factor, max_level):
        half = math.log(factor) * 0.97 / max_level
        return CurveFit(0.0, (-half, half), 0.5, None, max_level, (Curve(1.0, 0.0, half),))

    for gain in (-0.5, 0.0, 0.6):  # which it is does not decide
        assert about(gain, 1.45).is_evidence and not about(gain, 1.55).is_evidence
    assert not Gain(0.2, (-81281.7, 1.0)).is_evidence
    # Any gain up to 100 % is possible without looking: 50 give or take 50.
    assert curve(1.4, 1.0).is_evidence and not curve(1.7, 1.0).is_evidence
    assert curve(1.2, 0.25).is_evidence and not curve(1.4, 0.25).is_evidence


def test_few_pairs_borrow_the_noise_of_the_run():
    alone, together = [], []
    for seed in range(60):
        windows = [w for n in range(5) for w in simulate_windows([seed, n], f"r{n}", lambda s: 0.2 * s, pairs=3)]
        one = analyse(make_profile([w for w in windows if w.region == "r0"])).regions[0]
        both = next(r for r in analyse(make_profile(windows)).regions if r.region == "r0")
        for found, into in ((one, alone), (both, together)):
            into.append(None if found.fit is None else found.fit.at(0.5))
    shown = [gain for gain in together if gain is not None]
    assert len(shown) >= 55 and all(gain.margin < 0.3 for gain in shown)
    assert np.mean([gain.ci[0] <= 0.1 <= gain.ci[1] for gain in shown]) >= 0.9
    widths = [np.median([10.0 if gain is None else gain.margin for gain in gains]) for gains in (alone, together)]
    assert widths[1] < 0.8 * widths[0]


def test_a_region_without_evidence_is_not_ranked():
    rng = np.random.default_rng(1)
    wild = []
    for pair in range(6):
        for arm in ("treated", "placebo"):
            visits = (Visits("point", int(10 ** rng.uniform(0, 3))),)
            speedup = 0.5 if arm == "treated" else 0.0
            ran = {"wall_ns": SECOND, "selected_samples": 5, "points": visits}
            wild.append(Window("wild", arm, 1000 + pair, 0.5, speedup, SECOND, **ran))
    small = simulate_windows(2, "small", lambda s: -0.05 * s, pairs=40)
    results = analyse(make_profile([*wild, *small])).regions
    assert [result.region for result in results] == ["small", "wild"]
    assert results[1].fit is None and results[1].verdict is Verdict.UNDECIDED
    assert [(point.program_speedup, point.raw is None) for point in results[1].points] == [(0.0, False), (None, False)]
    assert "points only" not in results[1].explanation


# What next, and what runs alone


def test_with_a_given_speedup_gains_are_those_after_it():
    windows = simulate_windows(1, "r", lambda s: 0.4 * s)
    plain = [replace(window, arm="plain", region="", pair=0) for window in windows if window.arm == "placebo"]
    plain = [replace(window, points=(Visits("point", 3),)) for window in plain]
    profile = make_profile([*windows, *plain])
    given = replace(profile, header=replace(profile.header, options={"given": {"parse": 0.5}}))
    found, before = analyse(given), analyse(profile)
    assert "parse 50% faster already" in found.diagnosis.messages[0]
    assert found.regions[0].fit == before.regions[0].fit
    # The program as it is is another one than that of the experiments.
    assert before.regions[0].baseline_rate < 10 < found.regions[0].baseline_rate
    assert found.overhead.sampling is None


def test_the_share_of_the_serial_path():
    profile = make_profile(simulate_windows(1, "r", lambda s: 0.4 * s), samples={"r": 100, "other": 300})
    assert analyse(profile).regions[0].serial_share is None
    end = replace(profile.end, diagnosis={"serial_samples": 200.0})
    found = analyse(replace(profile, serial={"r": 90.0, "other": 100.0}, end=end)).regions[0]
    assert found.serial_share == pytest.approx(0.45) and found.cpu_share == pytest.approx(0.125)
