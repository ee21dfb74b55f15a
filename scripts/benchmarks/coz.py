"""What COZ (Debian's package coz-profiler) predicts for a case, to stand beside our own prediction.

How: the workload is built as COZ needs it (`make coz`). A worker's whole loop lies on one line of its source, so the
line stands for the function: `--fixed-line` selects it, `-s` leaves only that source file in scope. One execution per
speedup with `--fixed-speedup`, the baseline 0 among them, in random order, share the time evenly: more experiments
per level than COZ's own choice among 21 levels would give. The gain is that of COZ's viewer: visits and durations are
summed per speedup, 1 - period / period at 0. The last experiment of an execution is left out, because the end of the
program cuts it short while its duration counts in full. COZ states no interval; ours is from the spread between its
experiments (ratio estimator, 95 %).
"""

import math
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cases import PROGRAMS, WORKLOADS, Case
from .prediction import PROGRESS_POINT, Predicted

COZ_PROGRAMS = PROGRAMS / "coz"
PACKAGE = "coz-profiler"
# COZ lives in one process and pauses its threads only.
_SEVERAL_PROCESSES = {"tcp", "forker"}
_START_UP_S = 60
_Z95 = 1.96
# Where COZ's experiments have hardly any length left (100 % of what everything waits for), its rates mean nothing.
NO_NUMBER = 10.0


class CozFailed(Exception):
    """COZ ended with an error or recorded too few experiments."""


@dataclass(frozen=True)
class Experiment:
    """One experiment of COZ. `duration_ns` is free of the inserted delays, `speedup` a fraction."""

    speedup: float
    duration_ns: int
    visits: int


@dataclass(frozen=True)
class Rate:
    """Visits per second with the variance of that estimate (infinite when there was one experiment only)."""

    value: float
    variance: float


def is_installed() -> bool:
    """Whether `coz` can be called."""
    return shutil.which("coz") is not None


def build_programs() -> None:
    """The workloads as COZ needs them."""
    subprocess.run(["make", "--silent", "-C", str(WORKLOADS), "coz"], check=True)


def can_answer(case: Case) -> bool:
    """Whether the question is one for COZ: a function, in one process."""
    # What waits is no question either: it samples CPU time.
    several = case.program in _SEVERAL_PROCESSES or "--processes" in case.options
    # Its latencies are looked at once per experiment only, and lines of COZ's macros would have to be in the program.
    return case.unit == "function" and case.group != "waits" and not case.latency and not several


def find_line(case: Case) -> int:
    """The line of the program's source on which the function's loop lies."""
    lines = (WORKLOADS / f"{case.program}.c").read_text().splitlines()
    return lines.index(f"WORKER({case.function})") + 1


def run_command(case: Case, speedup: float, seconds: float, profile: Path) -> list[str]:
    """The command line of one execution at one speedup."""
    source = f"{case.program}.c"
    return [
        "coz", "run", "-s", f"%/{source}", "--fixed-line", f"{source}:{find_line(case)}",
        "--fixed-speedup", str(round(100 * speedup)), "-o", str(profile),
        "---", *case.command(COZ_PROGRAMS), "--seconds", f"{seconds:g}",
    ]  # fmt: skip


def parse_profile(text: str, point: str = PROGRESS_POINT) -> list[Experiment]:
    """The experiments of one execution in COZ's tab-separated form, without the last one."""
    experiments: list[Experiment] = []
    current: dict[str, str] = {}
    for line in text.splitlines():
        kind, *fields = line.split("\t")
        values = dict(field.split("=", 1) for field in fields if "=" in field)
        if kind == "experiment":
            current = values
        elif kind == "throughput-point" and current and values.get("name") == point:
            experiments.append(Experiment(float(current["speedup"]), int(current["duration"]), int(values["delta"])))
    return experiments[:-1]


def estimate_rate(experiments: Sequence[Experiment]) -> Rate:
    """Total visits by total duration, with the variance of a ratio estimator (Cochran, Sampling Techniques, 2.11)."""
    duration_s = sum(experiment.duration_ns for experiment in experiments) / 1e9
    if duration_s <= 0:
        raise CozFailed("COZ recorded no experiment")
    rate = sum(experiment.visits for experiment in experiments) / duration_s
    count = len(experiments)
    if count < 2:
        return Rate(rate, math.inf)
    residuals = (experiment.visits - rate * experiment.duration_ns / 1e9 for experiment in experiments)
    return Rate(rate, count / (count - 1) * sum(residual**2 for residual in residuals) / duration_s**2)


def estimate_gain(base: Rate, fast: Rate) -> Predicted:
    """The reduction of the time per visit, 1 - base / fast, with its 95 % interval (delta method)."""
    if base.value <= 0 or fast.value <= 0:
        raise CozFailed("the progress point was not visited during COZ's experiments")
    ratio = base.value / fast.value
    if ratio > NO_NUMBER:
        return Predicted(None, None, None)
    margin = _Z95 * ratio * math.sqrt(base.variance / base.value**2 + fast.variance / fast.value**2)
    if not math.isfinite(margin):
        return Predicted(1 - ratio, None, None)
    return Predicted(1 - ratio, 1 - ratio - margin, 1 - ratio + margin)


def predict(case: Case, duration_s: float, rng: random.Random, directory: Path) -> Mapping[float, Predicted]:
    """All levels of a case within `duration_s` of executions; raises CozFailed."""
    order = [0.0, *case.levels]
    rng.shuffle(order)
    rates: dict[float, Rate] = {}
    for speedup in order:
        profile = directory / f"{case.name}-{round(100 * speedup)}.coz"
        profile.unlink(missing_ok=True)
        _call(run_command(case, speedup, duration_s / len(order), profile), duration_s)
        rates[speedup] = estimate_rate(parse_profile(profile.read_text()))
    return {level: estimate_gain(rates[0.0], rates[level]) for level in case.levels}


def _call(command: Sequence[str], timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout_s + _START_UP_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CozFailed(str(error)) from error
    if done.returncode != 0:
        raise CozFailed(f"COZ ended with {done.returncode}: {done.stderr.strip()[-200:]}")
