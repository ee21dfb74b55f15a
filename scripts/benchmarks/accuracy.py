"""How close predictions come: every workload profiled, then really run with less work in the profiled function.

The truth is measured in the same minutes as the prediction, half of it before and half of it after.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from . import coz
from .accuracy_tables import (
    UNKNOWN,
    Beside,
    Outcome,
    Row,
    case_line,
    make_rows,
    merge_markdown,
    render_markdown,
    render_text,
    summarise,
    summary_line,
    worse_than_coz,
)
from .arguments import declare_output
from .cases import ALL_CASES, SETS, WORKLOADS, Case, select, surroundings
from .machine import describe_machine
from .prediction import Predicted, Prediction, ProfilerFailed, predict, predict_attached
from .truth import Skipped, combine, measure_repetition


def measure_case(case: Case, options: argparse.Namespace, rng: random.Random, directory: Path) -> Outcome:
    """Half of the truth, the prediction, that by attach and COZ's, the other half of the truth."""
    before = (options.repetitions + 1) // 2
    profile = directory / f"{case.name}.causal"
    outcome = Outcome(case)
    try:
        rates = [measure_repetition(case, options.truth_seconds, rng) for _ in range(before)]
        prediction, attached = _predict(outcome, options, rng, profile)
        theirs = _ask_coz(outcome, options, rng, directory) if options.coz else None
        rates += [measure_repetition(case, options.truth_seconds, rng) for _ in range(options.repetitions - before)]
    except Skipped as reason:
        outcome.skipped = str(reason)
        return outcome
    except (ProfilerFailed, ValueError, OSError, subprocess.TimeoutExpired) as error:
        outcome.failure = " ".join(str(error).split())
        return outcome
    outcome.rows = make_rows(case, prediction, combine(rates), theirs, attached)
    outcome.verdict, outcome.experiments = prediction.verdict, prediction.experiments
    return outcome


def _predict(
    outcome: Outcome, options: argparse.Namespace, rng: random.Random, profile: Path
) -> tuple[Prediction, Mapping[float, Predicted] | None]:
    """By `run`, and if wanted by `attach`, in random order, as the machine drifts."""
    attach_first = options.attach and rng.random() < 0.5
    attached = _ask_attached(outcome, options, profile) if attach_first else None
    prediction = predict(options.causal_bpf, outcome.case, options.duration, profile)
    if options.attach and not attach_first:
        attached = _ask_attached(outcome, options, profile)
    return prediction, attached


def _ask_attached(outcome: Outcome, options: argparse.Namespace, profile: Path) -> Mapping[float, Predicted] | None:
    beside = profile.with_stem(f"{profile.stem}-attached")
    try:
        return predict_attached(options.causal_bpf, outcome.case, options.duration, beside).levels
    except ProfilerFailed as error:
        outcome.attach_failure = " ".join(str(error).split())
        return None


def _ask_coz(
    outcome: Outcome, options: argparse.Namespace, rng: random.Random, directory: Path
) -> Mapping[float, Predicted] | None:
    # A failure of COZ is a result, and no reason to lose our own.
    if not coz.can_answer(outcome.case):
        outcome.coz_failure = "no question for COZ"
        return None
    try:
        return coz.predict(outcome.case, options.duration, rng, directory)
    except (coz.CozFailed, OSError, ValueError) as error:
        outcome.coz_failure = " ".join(str(error).split())
        return None


def machine_line(options: argparse.Namespace) -> str:
    """The conditions of the measurement."""
    machine = describe_machine()
    return (
        f"{machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; {options.duration:g} s per case, "
        f"truth from {options.repetitions} x {options.truth_seconds:g} s per level"
    )


def coz_notes() -> str:
    """How COZ was asked: the documentation of the module that does it."""
    return " ".join((coz.__doc__ or "").split("How:", 1)[1].split()).strip()


