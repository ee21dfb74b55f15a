"""What a speed-up is really worth: the workload run with less work, against the workload as it is.

The machine drifts, so a truth is a median over repetitions in each of which the baseline and all reduced runs
happen close together, in random order.
"""

import random
import re
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .cases import Case

RESULT = re.compile(r"^rounds (\d+) seconds ([\d.]+) rate ([\d.]+)$", re.MULTILINE)
LATENCY = re.compile(r"^latency ([\d.]+)$", re.MULTILINE)
START_UP_S = 30
CANNOT_RUN_HERE = 77


class Skipped(Exception):
    """The program cannot run on this machine; the reason."""


@dataclass(frozen=True)
class Truth:
    """`gain`: reduction of the time per round or latency, a fraction. `spread`: half the range of the repetitions."""

    gain: float
    spread: float


def parse_rate(output: str) -> float:
    """Rounds per second from a workload's closing line; ValueError when there is none."""
    found = RESULT.search(output)
    if found is None or float(found[3]) <= 0:
        raise ValueError(f"no rate in the output: {output[-200:]!r}")
    return float(found[3])


def parse_latency(output: str) -> float:
    """Mean latency in seconds from a workload's last line; ValueError when there is none."""
    found = LATENCY.search(output)
    if found is None:
        raise ValueError(f"no latency in the output: {output[-200:]!r}")
    return max(float(found[1]), 1e-9)


def measure_rate(case: Case, speedup: float, seconds: float) -> float:
    """One unprofiled run; rounds per second, or one over the mean latency: what is larger when it is better.

    Raises Skipped.
    """
    command = [*case.truth_command(speedup), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + START_UP_S)
    if done.returncode == CANNOT_RUN_HERE:
        raise Skipped(done.stderr.strip())
    return 1 / parse_latency(done.stdout) if case.latency else parse_rate(done.stdout)


def measure_repetition(case: Case, seconds: float, rng: random.Random) -> dict[float, float]:
    """Rates of the baseline (key 0) and of every level, measured in random order."""
    order = [0.0, *case.levels]
    rng.shuffle(order)
    return {speedup: measure_rate(case, speedup, seconds) for speedup in order}


def program_speedup(baseline_rate: float, rate: float) -> float:
    """Reduction of the time per round: 1 - T_fast / T_base, as COZ defines it (SOSP 2015, section 2)."""
    return 1 - baseline_rate / rate


def combine(repetitions: Iterable[Mapping[float, float]]) -> dict[float, Truth]:
    """Median and spread, over repetitions, of the gain within each."""
    gains: dict[float, list[float]] = {}
    for rates in repetitions:
        for level in rates.keys() - {0.0}:
            gains.setdefault(level, []).append(program_speedup(rates[0.0], rates[level]))
    return {level: Truth(statistics.median(g), (max(g) - min(g)) / 2) for level, g in gains.items()}
