"""How fast the target is when it is left alone. After the experiments everything that costs it time is detached for a
moment, and only visits are counted: what profiling costs is then measured on the target itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

_SHARE = 0.05
_SHORTEST_S = 0.5
_LONGEST_S = 2.0
_SLICES = 10
# What was detached may still be running somewhere, and pauses end within a slice of 5 ms.
_SETTLE_S = 0.05


def time_left_alone(duration_s: float | None) -> float:
    """How many seconds the target is left alone after experiments of `duration_s`: 0 where that says too little."""
    wanted = 0.0 if duration_s is None else min(duration_s * _SHARE, _LONGEST_S)
    return wanted if wanted >= _SHORTEST_S else 0.0


@dataclass(frozen=True)
class Undisturbed:
    """Visits of each point in consecutive slices of time, whose lengths are in ns."""

    slices_ns: tuple[int, ...]
    visits: Mapping[str, tuple[int, ...]]

    def record(self) -> dict[str, object]:
        """As the profile keeps it."""
        return {"slices_ns": list(self.slices_ns), "visits": {name: list(each) for name, each in self.visits.items()}}


def watch(
    totals: Callable[[], Mapping[str, int]],
    seconds: float,
    go_on: Callable[[], bool],
    now_ns: Callable[[], int],
    sleep: Callable[[float], None],
) -> Undisturbed | None:
    """Count visits for so long, None when it ended early.

    `totals` are visits so far; `go_on` is asked after each slice.
    """
    sleep(_SETTLE_S)
    at, seen = [now_ns()], [totals()]
    for _ in range(_SLICES):
        sleep(seconds / _SLICES)
        if not go_on():
            return None
        at.append(now_ns())
        seen.append(totals())
    names = [name for name in seen[0] if all(name in each for each in seen)]
    visits = {name: tuple(later[name] - earlier[name] for earlier, later in pairwise(seen)) for name in names}
    return Undisturbed(tuple(later - earlier for earlier, later in pairwise(at)), visits)
