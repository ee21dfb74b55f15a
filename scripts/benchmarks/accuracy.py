"""How close predictions come: every workload profiled, then really run with less work in the profiled function.

The truth is measured in the same minutes as the prediction, half of it before and half of it after.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .cases import CASES, LEVELS, ROOT, WORKLOADS, Case, select
from .machine import describe_machine
from .prediction import Predicted, Prediction, ProfilerFailed, predict
from .truth import Truth, combine, measure_repetition

HEADINGS = ("workload", "function", "speedup", "predicted", "interval", "true", "error", "covered")


@dataclass(frozen=True)
class Row:
    """One level of one case; fractions. `error` is predicted - true, None where no number was shown."""

    workload: str
    function: str
    speedup: float
    predicted: float | None
    low: float | None
    high: float | None
    true: float
    true_spread: float

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted - self.true

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the truth."""
        return None if self.low is None or self.high is None else self.low <= self.true <= self.high


@dataclass
class Outcome:
    """A case's rows, or the reason why there are none."""

    case: Case
    rows: list[Row] = field(default_factory=list)
    verdict: str = ""
    experiments: int = 0
    failure: str | None = None


def make_rows(case: Case, prediction: Prediction, truth: dict[float, Truth]) -> list[Row]:
    """Joins prediction and truth level by level."""
    rows = []
    for level in LEVELS:
        predicted = prediction.levels.get(level, Predicted(None, None, None))
        true = truth[level]
        rows.append(
            Row(case.name, case.function, level, predicted.gain, predicted.low, predicted.high, true.gain, true.spread)
        )
    return rows


