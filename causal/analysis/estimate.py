"""The estimate: every region at every progress point, tested, judged and ranked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal.analysis.curve import fit_curve
from causal.analysis.diagnosis import diagnose, measure_overhead
from causal.analysis.disturbance import mark_disturbed
from causal.analysis.latency import imbalance, is_latency, mean_latency_s
from causal.analysis.multiple import benjamini_hochberg
from causal.analysis.pairs import PairData, collect_pairs, usable, visits_of
from causal.analysis.per_visit import compare_per_visit
from causal.analysis.phases import NO_PHASES, PhaseFactor, in_own_phases, phase_factor, undisturbed_run_ns
from causal.analysis.rates import BORROWED_DF, MIN_PAIRS, LevelEffects, Noise, level_effects, pooled_effect, pooled_gain
from causal.analysis.results import Analysis, CurveFit, Gain, PointResult, RegionResult, Verdict
from causal.analysis.verdict import is_paced, judge, phases_words
from causal.profile import Profile, Region, Window
from causal.race import sequence_factor

# As COZ: with fewer levels than this, the one at 0 included, a slope says too little to be shown.
_MIN_LEVELS_FOR_SLOPE = 5
_RANKED_AT = 0.25
# What predictions are off by on programs with known answers (the mean in `scripts/bench accuracy`), as a gain at a
# virtual speedup of 100 %: no interval may claim to know better.
_METHOD_ERROR = 0.015
# A program that is paced shows it beyond doubt. At 5 % one run in twenty would lose its numbers to chance.
_PACE_P_VALUE = 0.01
# Plain windows give the baseline rate only when they saw more than a few visits.
_MIN_PLAIN_VISITS = 5


@dataclass(frozen=True, slots=True)
class _Evidence:
    # What is known of one region at one point before the regions are compared.
    region: str
    point: str
    windows: tuple[Window, ...]
    pairs: PairData
    dilation_pairs: PairData
    effects: LevelEffects | None
    treated: Gain | None
    dilation: Gain | None
    dilation_p: float | None
    # How long the run would have taken without experiments.
    run_ns: float | None
    # Experiments ended when there was an effect: intervals must hold at all times together.
    sequential: bool
    latency: bool = False
    # Why the latency has no steady value.
    unsteady: str | None = None


def estimate(profile: Profile) -> Analysis:
    """Analyses a profile; see `causal.analysis.analyse`."""
    profile = replace(profile, windows=mark_disturbed(profile.windows))
    windows = usable(profile.windows)
    names = point_names(profile)
    evidence = [item for point in names for item in _with_noise_of_all(_gather(profile, point))]
    overall, certain = {}, {}
    for point in names:
        pooled = pooled_gain([item.dilation_pairs for item in evidence if item.point == point])
        if pooled is not None:
            overall[point], p_value = pooled
            if p_value < _PACE_P_VALUE:
                certain[point] = pooled[0]
    results = _judge_all(profile, windows, evidence, certain)
    return Analysis(
        path=profile.path,
        command=profile.header.command,
        progress_points=names,
        regions=tuple(sorted(results, key=_rank)),
        overhead=measure_overhead(profile, windows, names),
        diagnosis=diagnose(profile, windows, names, results),
        dilation=overall,
        shares=_shares(profile),
        serial_shares={name: share for name in profile.serial if (share := _serial_share(profile, name)) is not None},
        rates=_rates(windows, names),
        waits=_waits(profile),
        places=_places(profile),
    )


def point_names(profile: Profile) -> tuple[str, ...]:
    """The progress points of the run in the order given, then any that only the windows name."""
    names = dict.fromkeys(point.name for point in profile.header.progress_points)
    names.update(dict.fromkeys(visits.name for window in profile.windows for visits in window.points))
    return tuple(names)


def _gather(profile: Profile, point: str) -> list[_Evidence]:
    # A region whose windows are all void was tried too: it stays, without a number.
    by_region: dict[str, list[Window]] = {}
    latency = is_latency(profile.windows, point)
    unsteady = imbalance(usable(profile.windows), point) if latency else None
    # How much a latency weighs in the whole run is not a question of time.
    run_ns = None if latency else undisturbed_run_ns(profile, point)
    for window in profile.windows:
        if window.arm != "plain":
            by_region.setdefault(window.region, []).append(window)
    found = []
    for region, tried in by_region.items():
        own = in_own_phases(usable(tried))
        pairs = collect_pairs(own, point)
        dilation_pairs = collect_pairs(own if _ran(own) else (), point, "dilation")
        pooled = pooled_gain([dilation_pairs])
        gain, p_value = (None, None) if pooled is None else pooled
        effects = level_effects(pairs)
        treated = pooled_gain([pairs])
        found.append(
            _Evidence(
                region,
                point,
                tuple(own),
                pairs,
                dilation_pairs,
                effects,
                treated and treated[0],
                gain,
                p_value,
                run_ns=run_ns,
                sequential=profile.settled.get(region) == "effect",
                latency=latency,
                unsteady=unsteady,
            )
        )
    return found


def _with_noise_of_all(evidence: Sequence[_Evidence]) -> list[_Evidence]:
    # Two or three pairs do not know how much they vary, and intervals that admit that (Student's t with one or two
    # degrees of freedom) say nothing. How much pairs vary is a property of the program more than of the region: what
    # the other regions and the dilation windows know of it is lent.
    own = [None if item.effects is None else item.effects.noise for item in evidence]
    dilated = [effect.noise for item in evidence if (effect := pooled_effect([item.dilation_pairs])) is not None]
    found = []
    for number, item in enumerate(evidence):
        noise = own[number]
        if noise is not None and noise.df < BORROWED_DF:
            others = [part for other, part in enumerate(own) if other != number and part is not None]
            item = replace(item, effects=level_effects(item.pairs, Noise.pooled([*others, *dilated])))
        found.append(item)
    return found


def _judge_all(
    profile: Profile, windows: Sequence[Window], evidence: Sequence[_Evidence], overall: dict[str, Gain]
) -> list[RegionResult]:
    checks = _checks(evidence, overall)
    systematic = [_systematic(item, check) for item, check in zip(evidence, checks, strict=True)]
    fits = [
        None if item.effects is None or _never_ran(item) else fit_curve(item.effects, error, item.sequential)
        for item, error in zip(evidence, systematic, strict=True)
    ]
    # One family: the user reads them all in one table, at whatever progress point.
    p_values = benjamini_hochberg([None if fit is None else fit.p_value for fit in fits])
    results = []
    # With a speedup given in all experiments the undisturbed program is another one.
    plain = [window for window in windows if window.arm == "plain" and not profile.given]
    for item, fit, p_value, check, error in zip(evidence, fits, p_values, checks, systematic, strict=True):
        results.append(_result(profile, plain, item, fit, p_value, check is not None and check.is_pace, error))
    return results


@dataclass(frozen=True, slots=True)
class _Check:
    # A false gain that is held against regions: per full virtual speedup, how far the treated windows it is compared
    # with were stretched per full speedup, and whether it is the pace of something outside.
    false_gain: float
    stretch: float
    is_pace: bool


def _checks(evidence: Sequence[_Evidence], overall: dict[str, Gain]) -> list[_Check | None]:
    # The false gain that is held against each region: its own where that is significant among so many regions; else
    # that of the whole program, unless the region's own dilation windows exclude it (code of a paced program that
    # does not wait for the pace).
    adjusted = benjamini_hochberg([item.dilation_p for item in evidence])
    whole = {point: _check([e for e in evidence if e.point == point], gain) for point, gain in overall.items()}
    checks: list[_Check | None] = []
    for item, p_value in zip(evidence, adjusted, strict=True):
        everywhere = overall.get(item.point)
        if item.dilation is not None and p_value is not None and p_value < _PACE_P_VALUE:
            checks.append(_check([item], item.dilation))
        elif everywhere is None:
            checks.append(None)
        elif item.dilation is None or _contains(item.dilation, everywhere.gain):
            checks.append(whole[item.point])
        else:
            checks.append(None)
    return checks


def _check(evidence: Sequence[_Evidence], dilation: Gain) -> _Check:
    treated = pooled_gain([item.pairs for item in evidence])
    dilation_level = _mean_level([item.dilation_pairs for item in evidence])
    treated_level = _mean_level([item.pairs for item in evidence])
    paced = is_paced(dilation, dilation_level, treated and treated[0], treated_level)
    windows = [window for item in evidence for window in item.windows]
    return _Check(dilation.gain / dilation_level if dilation_level > 0 else 0.0, _stretch(windows), paced)


def _mean_level(parts: Sequence[PairData]) -> float:
    levels = np.concatenate([part.level for part in parts])
    return float(np.mean(levels)) if len(levels) > 0 else 0.0


def _stretch(windows: Sequence[Window]) -> float:
    # Virtual time granted per effective time in treated windows, per full virtual speedup.
    treated = [window for window in windows if window.arm == "treated"]
    scale = sum(window.effective_ns * window.level for window in treated)
    return sum(window.delay_ns for window in treated) / scale if scale > 0 else 0.0


def _contains(gain: Gain, value: float) -> bool:
    return gain.ci[0] <= value <= gain.ci[1]


def _systematic(item: _Evidence, check: _Check | None) -> float:
    # The error that more windows do not reduce, as a gain at a virtual speedup of 100 %, in four parts: what the
    # method is off by on programs with known answers; a false gain that is too small to disqualify the region;
    # pauses that were not made; and work per visit that differs between the arms.
    false_gain = 0.0
    if check is not None and len(item.pairs) > 0:
        # Borrowed from the whole program it weighs as much as the region's own windows were stretched.
        false_gain = abs(check.false_gain) * (_stretch(item.windows) / check.stretch if check.stretch > 0 else 1.0)
    # Pauses that were owed and never made: the threads that should have paused ran on, so virtual time contains
    # more work than it should, at most by the missing time.
    treated = [window for window in item.windows if window.arm == "treated"]
    owed = sum(float(window.audit.get("owed_ns") or 0) for window in treated)
    forgiven = sum(float(window.audit.get("forgiven_ns") or 0) for window in treated)
    unpaid = 0.0
    if owed > 0 and forgiven > 0:
        stretch = sum(window.delay_ns for window in treated) / sum(window.effective_ns for window in treated)
        unpaid = min(1.0, forgiven / owed) * stretch / float(np.mean([window.level for window in treated]))
    return math.hypot(false_gain, unpaid, _unlike(item), _METHOD_ERROR)


def _unlike(item: _Evidence) -> float:
    # Work per visit that is not the same in both arms: what of the gain would not last, and what the region itself
    # gained from the pauses of others, which acts like a speedup of its own.
    level = _mean_level([item.pairs])
    if item.treated is None or level <= 0:
        return 0.0
    unlike = compare_per_visit(item.windows, item.point)
    gain = item.treated.gain
    own = (1.0 - unlike.own) * (1.0 - level) * gain / level
    return math.hypot(unlike.sustained(gain) - gain, own) / level


def _result(
    profile: Profile,
    plain: Sequence[Window],
    item: _Evidence,
    fit: CurveFit | None,
    p_value: float | None,
    paced: bool,
    systematic: float,
) -> RegionResult:
    phases = NO_PHASES if paced else phase_factor(profile, item.region, item.windows, item.run_ns)
    measured, fit = fit, None if fit is None else phases.fit(fit)
    verdict, explanation = judge(fit, p_value, paced, _why_no_fit(item))
    if item.unsteady is not None and not paced:
        verdict, explanation = Verdict.UNDECIDED, f"undecided: {item.unsteady}"
    if phases.applies and measured is not None and verdict in (Verdict.OPTIMISE, Verdict.CONTENTION):
        explanation += f" ({phases_words(measured, phases.factor)})"
    withheld = paced or item.unsteady is not None
    points = _points(item, systematic, withheld or _never_ran(item), phases)
    region = _region(profile, item.region)
    result = RegionResult(
        region=item.region,
        unit=region.unit,
        source=region.source,
        function=region.function,
        progress_point=item.point,
        baseline_rate=_baseline_rate(plain, item),
        cpu_share=cpu_share(profile, item.region),
        serial_share=_serial_share(profile, item.region),
        off_cpu_share=off_cpu_share(profile, item.region),
        points=points,
        verdict=verdict,
        explanation=explanation,
        dilation=item.dilation,
        pairs=len(item.pairs),
        phase_factor=phases.factor,
        kind="latency" if item.latency else "throughput",
        unit_of_point="s" if item.latency else "visits/s",
    )
    if withheld or fit is None or (verdict is Verdict.UNDECIDED and not fit.is_evidence):
        return result
    result = replace(result, p_value=p_value, fit=fit)
    if sum(point.raw is not None for point in points) < _MIN_LEVELS_FOR_SLOPE:
        return result
    return replace(result, slope=fit.slope, slope_ci=fit.ci, knee=fit.knee)


def _points(item: _Evidence, systematic: float, withheld: bool, phases: PhaseFactor) -> tuple[PointResult, ...]:
    placebos = [window for window in item.windows if window.arm == "placebo"]
    base_visits = sum(seen.delta for window in placebos if (seen := visits_of(window, item.point)))
    points = []
    if placebos:
        points.append(_point(0.0, Gain(0.0, (0.0, 0.0)), withheld, len(placebos), base_visits, phases))
    estimated = {} if item.effects is None else {float(s): i for i, s in enumerate(item.effects.level)}
    for level in np.unique(item.pairs.level):
        at_level = item.pairs.select(item.pairs.level == level)
        visits = int(at_level.counted_treated.sum() + at_level.counted_placebo.sum())
        index = estimated.get(float(level))
        gain = None
        if item.effects is not None and index is not None:
            widening = sequence_factor(float(item.effects.pairs[index])) if item.sequential else 1.0
            gain = _widened(item.effects.gain(index, widening=widening), systematic * float(level))
        points.append(_point(float(level), gain, withheld, len(at_level), visits, phases))
    return tuple(points)


def _point(
    speedup: float, gain: Gain | None, withheld: bool, experiments: int, visits: int, phases: PhaseFactor
) -> PointResult:
    raw = None if gain is None else gain.gain
    if gain is None or withheld:
        return PointResult(speedup, None, None, raw, experiments, visits)
    whole = phases.gain(gain)
    if speedup > 0 and not whole.is_evidence:
        return PointResult(speedup, None, None, raw, experiments, visits)
    return PointResult(speedup, whole.gain, whole.ci, raw, experiments, visits)


def _widened(gain: Gain, systematic: float) -> Gain:
    low, high = gain.ci
    low = gain.gain - math.hypot(gain.gain - low, systematic)
    return Gain(gain.gain, (low, gain.gain + math.hypot(high - gain.gain, systematic)))


def _never_ran(item: _Evidence) -> bool:
    return not _ran(item.windows)


def _ran(windows: Sequence[Window]) -> bool:
    treated = [window for window in windows if window.arm == "treated"]
    return not treated or any(window.selected_samples or window.cpus for window in treated)


def _why_no_fit(item: _Evidence) -> str:
    if _never_ran(item):
        return "it never ran in its experiments, so nothing was sped up"
    pairs = len(item.pairs)
    if pairs < MIN_PAIRS:
        return f"only {pairs} experiment{'' if pairs == 1 else 's'} with this region; run longer or use --only"
    visits = int(item.pairs.counted_treated.sum() + item.pairs.counted_placebo.sum())
    if visits == 0:
        return f"{item.point} was never visited during its experiments"
    return f"only {visits} visits of {item.point} during its experiments; choose a point that is visited more often"


def _region(profile: Profile, name: str) -> Region:
    for region in profile.regions:
        if region.name == name:
            return region
    return Region(name, str(profile.header.options.get("unit") or "unknown"))


def _baseline_rate(plain: Sequence[Window], item: _Evidence) -> float | None:
    # Visits per second of the undisturbed program where that was measured, else of its placebo windows.
    rate = mean_latency_s if item.latency else _rate
    undisturbed = rate(plain, item.point, _MIN_PLAIN_VISITS)
    if undisturbed is not None:
        return undisturbed
    return rate([window for window in item.windows if window.arm == "placebo"], item.point, 1)


def _rate(windows: Sequence[Window], point: str, min_visits: int) -> float | None:
    watched = [(visits.delta, window.effective_ns) for window in windows if (visits := visits_of(window, point))]
    total = sum(delta for delta, _ in watched)
    return total / (sum(time_ns for _, time_ns in watched) * 1e-9) if total >= min_visits else None


def _rates(windows: Sequence[Window], points: Sequence[str]) -> dict[str, float]:
    plain = [window for window in windows if window.arm == "plain"]
    found = ((point, _rate(plain, point, 1)) for point in points)
    return {point: rate for point, rate in found if rate is not None}


def _shares(profile: Profile) -> dict[str, float]:
    known = ((region, cpu_share(profile, region)) for region in profile.samples)
    return dict(sorted(((r, share) for r, share in known if share), key=lambda item: (-item[1], item[0])))


def cpu_share(profile: Profile, region: str) -> float | None:
    """The share of the target's CPU samples that lie in a region; None when nothing was sampled."""
    if profile.end is not None and profile.end.samples > 0:
        if region in profile.samples:
            return min(1.0, profile.samples[region] / profile.end.samples)
        if profile.samples:
            return 0.0
    # The recording was killed before the totals were written: the windows in which the region was selected know.
    own = [window for window in profile.windows if window.region == region and window.samples > 0]
    total = sum(window.samples for window in own)
    return sum(window.selected_samples for window in own) / total if total > 0 else None