def as_object(outcomes: Sequence[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """Everything, for machines."""
    groups = dict.fromkeys(outcome.case.group for outcome in outcomes)
    return {
        "machine": describe_machine(),
        "options": {
            "duration_s": options.duration,
            "repetitions": options.repetitions,
            "truth_seconds": options.truth_seconds,
            "seed": options.seed,
        },
        "cases": [_case_object(outcome) for outcome in outcomes],
        "groups": {
            group: summarise([row for outcome in outcomes if outcome.case.group == group for row in outcome.rows])
            for group in groups
        },
        "summary": summarise([row for outcome in outcomes for row in outcome.rows]),
    }


def read_outcomes(paths: Sequence[Path]) -> tuple[list[Outcome], dict[str, Any]]:
    """The outcomes in what `--json` printed, a later one of the same case instead of an earlier, and the options.

    Raises ValueError for a file that holds nothing of the kind.
    """
    by_name = {case.name: case for case in ALL_CASES}
    found: dict[str, Outcome] = {}
    measured: dict[str, Any] = {}
    for path in paths:
        saved = json.loads(path.read_text())
        try:
            measured = saved["options"]
            found |= {each["name"]: _outcome(each, by_name[each["name"]]) for each in saved["cases"]}
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} was not printed by this benchmark: {error!r}") from error
    return [found[case.name] for case in ALL_CASES if case.name in found], measured


def _outcome(saved: Mapping[str, Any], case: Case) -> Outcome:
    known = {field.name for field in fields(Row)}
    rows = [
        Row(
            **{key: value for key, value in row.items() if key in known and key not in ("coz", "attached")},
            coz=_theirs(row["coz"]), attached=Predicted(**row["attached"]) if "attached" in row else UNKNOWN,
        )
        for row in saved["rows"]
    ]  # fmt: skip
    return Outcome(
        case, rows, saved["verdict"], saved["experiments"], saved["failure"], saved["coz_failure"],
        saved.get("attach_failure"), saved.get("skipped"),
    )  # fmt: skip


def _theirs(saved: Mapping[str, Any]) -> Predicted:
    # Older results have numbers where COZ's experiments had no length.
    sensible = saved["gain"] is not None and saved["gain"] > -coz.NO_NUMBER
    return Predicted(**saved) if sensible else Predicted(None, None, None)


def _case_object(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "name": case.name,
        "group": case.group,
        "unit": case.unit,
        "command": [case.program, *case.command()[1:]],
        "function": case.function,
        "failure": outcome.failure,
        "skipped": outcome.skipped,
        "coz_failure": outcome.coz_failure,
        "attach_failure": outcome.attach_failure,
        "worse_than_coz_points": worse_than_coz(outcome),
        "verdict": outcome.verdict,
        "experiments": outcome.experiments,
        "rows": [
            {**asdict(row), "error": row.error, "covered": row.covered, "coz_error": row.coz_error,
             "attached_error": row.attached_error, "attached_covered": row.attached_covered}
            for row in outcome.rows
        ],
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
                        help="a case, a program or a group; repeatable")  # fmt: skip
    parser.add_argument("--only-case", action="append", default=[], metavar="NAME",
                        help="just the case of this name; repeatable")  # fmt: skip
    parser.add_argument("--set", choices=list(SETS), default="quick", dest="chosen_set",
                        help="every program once, or also many granularities, thread counts, queues, phases, threads "
                        "as units, and the known answers of others (default: quick)")  # fmt: skip
    parser.add_argument("--coz", action="store_true", help=f"COZ's predictions too, if {coz.PACKAGE} is installed")
    parser.add_argument("--attach", action="store_true",
                        help="also by attach to the running program, beside it, with the same truth")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--repetitions", type=int, default=6, help="repetitions of the truth (default 6)")
    parser.add_argument("--truth-seconds", type=seconds, default=1.5,
                        help="length of each unprofiled run (default 1.5)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="order of the unprofiled runs (default 1)")
    declare_output(parser)
    parser.add_argument("--combine", type=Path, nargs="+", metavar="JSON",
                        help="measure nothing: one report from what earlier runs printed with --json")  # fmt: skip
    parser.add_argument("--profiles", type=Path, metavar="DIR", help="keep the recorded profiles there")
    return parser


def measure_all(cases: Sequence[Case], options: argparse.Namespace) -> list[Outcome]:
    """Every case in turn, with a word on stderr about each, because this takes many minutes.

    The report is written anew after each case, so that an interruption loses only what was not measured.
    """
    rng = random.Random(options.seed)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as temporary:
        directory = options.profiles or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        for number, case in enumerate(cases, 1):
            with surroundings(case):
                outcomes.append(measure_case(case, options, rng, directory))
            print(f"[{number}/{len(cases)}] {case_line(outcomes[-1])}", file=sys.stderr, flush=True)
            if options.markdown:
                write_markdown(outcomes, options)
    return outcomes


def write_markdown(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    """The report, below what was written by hand."""
    existing = options.markdown.read_text() if options.markdown.exists() else None
    written = render_markdown(outcomes, machine_line(options), coz_notes() if options.coz else None, options.attach)
    options.markdown.write_text(merge_markdown(existing, written, "Accuracy"))


def beside(options: argparse.Namespace) -> Beside:
    """Whose columns are shown beside those of `run`."""
    return Beside(options.coz, options.attach)


def _combine(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        outcomes, measured = read_outcomes(options.combine)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    options.duration, options.repetitions = measured["duration_s"], measured["repetitions"]
    options.truth_seconds = measured["truth_seconds"]
    rows = [row for outcome in outcomes for row in outcome.rows]
    options.coz = any(row.coz.gain is not None for row in rows)
    options.attach = any(row.attached.gain is not None for row in rows)
    if options.markdown:
        write_markdown(outcomes, options)
    print("\n".join([machine_line(options), "", render_text(outcomes, beside(options)), "", summary_line(outcomes)]))
    return 0


def main(arguments: list[str]) -> int:
    """Runs the benchmark; 1 when a case failed."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    by_name = {case.name: case for case in ALL_CASES}
    try:
        cases = select(options.only_workload, SETS[options.chosen_set])
        if options.only_case:
            cases = [by_name[name] for name in options.only_case]
    except KeyError as error:
        parser.error(f"no case, program or group called {error.args[0]}; see --set full --list")
    if options.list:
        for case in cases:
            print(f"{case.name:20} {case.group:18} {case.function:16} {' '.join([case.program, *case.command()[1:]])}")
        return 0
    if options.combine:
        return _combine(options, parser)
    if options.coz and not coz.is_installed():
        parser.error(f"--coz needs COZ: apt-get install {coz.PACKAGE}")
    subprocess.run(["make", "--silent", "-C", str(WORKLOADS)], check=True)
    if options.coz:
        coz.build_programs()
    outcomes = measure_all(cases, options)
    if options.json:
        print(json.dumps(as_object(outcomes, options), indent=2))
    else:
        table = render_text(outcomes, beside(options))
        print("\n".join([machine_line(options), "", table, "", summary_line(outcomes)]))
    return int(any(outcome.failure is not None or outcome.attach_failure is not None for outcome in outcomes))
