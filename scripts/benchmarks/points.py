"""What a visit of a progress point costs the program, kind by kind, and counters in the source beside COZ's macro.

The same program visits one kind of point so and so many times, without a profiler and under `run --no-pauses` (samples
and counts, but no experiments); what a loop without visits takes longer under the same profiler is taken off. For 5
million visits a second and thread the loop has work between its visits, and the same executable runs also under `coz
run` at a speedup of 0, which samples each thread once a millisecond but does not pause, and under us with as many
samples of each core. Counts are compared with what the program did. All arms in turn, in random order, medians.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import coz
from .accuracy_tables import align, markdown_table, merge_markdown
from .arguments import declare_output
from .cases import ROOT, WORKLOADS
from .machine import describe_machine

sys.path.insert(0, str(ROOT))

from causal.profile import read_profile

_RATE_HZ = 5_000_000
_PERIOD_OF_COZ = "1ms"
# Steps of work that take about as long as 5 million visits a second leave, found by trying.
_TRIED_STEPS = 200


@dataclass(frozen=True)
class Kind:
    """`number` as the program has it, `points` the words that name it to the profiler, `name` of the point there."""

    title: str
    number: int
    spec: str | None
    name: str
    visits: int


KINDS = (
    Kind("function, first instruction emulated (nop, push, endbr64)", 0, "visited", "visited", 400_000),
    Kind("function, first instruction stepped", 1, "stepped", "stepped", 100_000),
    Kind("USDT", 2, "here=usdt:example:always", "here", 400_000),
    Kind("USDT with a semaphore", 3, "here=usdt:example:switched", "here", 400_000),
    Kind("tracepoint (getppid)", 4, "here=tracepoint:syscalls:sys_exit_getppid", "here", 400_000),
    Kind("counter, causal.h", 5, None, "counted", 20_000_000),
    Kind("counter, coz.h", 6, None, "as-coz", 20_000_000),
)  # fmt: skip
# A loop without visits, under the profiler with a point that is never visited.
EMPTY = Kind("nothing", 7, "visited", "visited", 100_000_000)


@dataclass(frozen=True)
class Cost:
    """Nanoseconds a visit: without a profiler, and how much more with one. `exact`: all visits were counted."""

    title: str
    bare_ns: float
    more_ns: float
    exact: bool


@dataclass(frozen=True)
class Pace:
    """Two threads at 5 million visits a second each: slow-down as fractions against no profiler. `sparse`: with as many
    samples as COZ takes."""

    title: str
    rate: float
    ours: float
    sparse: float
    coz: float | None
    exact: bool


class Failed(Exception):
    """A run ended with an error."""


def build(directory: Path) -> Path:
    """The program, as COZ needs it; every profiler gets the same file."""
    program = directory / "visits"
    flags = ["-std=gnu11", "-O2", "-g", "-gdwarf-3", "-no-pie", "-fno-omit-frame-pointer", "-pthread", "-w"]
    subprocess.run(["cc", *flags, "-o", str(program), str(WORKLOADS / "visits.c")], check=True)
    return program


def run(command: Sequence[str]) -> float:
    """Nanoseconds a visit of each thread, as the program prints it."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    for line in done.stdout.splitlines():
        words = line.split()
        if words[:1] == ["visits"]:
            return float(words[5])
    raise Failed((done.stderr or done.stdout).strip()[-300:])


def words_of(program: Path, visits: int, kind: int, threads: int = 1, steps: int = 0) -> list[str]:
    """The program's command line."""
    return [str(program), str(visits), "--kind", str(kind), "--threads", str(threads), "--steps", str(steps)]


def ours(options: argparse.Namespace, profile: Path, spec: str | None, *further: str) -> list[str]:
    """The profiler's command line; a loop without visits gets a point that is never visited."""
    point = [*(["-p", spec] if spec else []), *further]
    how = ["--quiet", "--force", "--no-pauses", "-u", "function", "-o", str(profile)]
    return [*options.causal_bpf, "run", *how, *point, "--"]


def counted(profile: Path, name: str) -> int:
    """Visits in the whole run."""
    end = read_profile(profile).end
    return int(end.diagnosis["visits"].get(name, 0)) if end else 0


def measure_costs(program: Path, options: argparse.Namespace, rng: random.Random, directory: Path) -> list[Cost]:
    """Every kind, without and with the profiler, in each repetition."""
    kinds = [kind for kind in (*KINDS, EMPTY) if kind.number != 6 or options.with_coz]
    times: dict[tuple[str, str], list[float]] = {}
    exact = dict.fromkeys((kind.title for kind in kinds), True)
    profile = directory / "points.causal"
    for _ in range(options.repetitions):
        for kind in rng.sample(kinds, len(kinds)):
            words = words_of(program, kind.visits, kind.number)
            times.setdefault((kind.title, "bare"), []).append(run(words))
            times.setdefault((kind.title, "ours"), []).append(run([*ours(options, profile, kind.spec), *words]))
            exact[kind.title] &= kind is EMPTY or counted(profile, kind.name) == kind.visits
    middle = {arm: statistics.median(its) for arm, its in times.items()}
    costs = []
    for kind in (each for each in kinds if each is not EMPTY):
        bare = middle[kind.title, "bare"] - middle[EMPTY.title, "bare"]
        more = middle[kind.title, "ours"] - middle[EMPTY.title, "ours"] - bare
        costs.append(Cost(kind.title, bare, more, exact[kind.title]))
    return costs


