"""What profiling costs: a fixed number of rounds without a profiler, under causal-bpf, and under COZ.

The cost is split as in the COZ paper (SOSP 2015, section 4.4: 17.6 % = 2.6 start-up + 4.8 sampling + 10.2 delays).
Start-up is what passes outside the program's first to last round more than without a profiler. Sampling is what the
rounds lose with samples and signals but without delays: for causal-bpf measured in the placebo windows of the same
run, for COZ in an execution with --fixed-speedup 0. Delays are the rest. All as a share of the time without a profiler;
start-up is paid once, so its share depends on --seconds.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from . import coz, timing
from .accuracy import seconds
from .accuracy_tables import align, markdown_table, merge_markdown
from .arguments import declare_output
from .machine import describe_machine
from .timing import Subject, Timing, TimingFailed

HEADINGS = ("program", "rounds/s", "causal-bpf", "start-up", "sampling", "delays")
COZ_HEADINGS = ("COZ", "start-up", "sampling", "delays")


@dataclass(frozen=True)
class Cost:
    """Extra time as fractions of the time without a profiler."""

    startup: float
    sampling: float
    delays: float

    @property
    def total(self) -> float:
        return self.startup + self.sampling + self.delays


@dataclass
class Outcome:
    """The costs for one program, medians over the repetitions; `stated` is the overhead in causal-bpf's own report."""

    name: str
    rate: float = 0.0
    ours: Cost | None = None
    stated: dict[str, float | None] | None = None
    coz: Cost | None = None
    failure: str | None = None
    coz_failure: str | None = None


def split_cost(base: Timing, sampled_steady_s: float, full: Timing) -> Cost:
    """The three parts from a run without a profiler, the time of the same rounds without delays, and a whole run."""
    return Cost(
        startup=((full.wall_s - full.steady_s) - (base.wall_s - base.steady_s)) / base.wall_s,
        sampling=(sampled_steady_s - base.steady_s) / base.wall_s,
        delays=(full.steady_s - sampled_steady_s) / base.wall_s,
    )


def median_cost(costs: Sequence[Cost]) -> Cost:
    """The median of each part: the parts add up to the total that is shown, which need not be the median total."""
    return Cost(*(statistics.median(getattr(cost, part.name) for cost in costs) for part in fields(Cost)))


def measure(subject: Subject, options: argparse.Namespace, rng: random.Random, directory: Path) -> Outcome:
    """All arms of a program, close together in each repetition, in random order."""
    outcome = Outcome(subject.name)
    try:
        outcome.rate = timing.run(subject, (), "--seconds", "2").rate
        rounds = max(2, round(outcome.rate * options.seconds))
        _measure_ours(outcome, subject, rounds, options, rng, directory)
    except TimingFailed as error:
        outcome.failure = " ".join(str(error).split())
        return outcome
    if options.coz:
        _measure_coz(outcome, subject, options, rng, directory)
    return outcome


def _measure_ours(
    outcome: Outcome, subject: Subject, rounds: int, options: argparse.Namespace, rng: random.Random, directory: Path
) -> None:
    costs, stated = [], []
    for number in range(options.repetitions):
        profile = directory / f"{subject.name}-{number}.causal"
        how = ("run", "--quiet", "--force", "-u", "function", "-p", subject.point, "-o", str(profile), "--")
        wrapper = [*options.causal_bpf, *how]
        taken = _in_random_order(subject, {"none": (), "full": wrapper}, rounds, rng)
        placebo = timing.placebo_rate(profile, subject.point)
        sampled_s = taken["none"].steady_s * taken["none"].rate / placebo
        costs.append(split_cost(taken["none"], sampled_s, taken["full"]))
        stated.append(timing.stated_overhead(options.causal_bpf, profile))
    outcome.ours = median_cost(costs)
    outcome.stated = {key: _median([one.get(key) for one in stated]) for key in ("startup_s", "sampling", "delays")}


def _measure_coz(
    outcome: Outcome, subject: Subject, options: argparse.Namespace, rng: random.Random, directory: Path
) -> None:
    if subject.coz_command is None:
        outcome.coz_failure = "not built for COZ"
        return
    built = Subject(subject.name, subject.coz_command, subject.point)
    output = ["-o", str(directory / f"{subject.name}.coz"), "---"]
    arms = {"none": (), "sampling": ("coz", "run", "--fixed-speedup", "0", *output), "full": ("coz", "run", *output)}
    try:
        rounds = max(2, round(timing.run(built, (), "--seconds", "2").rate * options.seconds))
        costs = []
        for _ in range(options.repetitions):
            taken = _in_random_order(built, arms, rounds, rng)
            costs.append(split_cost(taken["none"], taken["sampling"].steady_s, taken["full"]))
        outcome.coz = median_cost(costs)
    except TimingFailed as error:
        outcome.coz_failure = " ".join(str(error).split())


