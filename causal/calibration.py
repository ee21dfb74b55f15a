"""What measuring costs on this machine, measured before the target starts.

A tick costs 1-2 us on bare metal and tens of microseconds in a virtual machine, so it cannot be a constant.
"""

from __future__ import annotations

import os
import statistics
import time
import zlib

from causal.engine import Engine

_ROUNDS = 16
_BLOCK = 1_000_000
# A round must be long enough for several ticks, and all rounds together short enough to go unnoticed.
_ROUND_S = 0.006
# Short, so that the cost stands out from the noise.
_PERIOD_NS = 200_000

# What ticks may take of a core. Predictions get better with shorter periods (what is synchronised within a period is
# smeared), so the shortest affordable one is used.
SAMPLING_BUDGET = 0.05
_SHORTEST_NS, _LONGEST_NS = 200_000, 2_000_000


def choose_period(sample_cost_ns: int) -> int:
    """The sampling period in ns whose ticks take `SAMPLING_BUDGET` of a core, within limits."""
    return min(max(round(sample_cost_ns / SAMPLING_BUDGET), _SHORTEST_NS), _LONGEST_NS)


def measure_sample_cost(engine: Engine) -> int:
    """Cost of one tick in ns, from a fixed piece of work in this thread, done in turn with and without ticks.

    Takes about 0.2 s. The median of the rounds keeps out what other programs do meanwhile.
    """
    pid, block = os.getpid(), bytes(_BLOCK)
    period_ns = engine.options.period_ns
    engine.set_period(_PERIOD_NS)
    repetitions = max(1, round(_ROUND_S / _seconds(block, 4) * 4))
    engine.add_process(pid, follow=False)
    quiet, ticked, ticks = [], [], 0
    for _ in range(_ROUNDS):
        quiet.append(_seconds(block, repetitions))
        before = engine.counters()["samples"]
        engine.tick(True)
        ticked.append(_seconds(block, repetitions))
        engine.tick(False)
        ticks += engine.counters()["samples"] - before
    engine.remove_process(pid)
    engine.reset()
    engine.set_period(period_ns)
    if not ticks:
        return 0
    cost_s = (statistics.median(ticked) - statistics.median(quiet)) / (ticks / _ROUNDS)
    return max(0, min(round(cost_s * 1e9), _PERIOD_NS // 2))


def _seconds(block: bytes, repetitions: int) -> float:
    began = time.perf_counter()
    for _ in range(repetitions):
        zlib.crc32(block)
    return time.perf_counter() - began