def measure_pace(program: Path, options: argparse.Namespace, rng: random.Random, directory: Path) -> list[Pace]:
    """causal.h under us, and coz.h under us and under COZ, at five million visits a second and thread."""
    per_step = run(words_of(program, 1_000_000, 5, 2, _TRIED_STEPS)) / _TRIED_STEPS
    steps = max(round(1e9 / _RATE_HZ / per_step), 1)
    visits = round(options.seconds * _RATE_HZ)
    profile, theirs = directory / "pace.causal", directory / "pace.coz"
    arms: dict[tuple[int, str], list[str]] = {}
    for number in (5, 6) if options.with_coz else (5,):
        arms[number, "bare"] = []
        arms[number, "ours"] = ours(options, profile, None)
        arms[number, "sparse"] = ours(options, profile, None, "--period", _PERIOD_OF_COZ)
    if options.with_coz:
        arms[6, "coz"] = ["coz", "run", "--fixed-speedup", "0", "-o", str(theirs), "---"]
    times: dict[tuple[int, str], list[float]] = {arm: [] for arm in arms}
    exact = {5: True, 6: True}
    for _ in range(options.repetitions):
        for number, arm in rng.sample(list(arms), len(arms)):
            command = words_of(program, visits, number, 2, steps)
            times[number, arm].append(run([*arms[number, arm], *command]))
            if arm in ("ours", "sparse"):
                exact[number] &= counted(profile, "counted" if number == 5 else "as-coz") == 2 * visits
    middle = {arm: statistics.median(its) for arm, its in times.items()}
    slower = {(number, arm): its / middle[number, "bare"] - 1 for (number, arm), its in middle.items()}
    return [
        Pace(
            title, 1e9 / middle[number, "bare"], slower[number, "ours"], slower[number, "sparse"],
            slower.get((number, "coz")), exact[number],
        )
        for number, title in ((5, "counter, causal.h"), (6, "counter, coz.h"))
        if (number, "bare") in middle
    ]  # fmt: skip


def cost_table(costs: Sequence[Cost]) -> list[tuple[str, ...]]:
    """Headings and a line for each kind."""
    return [
        ("point", "ns a visit without a profiler", "ns more when counted", "counted exactly"),
        *((c.title, f"{c.bare_ns:.1f}", f"{c.more_ns:,.1f}", "yes" if c.exact else "no") for c in costs),
    ]


def pace_table(paces: Sequence[Pace]) -> list[tuple[str, ...]]:
    """Headings and a line for each way to count."""
    return [
        ("two threads", "million visits/s each", "causal-bpf", "with COZ's samples", "COZ", "counted exactly"),
        *(
            (p.title, f"{p.rate / 1e6:.2f}", f"{p.ours:+.1%}", f"{p.sparse:+.1%}",
             "-" if p.coz is None else f"{p.coz:+.1%}", "yes" if p.exact else "no")
            for p in paces
        ),
    ]  # fmt: skip


def render_markdown(costs: Sequence[Cost], paces: Sequence[Pace], options: argparse.Namespace) -> str:
    """The part of a Markdown document that a later run replaces."""
    how = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    lines = [f"Measured on {conditions(options)}.", "", how, "", *markdown_table(cost_table(costs)), ""]
    if paces:
        lines += ["Longer than without a profiler:", "", *markdown_table(pace_table(paces)), ""]
    return "\n".join(lines)


def conditions(options: argparse.Namespace) -> str:
    """What was measured where."""
    machine = describe_machine()
    return (
        f"{machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; medians of {options.repetitions} "
        f"repetitions, {options.seconds:g} s each where two threads count"
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench points", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--part", choices=("costs", "pace"), help="only the kinds, or only the two threads")
    parser.add_argument("--repetitions", type=int, default=5, help="repetitions of all arms (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run of two threads (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="order of the runs (default 1)")
    declare_output(parser)
    return parser


def main(arguments: list[str]) -> int:
    """Runs the benchmark; 1 when something failed or was not counted exactly."""
    options = make_parser().parse_args(arguments)
    options.with_coz = coz.is_installed()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="bench-points-") as name:
        directory = Path(name)
        program = build(directory)
        try:
            paces = [] if options.part == "costs" else measure_pace(program, options, rng, directory)
            costs = [] if options.part == "pace" else measure_costs(program, options, rng, directory)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if options.markdown:
        existing = options.markdown.read_text() if options.markdown.exists() else None
        options.markdown.write_text(merge_markdown(existing, render_markdown(costs, paces, options), "Progress points"))
    if options.json:
        print(json.dumps({"costs": [asdict(c) for c in costs], "paces": [asdict(p) for p in paces]}, indent=2))
    else:
        print("\n".join([conditions(options), "", *align(cost_table(costs)), "", *align(pace_table(paces))]))
    return int(not all(each.exact for each in (*costs, *paces)))
