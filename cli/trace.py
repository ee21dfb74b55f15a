"""`causal-bpf trace -- CMD {}`: collect the traces of a program that `causal-bpf explain` explains."""

from __future__ import annotations

import argparse
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from causal.errors import UsageError
from cli.arguments import duration, positive
from cli.command import examples
from cli.interruption import orderly_interruption

if TYPE_CHECKING:
    from causal.tracing.runs import Summary

_SHOWN = 6


class TraceCommand:
    """Runs a command over many inputs, timing it and counting its calls; needs root."""

    name = "trace"
    help = (
        "Collect traces for `explain`: run a command over many inputs, measure how long each takes, and count in\n"
        "another run of each, by eBPF, how often it calls which function. The program is not changed.\n\n"
        "{} in the command stands for the input. Traces are kept in a directory; the same command again goes on\n"
        "where it was interrupted."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="directory for the traces")
        parser.add_argument("--force", action="store_true", help="start again, replacing the traces in DIR")
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
        what = parser.add_argument_group("inputs")
        what.add_argument(
            "--inputs", metavar="WHAT", nargs="+", action="extend", default=[],
            help="a pattern such as 'img/*.png' (the input variable is size_bytes); @FILE, a list with one input per "
            "line; or FILE.csv, whose first column replaces {} and column NAME replaces {NAME}, and whose numeric "
            "columns are the input variables",
        )  # fmt: skip
        what.add_argument("--stdin", action="store_true", help="feed the input file to the command's standard input")
        what.add_argument("--timeout", metavar="T", type=duration, help="end runs that take longer (default: never)")
        cost = parser.add_argument_group("time")
        cost.add_argument("--repeat", metavar="N", type=positive, default=5, help="timed runs per input (default: 5)")
        cost.add_argument(
            "--measure", default="wall", choices=("wall", "cpu"),
            help="what is explained by default; both are recorded (default: %(default)s)",
        )  # fmt: skip
        cost.add_argument("--seed", type=int, default=0, help="of the random order of runs (default: %(default)s)")
        calls = parser.add_argument_group("calls")
        calls.add_argument(
            "-b", "--binary", metavar="PATTERN", action="append", default=[],
            help="files whose functions are counted, as libfoo or '!libbar' (default: the main executable)",
        )  # fmt: skip
        calls.add_argument(
            "--function", metavar="PATTERN", action="append", default=[],
            help="count only these functions (names or globs; default: all)",
        )  # fmt: skip
        calls.add_argument("--max-functions", metavar="N", type=positive, default=50_000, help=argparse.SUPPRESS)
        calls.add_argument(
            "--max-slowdown", metavar="X", type=float, default=20.0,
            help="drop the hottest functions where counting makes a run slower than X times (and the whole counting "
            "than a minute; default: %(default)g; 0: never)",
        )  # fmt: skip
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD {}", help="the program to trace")
        parser.epilog = examples(
            ("sudo causal-bpf trace -o traces --inputs 'img/*.png' -- ./convert {} /dev/null", "one trace per file"),
            ("causal-bpf explain traces", "then: why are some of them slow?"),
            (
                "sudo causal-bpf trace -o traces --inputs runs.csv -- ./resize --width {width} {file}",
                "inputs and options from a table with the columns file,width",
            ),
            ("sudo causal-bpf trace -o traces --inputs @list --stdin -- jq .a", "files given to standard input"),
            (
                "sudo causal-bpf trace -o traces --inputs '*.png' -b libpng -- ./thumb {}",
                "count the functions of a library",
            ),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Traces and says what came out; 130 when it was interrupted."""
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        if not command:
            raise UsageError("no command to trace", "put it behind --: causal-bpf trace -o DIR --inputs 'X*' -- CMD {}")
        if not args.inputs:
            raise UsageError("no inputs", "give them with --inputs 'PATTERN', --inputs @LIST or --inputs TABLE.csv")
        from causal.tracing.inputs import find_inputs
        from causal.tracing.runs import RunTracer, TraceOptions
        from cli.trace_progress import TraceProgress

        options = TraceOptions(
            command=command,
            output=args.output,
            binaries=args.binary,
            patterns=args.function,
            max_functions=args.max_functions,
            repeat=args.repeat,
            measure=args.measure,
            stdin=args.stdin,
            seed=args.seed,
            timeout_s=args.timeout,
            max_slowdown=args.max_slowdown,
            force=args.force,
        )
        with orderly_interruption() as interrupted, TraceProgress(args.quiet) as progress:
            summary = RunTracer(options, find_inputs(args.inputs), interrupted, progress.show).trace()
            progress.stop()
            if not args.quiet:
                _print_summary(summary, args.output)
            return 0 if summary.finished or not interrupted() else 128 + signal.SIGINT


def _print_summary(summary: Summary, directory: Path) -> None:
    went_on = " (went on with what was there)" if summary.resumed else ""
    print(f"{summary.traces:,} traces of {summary.inputs:,} inputs{went_on}")
    print(f"{summary.functions:,} functions counted, {summary.called:,} of them called")
    for code, count in sorted(summary.exit_codes.items()):
        complaint = summary.complaints[code]
        print(f"{_how(code)}: {count:,} inputs, kept as a class of their own{f' ({complaint})' if complaint else ''}")
    if summary.dropped:
        print("too hot to be counted, their callers tell as much: " + _some(summary.dropped))
    if summary.refused:
        print("cannot be probed: " + _some(summary.refused))
    for note in summary.notes:
        print(note)
    if not summary.finished:
        print("not finished: the same command again goes on")
    print(f"explain them: causal-bpf explain {shlex.quote(str(directory))}", flush=True)


def _how(code: int) -> str:
    if code == 124:
        return "ended by --timeout or with exit code 124"
    if code > 128 and code - 128 in signal.valid_signals():
        return f"killed by {signal.Signals(code - 128).name}"
    return f"failed with exit code {code}"


def _some(names: dict[str, float] | list[str]) -> str:
    shown = [f"{name} ({names[name]:,.0f}/s)" if isinstance(names, dict) else name for name in list(names)[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(shown) + more
