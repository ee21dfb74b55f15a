"""Windows that other programs disturbed: found by the CPU time these took, never by the result."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from causal.profile import Window

REASON = "other programs took CPU time"
# CPUs more than usual that others may take in a window: less than that is mostly taken from idle cores.
_TOLERATED_CPUS = 0.15
_DEVIATIONS = 4.0
# When more windows than this differ, there is no usual state to compare with.
_MOST_VOID = 0.34
# Of all CPUs, taken in most windows: below that pauses seldom give a core to somebody else.
_BUSY_SHARE = 0.15


def mark_disturbed(windows: Sequence[Window]) -> tuple[Window, ...]:
    """The windows in order, void where programs outside or other guests of the host ran far more than usual.

    What takes the same CPU time in all windows (a load generator on the same machine) disturbs none.
    """
    cpus_taken = [_cpus_taken(window) for window in windows]
    taken = [cpus for window, cpus in zip(windows, cpus_taken, strict=True) if window.void is None]
    if not any(taken):
        return tuple(windows)
    usual = statistics.median(taken)
    spread = 1.4826 * statistics.median(abs(cpus - usual) for cpus in taken)
    limit = usual + max(_TOLERATED_CPUS, _DEVIATIONS * spread)
    if sum(cpus > limit for cpus in taken) > _MOST_VOID * len(taken):
        return tuple(windows)
    return tuple(
        replace(window, void=REASON) if window.void is None and cpus > limit else window
        for window, cpus in zip(windows, cpus_taken, strict=True)
    )


def busy_messages(windows: Sequence[Window], cpus: int) -> Iterator[str]:
    """Where others take much of the machine's `cpus` all the time: what that means for the numbers."""
    taken = statistics.median(map(_cpus_taken, windows)) if windows else 0.0
    if cpus > 0 and taken > _BUSY_SHARE * cpus:
        yield (
            f"other programs take {taken:.1f} of {cpus} CPUs: gains are those beside them, and less exact than on a "
            "quiet machine, since a thread that pauses gives them its CPU"
        )


def _cpus_taken(window: Window) -> float:
    taken_ns = sum(float(window.audit.get(name) or 0.0) for name in ("outside_ns", "steal_ns"))
    return taken_ns / max(window.wall_ns, 1)
