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

# What profiling may take of a core by default, beside the pauses it inserts.
OVERHEAD_BUDGET = 0.10
# The other half of the budget is for signals, unless rounds are short.
_TICKS_OF_BUDGET = 0.5
# Periods in a round of the program that are worth paying for, and beyond which more are wasted. What threads hand over
# within a period is smeared; in the simulator contended locks need eight periods in a round for errors of a point.
_WANTED, _ENOUGH = 16, 64
_SHORTEST_NS, _USUAL_NS, _LONGEST_NS = 100_000, 200_000, 2_000_000
_LONGEST_BY_CHOICE_NS = 1_000_000


def choose_period(sample_cost_ns: int, budget: float = OVERHEAD_BUDGET, round_ns: float | None = None) -> int:
    """The sampling period in ns for this cost of a tick and this share of a core that profiling may take.

    Ticks get half of the budget. Where rounds (times between two visits of the progress point) are short they get all
    of it as far as that helps; where rounds are long, less is enough.
    """
    usual = max(sample_cost_ns / (budget * _TICKS_OF_BUDGET), _USUAL_NS)
    if round_ns is not None:
        finest = max(sample_cost_ns / budget, _SHORTEST_NS)
        usual = min(usual, max(round_ns / _WANTED, finest))
        usual = max(usual, min(round_ns / _ENOUGH, _LONGEST_BY_CHOICE_NS))
    return round(min(usual, _LONGEST_NS))


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
