"""What causal-bpf predicts for a case: one `run`, or one `attach` to the running program, then `report --json`."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import Case

PROGRESS_POINT, LATENCY = "progress", "latency"
FINISH_S = 180
WARM_UP_S = 0.5  # until the program has its threads and processes


class ProfilerFailed(Exception):
    """The profiler ended with an error, or its report does not answer the question."""


@dataclass(frozen=True)
class Predicted:
    """A predicted reduction of the time per round, or of the latency, with its interval; fractions. None: no number."""

    gain: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Prediction:
    """All levels of one region, and the verdict in words."""

    levels: dict[float, Predicted]
    verdict: str
    experiments: int


def run_command(profiler: Sequence[str], case: Case, duration_s: float, profile: Path) -> list[str]:
    """The command line that profiles a case. With the unit `thread` all threads share the time."""
    return [*profiler, "run", *_question(case, duration_s, profile), "--", *case.command()]


def attach_command(profiler: Sequence[str], case: Case, duration_s: float, profile: Path, pid: int) -> list[str]:
    """The same question about a case that runs already, with its children."""
    return [*profiler, "attach", str(pid), *_question(case, duration_s, profile)]


def _question(case: Case, duration_s: float, profile: Path) -> list[str]:
    point = ["--latency", f"{LATENCY}={case.latency}"] if case.latency else ["-p", PROGRESS_POINT]
    levels = ",".join(str(round(100 * level)) for level in case.levels)
    return [
        "--quiet", "--unit", case.unit, "--duration", f"{duration_s:g}s", "--only", case.function,
        "--speedups", levels, *point, "-o", str(profile),
    ]  # fmt: skip


def predict(profiler: Sequence[str], case: Case, duration_s: float, profile: Path) -> Prediction:
    """Profiles a case and reads the report; raises ProfilerFailed."""
    profile.unlink(missing_ok=True)
    _call(run_command(profiler, case, duration_s, profile), duration_s + FINISH_S)
    return parse_report(_call([*profiler, "report", str(profile), "--json"], FINISH_S), case)


def predict_attached(profiler: Sequence[str], case: Case, duration_s: float, profile: Path) -> Prediction:
    """The same for a program that was started without us; raises ProfilerFailed."""
    profile.unlink(missing_ok=True)
    with running(case) as pid:
        _call(attach_command(profiler, case, duration_s, profile, pid), duration_s + FINISH_S)
    return parse_report(_call([*profiler, "report", str(profile), "--json"], FINISH_S), case)


@contextlib.contextmanager
def running(case: Case) -> Iterator[int]:
    """The case's program running unprofiled, for its pid; it and what it has started end with the block."""
    program = subprocess.Popen(case.command(), stdout=subprocess.DEVNULL, process_group=0)
    try:
        time.sleep(WARM_UP_S)
        yield program.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def _call(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfilerFailed(str(error)) from error
    if done.returncode != 0:
        complaint = done.stderr.strip() or f"exit code {done.returncode}"
        raise ProfilerFailed(complaint[-500:])
    return done.stdout


def parse_report(text: str, case: Case) -> Prediction:
    """Reads the object that `report --json` prints; raises ProfilerFailed when the region is not in it."""
    try:
        report: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfilerFailed(f"the report is not JSON: {error}") from error
    point = LATENCY if case.latency else PROGRESS_POINT
    for region in report.get("regions", []):
        if region["region"] == case.function and region["progress_point"] == point:
            return _read_region(region, case.levels)
    seen = ", ".join(str(region["region"]) for region in report.get("regions", [])) or "none"
    raise ProfilerFailed(f"no region {case.function} in the report (regions: {seen})")


def _read_region(region: dict[str, Any], wanted: Sequence[float]) -> Prediction:
    levels = {level: Predicted(None, None, None) for level in wanted}
    experiments = 0
    for point in region["points"]:
        experiments += int(point.get("experiments") or 0)
        level = round(float(point["speedup"]), 6)
        if level in levels:
            low, high = point.get("ci") or (None, None)
            levels[level] = Predicted(point.get("program_speedup"), low, high)
    return Prediction(levels, str(region.get("verdict") or ""), experiments)