def _in_random_order(
    subject: Subject, arms: Mapping[str, Sequence[str]], rounds: int, rng: random.Random
) -> dict[str, Timing]:
    order = list(arms)
    rng.shuffle(order)
    return {arm: timing.run(subject, arms[arm], "--rounds", str(rounds)) for arm in order}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _parts(cost: Cost | None) -> tuple[str, str, str, str]:
    if cost is None:
        return ("-", "-", "-", "-")
    return (_percent(cost.total), _percent(cost.startup), _percent(cost.sampling), _percent(cost.delays))


def make_table(outcomes: Sequence[Outcome], with_coz: bool) -> list[tuple[str, ...]]:
    """Headings, a line per program, and the mean over the programs, all in percent."""
    table: list[tuple[str, ...]] = [(*HEADINGS, *(COZ_HEADINGS if with_coz else ()))]
    for one in outcomes:
        line = (one.name, f"{one.rate:.4g}" if one.rate else "-", *_parts(one.ours))
        table.append((*line, *(_parts(one.coz) if with_coz else ())))
    mean = ("mean", "", *_parts(_mean([one.ours for one in outcomes])))
    return [*table, (*mean, *(_parts(_mean([one.coz for one in outcomes])) if with_coz else ()))]


def _mean(costs: Sequence[Cost | None]) -> Cost | None:
    known = [cost for cost in costs if cost is not None]
    if not known:
        return None
    return Cost(*(statistics.fmean(getattr(cost, part.name) for cost in known) for part in fields(Cost)))


def program_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """What else is to be said of each program: failures, and what causal-bpf's own report states."""
    lines = []
    for one in outcomes:
        if one.failure is not None:
            lines.append(f"{one.name}: failed: {one.failure}")
            continue
        said = one.stated or {}
        parts = [f"sampling {_or_dash(said.get('sampling'))}", f"delays {_or_dash(said.get('delays'))}"]
        startup = said.get("startup_s")
        parts.insert(0, f"start-up {'-' if startup is None else f'{startup:.2f} s'}")
        line = f"{one.name}: causal-bpf's report states {', '.join(parts)}"
        lines.append(line if one.coz_failure is None else f"{line}; COZ: {one.coz_failure}")
    return lines


def _or_dash(fraction: float | None) -> str:
    return "-" if fraction is None else f"{_percent(fraction)} %"


def conditions(options: argparse.Namespace) -> str:
    """What was measured where."""
    machine = describe_machine()
    return (
        f"{machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; rounds that take "
        f"{options.seconds:g} s without a profiler, medians of {options.repetitions} repetitions"
    )


def render_markdown(outcomes: Sequence[Outcome], options: argparse.Namespace) -> str:
    """The part of a Markdown document that a later run replaces."""
    how = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    lines = [f"Measured on {conditions(options)}. All numbers but the rate are percent.", "", how, ""]
    lines += [*markdown_table(make_table(outcomes, options.coz)), ""]
    return "\n".join([*lines, *(f"- {line}" for line in program_lines(outcomes)), ""])


def as_object(outcomes: Sequence[Outcome], options: argparse.Namespace) -> dict[str, Any]:
    """Everything, for machines; fractions."""
    return {
        "machine": describe_machine(),
        "options": {"seconds": options.seconds, "repetitions": options.repetitions, "seed": options.seed},
        "programs": [asdict(outcome) for outcome in outcomes],
    }


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench overhead", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seconds", type=seconds, default=20.0,
                        help="length of a run without a profiler (default 20)")  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=3, help="repetitions of all arms (default 3)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="a program or a case of the accuracy benchmark; repeatable")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the programs and stop")
    parser.add_argument("--coz", action="store_true", help=f"also under COZ, if {coz.PACKAGE} is installed")
    parser.add_argument("--seed", type=int, default=1, help="order of the runs (default 1)")
    declare_output(parser)
    return parser


def main(arguments: list[str]) -> int:
    """Runs the benchmark; 1 when a program failed."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    if options.coz and not coz.is_installed():
        parser.error(f"--coz needs COZ: apt-get install {coz.PACKAGE}")
    try:
        subjects = timing.select_subjects(options.only, options.coz)
    except KeyError as error:
        parser.error(f"no program called {error.args[0]}; see --list and scripts/bench accuracy --set full --list")
    if options.list:
        for subject in subjects:
            print(f"{subject.name:16} {' '.join(subject.command)}")
        return 0
    timing.build(subjects, options.coz)
    rng = random.Random(options.seed)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as directory:
        for subject in subjects:
            outcomes.append(measure(subject, options, rng, Path(directory)))
            print(f"[{len(outcomes)}/{len(subjects)}] {subject.name}", file=sys.stderr, flush=True)
    if options.markdown:
        existing = options.markdown.read_text() if options.markdown.exists() else None
        options.markdown.write_text(merge_markdown(existing, render_markdown(outcomes, options), "Overhead"))
    if options.json:
        print(json.dumps(as_object(outcomes, options), indent=2))
    else:
        lines = [conditions(options), "", *align(make_table(outcomes, options.coz)), "", *program_lines(outcomes)]
        print("\n".join(lines))
    return int(any(outcome.failure is not None for outcome in outcomes))
