"""Does a visit take the same work in both arms? If not, the treated windows show something else than a speedup.

Pausing changes when the program works, not how much it works per visit. Two things break that. Stores of work (long
queues) that fill or drain: a virtual speedup of the consumer then lives off what was produced before, and the gain
ends with the store; both halves of a window agree all the while. And hardware that paused threads leave to the others
(caches, turbo, the sibling of a core): the region itself then needs less time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from causal.analysis.pairs import visits_of
from causal.profile import Window

# Deviations from 1 that matter: larger than this (sampling alone makes 1-2 %), and surely so.
_NOTABLE = 0.04
# A ratio far from 1 says no more than a ratio well away from it; but near a virtual speedup of 100 %, where hardly any
# time counts, it would hide by its mere size what all the other pairs agree on.
_MOST_LOG = 1.5
_MIN_PAIRS = 4
_MIN_VISITS = 10
# A thread that spins while it waits does other work or none depending on who pauses.
_MAX_SPINNING = 0.01


@dataclass(frozen=True, slots=True)
class PerVisit:
    """CPU time per visit in treated windows, as a multiple of that in placebo windows.

    `others`: outside the region, in threads that hand work to others of the target or get it from them; `own`: in the
    region. 1.0 unless they differ for sure.
    """

    others: float = 1.0
    own: float = 1.0

    def sustained(self, gain: float) -> float:
        """What is left of a gain (a fraction) once nothing is in store.

        If each visit needs the other work of the placebo windows, 1/others as much must be done for the visits seen.
        """
        return 1.0 - (1.0 - gain) / self.others


def compare_per_visit(windows: Sequence[Window], point: str) -> PerVisit:
    """Compares the pairs of one region at one progress point."""
    placebos = {window.pair: window for window in windows if window.arm == "placebo"}
    pairs = [(w, placebos[w.pair]) for w in windows if w.arm == "treated" and w.pair in placebos]
    if any(_spinning(window) > _MAX_SPINNING for pair in pairs for window in pair):
        return PerVisit()
    return PerVisit(_ratio(pairs, point, _others_ns), _ratio(pairs, point, lambda w: w.cpus * w.wall_ns))


def _others_ns(window: Window) -> float:
    # What unrelated threads do beside is not done per visit. Older profiles do not tell it apart.
    return float(window.audit.get("linked_ns", window.audit.get("others_ns")) or 0.0)


def _spinning(window: Window) -> float:
    return float(window.audit.get("spins") or 0.0) / max(window.samples, 1)


def _ratio(pairs: Sequence[tuple[Window, Window]], point: str, time_of: Callable[[Window], float]) -> float:
    logs, weights = [], []
    for treated, placebo in pairs:
        seen = visits_of(treated, point), visits_of(placebo, point)
        times = time_of(treated), time_of(placebo)
        if seen[0] is None or seen[1] is None or min(seen[0].delta, seen[1].delta) < _MIN_VISITS or min(times) <= 0:
            continue
        log = math.log(times[0] / seen[0].delta) - math.log(times[1] / seen[1].delta)
        logs.append(max(-_MOST_LOG, min(log, _MOST_LOG)))
        weights.append(min(seen[0].delta, seen[1].delta))
    if len(logs) < _MIN_PAIRS:
        return 1.0
    values, shares = np.array(logs), np.array(weights, dtype=np.float64) / sum(weights)
    mean = float(shares @ values)
    error = math.sqrt(float(shares**2 @ (values - mean) ** 2) * len(logs) / (len(logs) - 1))
    # About the quantile of Student's t for one in a thousand, without loading a library for it.
    deviations = 3.0 + 12.0 / (len(logs) - 1)
    return math.exp(mean) if abs(mean) > max(_NOTABLE, deviations * error) else 1.0