def summarise(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Mean absolute error, largest error (both in points) and coverage (a fraction) over rows with a number."""
    errors = [abs(row.error) * 100 for row in rows if row.error is not None]
    covered = [row.covered for row in rows if row.covered is not None]
    return {
        "rows": len(rows),
        "without_number": len(rows) - len(errors),
        "mean_error_points": statistics.fmean(errors) if errors else None,
        "max_error_points": max(errors) if errors else None,
        "coverage": sum(covered) / len(covered) if covered else None,
    }


def measure_case(case: Case, options: argparse.Namespace, rng: random.Random, directory: Path) -> Outcome:
    """Half of the truth, the prediction, the other half of the truth."""
    before = (options.repetitions + 1) // 2
    profile = directory / f"{case.name}.causal"
    try:
        rates = [measure_repetition(case, options.truth_seconds, rng) for _ in range(before)]
        prediction = predict(options.causal_bpf, case, options.duration, profile)
        rates += [measure_repetition(case, options.truth_seconds, rng) for _ in range(options.repetitions - before)]
    except (ProfilerFailed, ValueError, OSError, subprocess.TimeoutExpired) as error:
        return Outcome(case, failure=" ".join(str(error).split()))
    rows = make_rows(case, prediction, combine(rates))
    return Outcome(case, rows, prediction.verdict, prediction.experiments)


def points(fraction: float | None, sign: str = "") -> str:
    """A fraction in percentage points, or a dash."""
    return "-" if fraction is None else f"{100 * fraction:{sign}.1f}"


def cells(row: Row) -> tuple[str, ...]:
    """The columns of HEADINGS for one row."""
    interval = "-" if row.low is None else f"{points(row.low)} to {points(row.high)}"
    covered = "-" if row.covered is None else ("yes" if row.covered else "no")
    return (
        row.workload, row.function, f"{100 * row.speedup:.0f}", points(row.predicted), interval,
        f"{points(row.true)} ±{points(row.true_spread)}", points(row.error, "+"), covered,
    )  # fmt: skip


def case_line(outcome: Outcome) -> str:
    """What is to be said of a case as a whole."""
    name = outcome.case.name
    if outcome.failure is not None:
        return f"{name}: failed: {outcome.failure}"
    summary = summarise(outcome.rows)
    mean = summary["mean_error_points"]
    error = "no number shown" if mean is None else f"mean error {mean:.1f}, max {summary['max_error_points']:.1f}"
    return f"{name}: {error}; {outcome.experiments} experiments; verdict: {outcome.verdict or '-'}"


def summary_line(outcomes: Sequence[Outcome]) -> str:
    """The numbers over all cases."""
    summary = summarise([row for outcome in outcomes for row in outcome.rows])
    failed = sum(outcome.failure is not None for outcome in outcomes)
    if summary["mean_error_points"] is None:
        return f"no predictions; {failed} of {len(outcomes)} cases failed"
    coverage = "-" if summary["coverage"] is None else f"{100 * summary['coverage']:.0f} %"
    return (
        f"mean absolute error {summary['mean_error_points']:.1f} points, max {summary['max_error_points']:.1f}, "
        f"coverage {coverage}, {summary['without_number']} of {summary['rows']} rows without a number, "
        f"{failed} of {len(outcomes)} cases failed"
    )


def machine_line(options: argparse.Namespace) -> str:
    """The conditions of the measurement."""
    machine = describe_machine()
    return (
        f"{machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; {options.duration:g} s per case, "
        f"truth from {options.repetitions} x {options.truth_seconds:g} s per level"
    )


def render_text(outcomes: Sequence[Outcome]) -> str:
    """Aligned columns, then a line per case."""
    table = [HEADINGS, *(cells(row) for outcome in outcomes for row in outcome.rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    return "\n".join([*(line.rstrip() for line in lines), "", *map(case_line, outcomes)])


def render_markdown(outcomes: Sequence[Outcome], conditions: str) -> str:
    """The same as a Markdown document."""
    lines = ["# Accuracy", "", f"Measured on {conditions}. All numbers are percent.", ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for outcome in outcomes for row in outcome.rows]
    lines += ["", *(f"- {case_line(outcome)}" for outcome in outcomes), "", f"**{summary_line(outcomes)}**", ""]
    return "\n".join(lines)


def as_object(outcomes: Sequence[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "machine": describe_machine(),
        "options": {
            "duration_s": options.duration,
            "repetitions": options.repetitions,
            "truth_seconds": options.truth_seconds,
            "seed": options.seed,
        },
        "cases": [
            {
                "name": outcome.case.name,
                "command": [Path(outcome.case.program).name, *outcome.case.command()[1:]],
                "function": outcome.case.function,
                "failure": outcome.failure,
                "verdict": outcome.verdict,
                "experiments": outcome.experiments,
                "rows": [{**asdict(row), "error": row.error, "covered": row.covered} for row in outcome.rows],
            }
            for outcome in outcomes
        ],
        "summary": summarise([row for outcome in outcomes for row in outcome.rows]),
    }


def seconds(text: str) -> float:
    """A duration such as 30, 30s or 2m, in seconds."""
    factor = {"s": 1, "m": 60}.get(text[-1:], 0)
    value = float(text[:-1]) * factor if factor else float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return value


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench accuracy", description=__doc__)
    parser.add_argument("--duration", type=seconds, default=30.0, help="profiling time per case (default 30s)")
    parser.add_argument("--only-workload", action="append", default=[], metavar="NAME",
                        help="a case or a program; repeatable")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--repetitions", type=int, default=6, help="repetitions of the truth (default 6)")
    parser.add_argument("--truth-seconds", type=seconds, default=1.5,
                        help="length of each unprofiled run (default 1.5)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="order of the unprofiled runs (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a Markdown table")
    parser.add_argument("--profiles", type=Path, metavar="DIR", help="keep the recorded profiles there")
    parser.add_argument("--causal-bpf", type=str.split, metavar="CMD", help="the profiler (default .venv's)",
                        default=[str(ROOT / ".venv" / "bin" / "causal-bpf")])  # fmt: skip
    return parser


def measure_all(cases: Sequence[Case], options: argparse.Namespace) -> list[Outcome]:
    """Every case in turn, with a word on stderr about each, because this takes many minutes."""
    rng = random.Random(options.seed)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as temporary:
        directory = options.profiles or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(cases, 1):
            outcomes.append(measure_case(case, options, rng, directory))
            print(f"[{number}/{len(cases)}] {case_line(outcomes[-1])}", file=sys.stderr, flush=True)
    return outcomes


def main(arguments: list[str]) -> int:
    """Runs the benchmark; 1 when a case failed."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    try:
        cases = select(options.only_workload)
    except KeyError as error:
        parser.error(f"no workload called {error.args[0]}; there are {', '.join(case.name for case in CASES)}")
    if options.list:
        for case in cases:
            print(f"{case.name:20} {case.function:14} {' '.join([case.program, *case.command()[1:]])}")
        return 0
    subprocess.run(["make", "--silent", "-C", str(WORKLOADS)], check=True)
    outcomes = measure_all(cases, options)
    if options.markdown:
        options.markdown.write_text(render_markdown(outcomes, machine_line(options)))
    if options.json:
        print(json.dumps(as_object(outcomes, options), indent=2))
    else:
        print("\n".join([machine_line(options), "", render_text(outcomes), "", summary_line(outcomes)]))
    return int(any(outcome.failure is not None for outcome in outcomes))
