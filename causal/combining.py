"""Several profiles of one program as one: more evidence for the same regions, or the regions of several runs together.

Pairs stay pairs, so runs on a fast and on a slow day combine without harm: only windows side by side are compared.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from causal.errors import UsageError
from causal.profile import End, Profile, Region, Window

# Between the runs on the common time axis.
_GAP_NS = 1_000_000_000


def combine(profiles: Sequence[Profile]) -> Profile:
    """One profile of all windows, samples and totals; a single profile is returned as it is.

    Raises UsageError when they are of different programs, whose regions have nothing in common.
    """
    if len(profiles) == 1:
        return profiles[0]
    first = profiles[0]
    for other in profiles[1:]:
        if _program(first) and _program(other) and _program(first) != _program(other):
            raise UsageError(
                f"{first.path} is a profile of {_program(first)}, {other.path} of {_program(other)}",
                "give profiles of one program; two versions of it are for `causal-bpf compare BEFORE AFTER`",
            )
        if first.given != other.given:
            raise UsageError(
                f"{first.path} and {other.path} were recorded with different --given",
                "their experiments start from different programs: report each alone",
            )
    points = {point.name: point for profile in profiles for point in profile.header.progress_points}
    regions: dict[str, Region] = {}
    samples: Counter[str] = Counter()
    serial: dict[str, float] = {}
    waits: dict[str, Counter[str]] = {}
    for profile in profiles:
        for region in profile.regions:
            regions.setdefault(region.name, region)
        samples.update(profile.samples)
        for name, amount in profile.serial.items():
            serial[name] = serial.get(name, 0.0) + amount
        for region_name, classes in profile.waits.items():
            waits.setdefault(region_name, Counter()).update(classes)
    return Profile(
        header=replace(first.header, progress_points=tuple(points.values())),
        regions=tuple(regions.values()),
        windows=tuple(_windows(profiles)),
        samples=dict(samples),
        waits=waits,
        startup_ns=first.startup_ns,
        runtime_ns=sum(profile.runtime_ns or 0 for profile in profiles),
        end=_end([profile.end for profile in profiles]),
        truncated=any(profile.truncated for profile in profiles),
        path=first.path,
        # One profile without them (an older one) makes the shares unknown.
        serial=serial if all(profile.serial or not profile.samples for profile in profiles) else {},
        settled={region: rule for profile in profiles for region, rule in profile.settled.items()},
    )


def _program(profile: Profile) -> str:
    return os.path.basename(profile.header.command[0]) if profile.header.command else ""


def _windows(profiles: Sequence[Profile]) -> Iterable[Window]:
    # One run after the other, on one time axis, with pair numbers of their own.
    pairs, now_ns = 0, 1
    for profile in profiles:
        timed = [window.start_ns for window in profile.windows if window.start_ns > 0]
        shift_ns = now_ns - min(timed, default=0)
        last_pair = 0
        for window in profile.windows:
            last_pair = max(last_pair, window.pair)
            start_ns = window.start_ns + shift_ns if window.start_ns > 0 else 0
            now_ns = max(now_ns, start_ns + window.wall_ns + _GAP_NS) if start_ns else now_ns
            yield replace(window, pair=window.pair + pairs, start_ns=start_ns)
        pairs += last_pair + 1


def _end(ends: Sequence[End | None]) -> End | None:
    # One missing end makes the totals too small to be stated.
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return None
    names = dict.fromkeys(name for end in known for name in end.diagnosis)
    values = {name: [end.diagnosis[name] for end in known if name in end.diagnosis] for name in names}
    values["unpaused"] = [end.diagnosis.get("unpaused", 0) for end in known]
    return End(
        reason=known[-1].reason,
        exit_status=known[-1].exit_status,
        samples=sum(end.samples for end in known),
        samples_in_scope=sum(end.samples_in_scope for end in known),
        period_ns=known[0].period_ns,
        run_ns=sum(end.run_ns for end in known),
        diagnosis={name: each for name, parts in values.items() if (each := _together(name, parts)) is not None},
        messages=tuple(dict.fromkeys(message for end in known for message in end.messages)),
    )


def _together(name: str, parts: Sequence[Any]) -> Any:
    """What an entry of the diagnosis is for all runs; None when it makes no sense for them."""
    if all(isinstance(part, int | float) for part in parts):
        if name.endswith("_p99_ns"):
            return max(parts)
        return min(parts) if name == "unpaused" else sum(parts)
    if name == "probe_costs":
        return _largest(parts, "point", "ns")
    if name == "unwinding":
        lists = [part.get("without") for part in parts if isinstance(part, dict)]
        return {"without": _largest(lists, "path", "frames")}
    return None


def _largest(lists: Sequence[Any], key: str, measure: str) -> list[dict[str, Any]]:
    """Of records with the same key the one that measures most; what is no such record is left out."""
    best: dict[str, dict[str, Any]] = {}
    for record in (record for each in lists if isinstance(each, list) for record in each):
        if not isinstance(record, dict) or not isinstance(record.get(measure), int | float):
            continue
        name = str(record.get(key))
        if name not in best or record[measure] > best[name][measure]:
            best[name] = record
    return list(best.values())
