"""`causal-bpf run -- CMD`: start a program, experiment on it while it runs, print the causal profile."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from causal.errors import UsageError
from cli.arguments import positive
from cli.command import examples
from cli.interruption import interruptible
from cli.recording import (
    announce_suggestions,
    common_options,
    declare_conduct,
    declare_measurement,
    declare_output,
    record_and_print,
    refuse_without_point,
)

if TYPE_CHECKING:
    from causal.interruption import Interruption
    from causal.recording import Outcome
    from causal.running import RunOptions


# Enough for four levels in pairs, and five of each.
_USUAL_RUNS = 40


class RunCommand:
    """Records a profile of a command and prints it."""

    name = "run"
    help = (
        "Run a program and find out which of its code is worth making faster: experiments that virtually speed up\n"
        "one region at a time, measured by how often a progress point is visited."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        what = declare_measurement(parser)
        what.add_argument(
            "--repeat", type=positive, metavar="N",
            help="no point: run the program N times, end to end; with --duration, fewer if it is over before",
        )  # fmt: skip
        what.add_argument(
            "--list-regions", action="store_true",
            help="no experiments: look at the program (for --duration, default 10s) and list what could be sped up",
        )  # fmt: skip
        what.add_argument(
            "--list-points", nargs="+", metavar=("BINARY", "PATTERN"),
            help="nothing is run: list the functions and USDT points of a program or library, and with FILE.c as the "
            "pattern its lines, each as a SPEC for -p",
        )  # fmt: skip
        how = declare_conduct(parser, "when it ends")
        how.add_argument("--keep-running", action="store_true", help="leave the program running after --duration")
        declare_output(parser)
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the program and its arguments")
        parser.epilog = examples(
            ("sudo causal-bpf run -p handle_request --duration 1m -- ./server", "profile a server for a minute"),
            ("sudo causal-bpf run -p write@libc -- ./convert in out", "count calls of a library function"),
            ("sudo causal-bpf run --repeat 40 -- ./compress file", "a program without a progress point, end to end"),
            ("sudo causal-bpf run --latency 'queue=push,pop' -- ./server", "the mean time from one point to another"),
            ("sudo causal-bpf run -p step --only 'solve_*' -- ./solver", "try only some functions, or solver.c:10-20"),
            ("sudo causal-bpf run -p step -s '!vendor' -b libcore -- ./app", "lines of a library but not of vendor/"),
            ("sudo causal-bpf run -p step --callers -- ./app", "each line apart for what calls it: a.c:5 from b.c:12"),
            ("sudo causal-bpf run -p step --inclusive --only parse -u function -- ./app", "parse and all it calls"),
            ("sudo causal-bpf run -p step -u wait --callers -- ./app", "what is waited for, and where: I/O from load"),
            ("sudo causal-bpf run -p step --given 'parse=50%' -- ./app", "what next, when parse takes half its time?"),
            ("causal-bpf run --list-points ./app 'parse*'", "what a progress point could be, by name"),
            ("causal-bpf run --list-points ./app main.c", "the same for the lines of a file"),
            ("sudo causal-bpf run --list-regions -- ./app", "what could be sped up, and its share of the time"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Records and prints; the exit code is the command's, 0 when --duration ended it."""
        if args.list_points:
            return _list_points(args.list_points, args.command)
        from causal.running import has_points_of_its_own, record

        options = _options(args)
        with interruptible() as interruption:
            if args.list_regions:
                return _list_regions(options, interruption)
            if not (options.points or options.latencies or options.repeat) and not has_points_of_its_own(options):
                return _suggest(options, interruption)
            outcome = record_and_print(
                args.quiet, lambda *callbacks: record(options, interruption, *callbacks)
            )
        if outcome.keeps_running and not args.quiet:
            print(f"the program goes on as process {outcome.keeps_running}")
        return _exit_code(outcome)


def _options(args: argparse.Namespace) -> RunOptions:
    from causal.repetition import END_TO_END
    from causal.running import RunOptions

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command to run", "put it behind --: causal-bpf run -p FUNCTION -- ./program ARGS")
    if args.progress == [END_TO_END] and not args.latency:
        args.progress, args.repeat = [], args.repeat or _USUAL_RUNS
    if args.repeat and (args.progress or args.latency):
        raise UsageError("--repeat measures end to end and needs no -p", "give one of them")
    return RunOptions(
        **common_options(args, command[0]), command=command, repeat=args.repeat, keep_running=args.keep_running
    )


def _suggest(options: RunOptions, interruption: Interruption) -> int:
    from causal.suggestion import suggest

    announce_suggestions()
    found = suggest(options, interruption)
    command = shlex.join(options.command)
    instead = f"measure it end to end: causal-bpf run --repeat 40 -- {command}"
    return refuse_without_point(found, "causal-bpf run", ["--", *options.command], instead)


def _list_points(words: list[str], command: Sequence[str]) -> int:
    from cli.points import print_points_of

    if command:
        raise UsageError("--list-points runs nothing", f"leave out the command: --list-points {shlex.join(words)}")
    print_points_of(words)
    return 0


def _list_regions(options: RunOptions, interruption: Interruption) -> int:
    from causal.survey import survey
    from cli.regions import print_survey

    print_survey(survey(options, interruption))
    return 0


def _exit_code(outcome: Outcome) -> int:
    if outcome.reason == "duration":
        return 0
    if outcome.status is not None:
        return outcome.status
    return 128 + signal.SIGINT if outcome.reason == "interrupt" else 0
