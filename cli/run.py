"""`causal-bpf run -- CMD`: start a program, experiment on it while it runs, print the causal profile."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from causal.errors import UsageError
from cli.arguments import duration, percents, positive, share
from cli.command import examples

if TYPE_CHECKING:
    from causal.recording import Interruption, Outcome, RunOptions


class RunCommand:
    """Records a profile of a command and prints it."""

    name = "run"
    help = (
        "Run a program and find out which of its code is worth making faster: experiments that virtually speed up\n"
        "one region at a time, measured by how often a progress point is visited."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        what = parser.add_argument_group("what to measure")
        what.add_argument(
            "-p", "--progress", metavar="SPEC", action="append", default=[],
            help="progress point, a function that runs once per unit of work: FUNCTION, FUNCTION@LIBRARY or "
            "NAME=SPEC; repeatable",
        )  # fmt: skip
        what.add_argument("--repeat", type=positive, metavar="N", help="no point: run the program N times, end to end")
        what.add_argument(
            "-u", "--unit", choices=("line", "file", "function", "module", "thread"),
            help="what is sped up (default: line where there is debug information, else function)",
        )  # fmt: skip
        what.add_argument(
            "-s", "--scope", metavar="PATTERN", action="append", default=[],
            help="source files whose lines count, as 'src/*', parser.c or '!vendor' (default: all but system headers, "
            "toolchains and their standard libraries)",
        )  # fmt: skip
        what.add_argument(
            "-b", "--binary", metavar="PATTERN", action="append", default=[],
            help="binaries whose code counts, as libfoo or '!libbar' (default: the main executable; with lines also "
            "libraries built from the same project)",
        )  # fmt: skip
        what.add_argument(
            "--only",
            metavar="REGION",
            action="append",
            default=[],
            help="try only these regions (names or globs; file.c:10-20 or a function for its lines)",
        )
        what.add_argument(
            "--speedups", type=percents, metavar="LIST",
            help="virtual speedups in percent, as 25,50 or 20-50 (default: 25 to 100, finer when there is time)",
        )  # fmt: skip
        how = parser.add_argument_group("how long and how")
        how.add_argument("--duration", type=duration, metavar="T", help="stop after T (30s, 2m); default: when it ends")
        how.add_argument("--seed", type=int, help="make the choice of experiments repeatable")
        how.add_argument(
            "--overhead", type=share, default=0.1, metavar="PERCENT",
            help="what sampling may cost the program, beside pauses (default: 10)",
        )  # fmt: skip
        how.add_argument(
            "--period", type=duration, metavar="T",
            help="sampling period (default: by its cost, --overhead and how often the points are visited)",
        )  # fmt: skip
        how.add_argument("--max-pause", type=duration, default=0.2, metavar="T", help="longest pause (default: 200ms)")
        how.add_argument("--max-threads", type=positive, default=16384, metavar="N", help=argparse.SUPPRESS)
        how.add_argument("--max-ranges", type=positive, default=1 << 20, metavar="N", help=argparse.SUPPRESS)
        how.add_argument("--max-mappings", type=positive, default=65536, metavar="N", help=argparse.SUPPRESS)
        how.add_argument("--keep-running", action="store_true", help="leave the program running after --duration")
        how.add_argument(
            "--list-regions", action="store_true",
            help="no experiments: look at the program (for --duration, default 10s) and list what could be sped up",
        )  # fmt: skip
        out = parser.add_argument_group("output")
        out.add_argument("-o", "--output", type=Path, metavar="FILE", help="profile to write (default: a new name)")
        out.add_argument("--force", action="store_true", help="replace FILE")
        out.add_argument("-q", "--quiet", action="store_true", help="no progress and no table, just the file")
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the program and its arguments")
        parser.epilog = examples(
            ("sudo causal-bpf run -p handle_request --duration 1m -- ./server", "profile a server for a minute"),
            ("sudo causal-bpf run -p write@libc -- ./convert in out", "count calls of a library function"),
            ("sudo causal-bpf run --repeat 40 -- ./compress file", "a program without a progress point, end to end"),
            ("sudo causal-bpf run -p step --only 'solve_*' -- ./solver", "try only some functions, or solver.c:10-20"),
            ("sudo causal-bpf run -p step -s '!vendor' -b libcore -- ./app", "lines of a library but not of vendor/"),
            ("sudo causal-bpf run --list-regions -- ./app", "what could be sped up, and its share of the time"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Records and prints; the exit code is the command's, 0 when --duration ended it."""
        from causal.recording import Interruption, record

        options = _options(args)
        interruption = Interruption()
        with _signals(interruption):
            if args.list_regions:
                return _list_regions(options, interruption)
            if not options.points and not options.repeat:
                return _suggest(options, interruption)
            from cli.live import LiveProgress

            with LiveProgress(args.quiet) as progress:

                def report(path: Path) -> None:
                    progress.stop()
                    if not args.quiet:
                        _print_result(path)

                outcome = record(options, interruption, progress.show, report)
        if outcome.keeps_running and not args.quiet:
            print(f"the program goes on as process {outcome.keeps_running}")
        return _exit_code(outcome)


