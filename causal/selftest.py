"""Checks the whole profiler on this machine: a prediction for a program whose answer is then measured."""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from causal import known_answer
from causal.errors import CausalError
from causal.interruption import Interruption
from causal.running import RunOptions, record

PROGRESS_POINT = "sched_yield@libc"
SPEEDUP_PERCENT = 50
PROFILE_S = 10.0
_REGION = f"{known_answer.FIRST} (main)"
_BLOCKS = (8, 8)
_TRUTH_S = 0.8
_REPETITIONS = 3


@dataclass(frozen=True)
class SelfTest:
    """What came out. Gains and interval as fractions of the time per round; times in ns."""

    predicted: float
    low: float
    high: float
    true: float
    sample_cost_ns: int
    period_ns: int

    @property
    def error(self) -> float:
        return self.predicted - self.true

    @property
    def covered(self) -> bool:
        return self.low <= self.true <= self.high


def run_self_test(interruption: Interruption, say: Callable[[str], None] = lambda text: None) -> SelfTest:
    """Profile the known program for ten seconds, and run it with half the work before and after. Takes 16 s.

    Raises CausalError when no prediction comes out of it, with what the profiler said about that.
    """
    say("running the program with and without half of the first thread's work ...")
    truth = [_true_gain() for _ in range(_REPETITIONS - 1)]
    say(f"predicting the same by experiments for {PROFILE_S:.0f} seconds ...")
    with tempfile.TemporaryDirectory(prefix="causal-bpf-") as directory:
        found = _predict(Path(directory) / "self-test.jsonl", interruption)
    truth.append(_true_gain())
    predicted, low, high, cost_ns, period_ns = found
    return SelfTest(predicted, low, high, statistics.median(truth), cost_ns, period_ns)


def _command(blocks: tuple[int, int], seconds: float) -> list[str]:
    return [sys.executable, known_answer.__file__, *map(str, blocks), str(seconds)]


def _true_gain() -> float:
    fewer = (_BLOCKS[0] * (100 - SPEEDUP_PERCENT) // 100, _BLOCKS[1])
    slow, fast = (_rate(blocks) for blocks in (_BLOCKS, fewer))
    return 1 - slow / fast


def _rate(blocks: tuple[int, int]) -> float:
    done = subprocess.run(_command(blocks, _TRUTH_S), capture_output=True, text=True, check=False)
    try:
        return float(done.stdout)
    except ValueError:
        raise CausalError(
            f"the self-test's program failed: {done.stderr.strip()[-200:]}", f"run it alone: {shlex.join(done.args)}"
        ) from None


def _predict(path: Path, interruption: Interruption) -> tuple[float, float, float, int, int]:
    from causal.analysis import analyse
    from causal.profile import read_profile

    options = RunOptions(
        command=_command(_BLOCKS, 3600.0), output=path, points=[PROGRESS_POINT], unit="thread", only=[_REGION],
        speedups=[SPEEDUP_PERCENT], duration_s=PROFILE_S,
    )  # fmt: skip
    record(options, interruption)
    profile = read_profile(path)
    analysis = analyse(profile)
    for region in analysis.regions:
        for point in region.points:
            if point.speedup > 0 and point.program_speedup is not None and point.ci is not None:
                cost_ns = int(profile.header.options.get("sample_cost_ns") or 0)
                return point.program_speedup, *point.ci, cost_ns, profile.end.period_ns if profile.end else 0
    why = analysis.diagnosis.conclusion or "; ".join(region.explanation for region in analysis.regions)
    raise CausalError(f"the self-test gave no prediction: {why}", "run it again when the machine is quiet")