def _serial_share(profile: Profile, region: str) -> float | None:
    # The share of the time in which the program did anything at all, as `perf record --latency` has it: a sample
    # counts for the more, the fewer threads could run beside it.
    total = 0.0 if profile.end is None else float(profile.end.diagnosis.get("serial_samples") or 0.0)
    return min(1.0, profile.serial.get(region, 0.0) / total) if total > 0 and profile.serial else None


def _waits(profile: Profile) -> dict[str, float]:
    total: Counter[str] = Counter()
    for classes in profile.waits.values():
        total.update(classes)
    length_ns = _watched_ns(profile)
    return {kind: spent_ns / length_ns for kind, spent_ns in sorted(total.items())} if length_ns > 0 else {}


def _places(profile: Profile) -> dict[str, dict[str, float]]:
    # The most waiting first.
    length_ns = _watched_ns(profile)
    if length_ns <= 0:
        return {}
    found = {region: {kind: ns / length_ns for kind, ns in kinds.items()} for region, kinds in profile.waits.items()}
    return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))


def _watched_ns(profile: Profile) -> float:
    # How long the target was watched, 0 where unknown.
    if profile.end is None:
        return 0.0
    startup_s = profile.end.diagnosis.get("startup_s", 0.0)
    return profile.end.run_ns - (startup_s * 1e9 if isinstance(startup_s, int | float) else 0.0)


def off_cpu_share(profile: Profile, region: str) -> float | None:
    """How many threads waited in a region on average, over the whole run; None when waits were not recorded."""
    length_ns = _watched_ns(profile)
    if not profile.waits or length_ns <= 0:
        return None
    return sum(profile.waits.get(region, {}).values()) / length_ns


def _rank(result: RegionResult) -> tuple[int, float, str]:
    # What is certain comes first: by the lower bound of the gain at 25 %, then regions without a number.
    if result.verdict is Verdict.PACED:
        return 1, -(result.cpu_share or 0.0), result.region
    if result.fit is None:
        return 2, -(result.cpu_share or 0.0), result.region
    return 0, -result.fit.at(_RANKED_AT).ci[0], result.region
