"""What measuring costs on this machine, measured before the target starts.

A tick costs 1-2 us on bare metal and tens of microseconds in a virtual machine, so it cannot be a constant.
"""

from __future__ import annotations

import os
import time
import zlib

from causal.engine import Engine

_ROUNDS = 16
_BLOCK = 1_000_000
# A round must be long enough for several ticks, and all rounds together short enough to go unnoticed.
_ROUND_S = 0.006
# Short, so that the cost stands out from the noise.
_PERIOD_NS = 200_000
_ATTEMPTS = 3
# Half the period: no machine is that slow, so something else ran meanwhile.
_IMPLAUSIBLE_NS = _PERIOD_NS // 2

# What ticks may take of a core. Predictions get better with shorter periods (what is synchronised within a period is
# smeared), so the shortest affordable one is used.
SAMPLING_BUDGET = 0.05
_SHORTEST_NS, _LONGEST_NS = 200_000, 2_000_000


def choose_period(sample_cost_ns: int) -> int:
    """The sampling period in ns whose ticks take `SAMPLING_BUDGET` of a core, within limits."""
    return min(max(round(sample_cost_ns / SAMPLING_BUDGET), _SHORTEST_NS), _LONGEST_NS)


def measure_sample_cost(engine: Engine) -> int:
    """Cost of one tick in ns, from a fixed piece of work in this thread, done in turn with and without ticks.

    Takes 0.2 to 0.4 s; on a busy machine that gives no plausible answer it is tried again, three times in all.
    """
    period_ns = engine.options.period_ns
    engine.set_period(_PERIOD_NS)
    engine.add_process(os.getpid(), follow=False)
    cost_ns = 0
    for _ in range(_ATTEMPTS):
        cost_ns = _measure_once(engine)
        if 0 < cost_ns < _IMPLAUSIBLE_NS:
            break
    engine.remove_process(os.getpid())
    engine.reset()
    engine.set_period(period_ns)
    return max(0, min(cost_ns, _IMPLAUSIBLE_NS))


def _measure_once(engine: Engine) -> int:
    block = bytes(_BLOCK)
    repetitions = max(1, round(_ROUND_S / _seconds(block, 4) * 4))
    quiet, ticked, ticks = [], [], 0
    for _ in range(_ROUNDS):
        quiet.append(_seconds(block, repetitions))
        before = engine.counters()["samples"]
        engine.tick(True)
        ticked.append(_seconds(block, repetitions))
        engine.tick(False)
        ticks += engine.counters()["samples"] - before
    # The fastest round of each kind is the one that other programs disturbed least.
    return round((min(ticked) - min(quiet)) / (ticks / _ROUNDS) * 1e9) if ticks else 0


def _seconds(block: bytes, repetitions: int) -> float:
    began = time.perf_counter()
    for _ in range(repetitions):
        zlib.crc32(block)
    return time.perf_counter() - began