def _options(args: argparse.Namespace) -> RunOptions:
    from causal.recording import RunOptions
    from causal.windows import EngineOptions

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command to run", "put it behind --: causal-bpf run -p FUNCTION -- ./program ARGS")
    if args.repeat and args.progress:
        raise UsageError("--repeat measures end to end and needs no -p", "give one of them")
    if args.period and not 50e-6 <= args.period <= 0.1:
        raise UsageError("--period must lie between 50us and 100ms", "leave it out, or try 1ms")
    return RunOptions(
        command=command,
        output=args.output or _default_output(command[0]),
        points=args.progress,
        unit=args.unit,
        binaries=args.binary,
        sources=args.scope,
        only=args.only,
        speedups=args.speedups,
        duration_s=args.duration,
        repeat=args.repeat,
        period_ns=round(args.period * 1e9) if args.period else None,
        overhead=args.overhead,
        seed=args.seed,
        force=args.force,
        keep_running=args.keep_running,
        engine=EngineOptions(
            max_pause_ns=round(args.max_pause * 1e9),
            max_threads=args.max_threads,
            max_ranges=args.max_ranges,
            max_mappings=args.max_mappings,
        ),
    )


def _default_output(command: str) -> Path:
    return Path(f"causal-{os.path.basename(command)}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")


@contextmanager
def _signals(interruption: Interruption) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) finishes and reports, the second stops at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _suggest(options: RunOptions, interruption: Interruption) -> int:
    from causal.suggestion import suggest

    if sys.stderr.isatty():
        print("no progress point given: looking at the program for ten seconds ...", file=sys.stderr)
    found = suggest(options, interruption)
    command = shlex.join(options.command)
    if found.status is not None and not found.functions:
        raise UsageError(
            "no progress point given, and the program ended before one could be suggested",
            f"measure it end to end: causal-bpf run --repeat 40 -- {command}",
        )
    if found.functions:
        print("functions of the program and their calls per second:", file=sys.stderr)
    for name, rate in found.functions:
        print(f"{rate:12,.1f}  {name}", file=sys.stderr)
    raise UsageError(
        "no progress point given",
        "choose a function that runs once per unit of work: causal-bpf run -p "
        f"{shlex.quote(found.functions[0][0]) if found.functions else 'FUNCTION'} -- {command}",
    )


def _list_regions(options: RunOptions, interruption: Interruption) -> int:
    from causal.survey import survey
    from cli.regions import print_survey

    print_survey(survey(options, interruption))
    return 0


def _print_result(path: Path) -> None:
    from causal.profile import read_profile
    from cli.report import print_report

    print_report(read_profile(path))
    print(f"\nsee it again: causal-bpf report {shlex.quote(str(path))}", flush=True)


def _exit_code(outcome: Outcome) -> int:
    if outcome.reason == "duration":
        return 0
    if outcome.status is not None:
        return outcome.status
    return 128 + signal.SIGINT if outcome.reason == "interrupt" else 0
