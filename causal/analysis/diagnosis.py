"""The diagnosis that ends every report: what was done, what was lost, and why when nothing can be concluded."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from causal.analysis.disturbance import busy_messages
from causal.analysis.pairs import visits_of
from causal.analysis.perturbation import measure_perturbation, perturbation_messages
from causal.analysis.probes import probe_messages
from causal.analysis.results import Diagnosis, Overhead, RegionResult, Verdict
from causal.analysis.stacks import cut_short, missing_information, read_stacks
from causal.analysis.verdict import longer
from causal.profile import Arm, Profile, Window
from causal.waiting import UNITS as WAIT_UNITS

_FEW_VISITS = 5
# Losses below this share are not worth a line.
_NOTABLE_SHARE = 0.01
_NOTABLE_UNEVEN_SHARE = 0.1
# Halves of a window that differ by more than this many standard deviations were not in a steady state.
_UNEVEN_DEVIATIONS = 4.0
_LOW_SHARE_IN_SCOPE = 0.2


def diagnose(
    profile: Profile, windows: Sequence[Window], points: Sequence[str], results: Sequence[RegionResult]
) -> Diagnosis:
    """Summarises the run; `windows` are the usable ones, `points` the names of the progress points."""
    visits = {point: 0 for point in points}
    for window in windows:
        for seen in window.points:
            visits[seen.name] = visits.get(seen.name, 0) + seen.delta
    end = profile.end
    counters = {} if end is None else end.diagnosis
    tried = {window.region for window in profile.windows if window.arm != "plain"}
    signals_lost = _count(counters.get("signals_lost"))
    if signals_lost is None and any("signals_lost" in window.audit for window in profile.windows):
        signals_lost = sum(_count(window.audit.get("signals_lost")) or 0 for window in profile.windows)
    return Diagnosis(
        experiments=sum(window.arm == "treated" for window in windows),
        regions_tried=len(tried),
        samples=None if end is None else end.samples,
        samples_in_scope=None if end is None else end.samples_in_scope,
        coverage=_coverage(profile, tried),
        visits=visits,
        stacks_truncated=_count(counters.get("stacks_truncated")),
        signals_lost=signals_lost,
        pause_error_p99_ns=_count(counters.get("pause_error_p99_ns")),
        conclusion=_conclusion(profile, windows, visits, results),
        messages=tuple(_messages(profile, windows, visits)),
        stacks=read_stacks(counters),
    )


def measure_overhead(profile: Profile, windows: Sequence[Window], points: Sequence[str]) -> Overhead:
    """What profiling cost: placebo against plain windows for samples and signals, inserted pauses for delays."""
    wall = sum(window.wall_ns for window in windows)
    # A placebo's delay_ns is the cost of its signals, not a pause.
    delay = sum(window.delay_ns for window in windows if window.arm in ("treated", "dilation"))
    startup = None if profile.end is None else profile.end.diagnosis.get("startup_s")
    alone = measure_perturbation(profile, windows)
    # Against a baseline with a given speedup, pauses would count as overhead.
    sampling = None if profile.given else _sampling_overhead(windows, points)
    return Overhead(
        startup_s=float(startup) if isinstance(startup, int | float) else None,
        sampling=sampling if alone is None else alone.share,
        delays=delay / wall if wall > 0 else None,
        undisturbed=None if alone is None else alone.undisturbed,
    )


def _sampling_overhead(windows: Sequence[Window], points: Sequence[str]) -> float | None:
    # By the point with the most visits. In wall time: the cost is what the program really lost.
    best: tuple[int, float] | None = None
    for point in points:
        visits, time_ns = {"plain": 0, "placebo": 0}, {"plain": 0, "placebo": 0}
        for window in windows:
            seen = visits_of(window, point)
            if window.arm in ("plain", "placebo") and window.wall_ns > 0 and seen is not None:
                visits[window.arm] += seen.delta
                time_ns[window.arm] += window.wall_ns
        if min(visits.values()) < _FEW_VISITS:
            continue
        ratio = (visits["placebo"] / time_ns["placebo"]) / (visits["plain"] / time_ns["plain"])
        if best is None or visits["plain"] > best[0]:
            best = visits["plain"], 1.0 - ratio
    return None if best is None else best[1]


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _coverage(profile: Profile, tried: set[str]) -> float | None:
    in_scope = 0 if profile.end is None else profile.end.samples_in_scope
    in_scope = in_scope or sum(profile.samples.values())
    if in_scope == 0 or not profile.samples:
        return None
    return min(1.0, sum(count for region, count in profile.samples.items() if region in tried) / in_scope)


def _conclusion(
    profile: Profile, windows: Sequence[Window], visits: dict[str, int], results: Sequence[RegionResult]
) -> str | None:
    # The most likely cause first, each with what to do about it. None when some region has a real answer.
    if any(result.verdict in (Verdict.OPTIMISE, Verdict.CONTENTION) for result in results):
        return None
    end = profile.end
    if end is not None and end.samples == 0:
        return (
            "the program used no CPU time while it was watched: give it work to do, or check that the process doing"
            " the work is the one that was started"
        )
    if end is not None and end.samples_in_scope == 0 and profile.header.options.get("unit") not in WAIT_UNITS:
        return (
            f"none of the {end.samples:,} samples lies in scope: choose the binaries that count with -b"
            " (default: the main executable)"
        )
    if end is not None and end.diagnosis.get("unpaused"):
        return None  # shares and rates are all there was to be had; the notes say why
    if not any(window.arm == "treated" for window in profile.windows):
        if end is not None and end.reason == "duration":
            return "no experiment was made: the regions to try did not run, or the time was too short for one"
        return "the program ended before the first experiment did: give it more work, or use --repeat N"
    if not any(window.arm == "treated" for window in windows):
        return "all experiments are void: see the reasons below"
    if not visits:
        return "there is no progress point: name one with -p, or use --repeat N to measure end to end"
    if not any(visits.values()):
        names = ", ".join(visits)
        return (
            f"{names} was never visited during an experiment: name a function with -p that the program enters"
            " each time it has finished a piece of work"
        )
    return _inconclusive(profile, windows, visits, results)


def _inconclusive(
    profile: Profile, windows: Sequence[Window], visits: dict[str, int], results: Sequence[RegionResult]
) -> str | None:
    verdicts = Counter(result.verdict for result in results)
    if verdicts[Verdict.PACED] == len(results):
        return (
            "something outside sets the pace of the program: drive it as fast as it can go (a closed-loop client, no"
            " rate limit), or choose a progress point that does not wait for it"
        )
    if verdicts[Verdict.UNDECIDED] == 0:
        return (
            "none of the regions tried matters for the progress seen: try the others (longer run, other binaries"
            " with -b), or look for time spent waiting"
        )
    if all(result.fit is None for result in results):
        if max(_visits_per_window(windows, point) for point in visits) < _FEW_VISITS and not _end_to_end(profile):
            return (
                "too few visits of the progress points: choose one that is visited more often, or run much longer"
                " (--duration)"
            )
        return "too few experiments per region: run longer (--duration), or try fewer regions (--only)"
    margins = [
        result.fit.at(result.fit.max_level).margin
        for result in results
        if result.verdict is Verdict.UNDECIDED and result.fit is not None
    ]
    return f"the intervals are still too wide: {longer(min(margins))}" if margins else None


def _end_to_end(profile: Profile) -> bool:
    # One visit per execution is all there can be.
    return any(point.kind == "end-to-end" for point in profile.header.progress_points)


def _visits_per_window(windows: Sequence[Window], point: str) -> float:
    counts = [seen.delta for window in windows if (seen := visits_of(window, point)) is not None]
    return statistics.fmean(counts) if counts else 0.0


def _messages(profile: Profile, windows: Sequence[Window], visits: dict[str, int]) -> list[str]:
    messages: list[str] = []
    if profile.given:
        faster = ", ".join(f"{region} {speedup:.0%} faster" for region, speedup in profile.given.items())
        messages.append(f"gains are those of a program with {faster} already, as --given asked for")
    if profile.truncated or profile.end is None:
        messages.append("the recording was cut off (profiler killed or still running): totals of the run are missing")
    messages += _void_messages(profile)
    for point, total in visits.items():
        mean = _visits_per_window(windows, point)
        if windows and total == 0 and any(visits.values()):
            messages.append(f"{point} was never visited during an experiment: check its name")
        elif 0 < mean < _FEW_VISITS and not _end_to_end(profile):
            messages.append(f"{point} is visited {mean:.1f} times a window only: a more frequent point decides faster")
    messages += _uneven_messages(windows, list(visits))
    messages += _loss_messages(profile, windows)
    messages += probe_messages(profile, windows)
    messages += perturbation_messages(profile, windows)
    messages += busy_messages(windows, _count(profile.header.machine.get("cpus")) or 0)
    return messages + ([] if profile.end is None else list(profile.end.messages))


def _void_messages(profile: Profile) -> list[str]:
    reasons = Counter(window.void for window in profile.windows if window.void is not None)
    if not reasons:
        return []
    listed = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common(3))
    return [f"{sum(reasons.values())} of {len(profile.windows)} windows are void and were not used ({listed})"]


def _uneven_messages(windows: Sequence[Window], points: Sequence[str]) -> list[str]:
    # Queues that fill during one window and drain into the next show as a difference between its halves.
    messages = []
    for point in points:
        placebo = _half_differences(windows, point, "placebo")
        known = _half_differences(windows, point, "treated")
        noise = max(1.0, statistics.fmean(z * z for z in placebo)) if placebo else 1.0
        uneven = sum(abs(z) > _UNEVEN_DEVIATIONS * math.sqrt(noise) for z in known)
        if known and uneven / len(known) > _NOTABLE_UNEVEN_SHARE:
            messages.append(
                f"{uneven} of {len(known)} experiments had not settled (visits of {point} differ between their halves):"
                " gains may be understated; use longer windows"
            )
    return messages


def _half_differences(windows: Sequence[Window], point: str, arm: Arm) -> list[float]:
    known = (_half_difference(window, point) for window in windows if window.arm == arm)
    return [difference for difference in known if difference is not None]


def _half_difference(window: Window, point: str) -> float | None:
    # In standard deviations of a Poisson process: given their sum, the visits of the first half are binomial.
    seen, half_ns = visits_of(window, point), window.half_effective_ns
    if seen is None or seen.half_delta is None or half_ns is None or seen.delta < _FEW_VISITS:
        return None
    share = half_ns / window.effective_ns
    if not 0.0 < share < 1.0:
        return None
    return (seen.half_delta - seen.delta * share) / math.sqrt(seen.delta * share * (1.0 - share))


def _loss_messages(profile: Profile, windows: Sequence[Window]) -> list[str]:
    messages: list[str] = []
    if profile.end is None:
        return messages
    counters, samples = profile.end.diagnosis, profile.end.samples
    if 0 < profile.end.samples_in_scope < _LOW_SHARE_IN_SCOPE * samples:
        share = profile.end.samples_in_scope / samples
        messages.append(f"only {share:.0%} of the CPU samples lie in scope: widen it with -b")
    for name, meaning in (
        (
            "stacks_truncated",
            "stacks were cut short: they are deeper than what is looked at, and the frame that counts may lie above",
        ),
        ("unmapped", "samples lie in no known file (just-in-time code?); their time counts for no region"),
    ):
        lost = _count(counters.get(name)) or 0
        if samples > 0 and lost > _NOTABLE_SHARE * samples:
            messages.append(f"{lost / samples:.0%} of the {meaning}")
    attribution = profile.header.options.get("attribution")
    for message in (cut_short(counters, attribution), missing_information(counters, samples)):
        if message:
            messages.append(message)
    threads = _count(counters.get("threads_lost")) or 0
    if threads:
        messages.append(f"{threads} threads did not fit the table and were not paused: gains are unreliable")
    sent = sum(_count(window.audit.get("signals")) or 0 for window in windows)
    lost = _count(counters.get("signals_lost")) or 0
    if sent and lost > _NOTABLE_SHARE * sent:
        messages.append(f"{lost:,} signals were lost ({lost / (sent + lost):.0%}); pauses came later than planned")
    owed = sum(float(window.audit.get("owed_ns") or 0) for window in windows)
    forgiven = sum(float(window.audit.get("forgiven_ns") or 0) for window in windows)
    if owed > 0 and forgiven > _NOTABLE_SHARE * owed:
        messages.append(f"{forgiven / owed:.0%} of the pauses owed could not be made; the intervals allow for it")
    return messages
