"""What `run` and `attach` have in common: options, and what is printed at the end."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causal.errors import UsageError
from cli.arguments import duration, given, percents, positive, share
from cli.complaint import print_labelled

if TYPE_CHECKING:
    from causal.experiment import Status
    from causal.recording import Outcome
    from causal.suggestion import Suggestion
    from causal.windows import Attribution

_SUGGESTED = {
    "function": "functions of the program",
    "usdt": "points that its authors marked (USDT)",
    "tracepoint": "its system calls that accept and send",
}


def declare_measurement(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Options that say what is measured; returns their group."""
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "-p", "--progress", metavar="SPEC", action="append", default=[],
        help="progress point, visited once per unit of work: FUNCTION, FUNCTION@LIBRARY, FILE:LINE, 0xADDRESS, "
        "usdt:PROVIDER:NAME, tracepoint:CATEGORY:NAME or sampled:FILE:LINE, each also as NAME=SPEC; repeatable",
    )  # fmt: skip
    what.add_argument(
        "--latency", metavar="NAME=BEGIN,END", action="append", default=[],
        help="the time from one point to another (SPECs as for -p), also in other threads and processes; repeatable",
    )  # fmt: skip
    what.add_argument(
        "--all", dest="accept_many", action="store_true", help="accept a point that means very many places"
    )  # fmt: skip
    what.add_argument(
        "-u", "--unit", choices=("line", "file", "function", "module", "thread", "process", "wait", "syscall"),
        help="what is sped up: code, threads, processes, system calls, or waits by class: I/O, lock, runqueue, sleep, "
        "idle (default: line where there is debug information, else function)",
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
        "--only", metavar="REGION", action="append", default=[],
        help="try only these regions (names or globs; file.c:10-20 or a function for its lines)",
    )  # fmt: skip
    stacks = what.add_mutually_exclusive_group()
    stacks.add_argument(
        "--callers", action="store_true",
        help="split each region by what calls it: 'parse from main.c:12' is worth another gain than 'parse from load'",
    )  # fmt: skip
    stacks.add_argument(
        "--inclusive", action="store_true",
        help="count a region for all that it calls, not only where it is the innermost one in scope",
    )  # fmt: skip
    what.add_argument(
        "--given", type=given, metavar="REGION=PERCENT", action="append", default=[],
        help="what next, after that fix? REGION is so much faster in all experiments, and others are tried beside it "
        "(as --given parse=50%%); repeatable",
    )  # fmt: skip
    what.add_argument(
        "--speedups", type=percents, metavar="LIST",
        help="virtual speedups in percent, as 25,50 or 20-50 (default: 25 to 100, finer when there is time)",
    )  # fmt: skip
    what.add_argument(
        "--with", dest="companions", type=positive, metavar="PID", action="append", default=[],
        help="a process on this machine that works with the program (a load generator): paused like it, never a region",
    )  # fmt: skip
    return what


def declare_conduct(parser: argparse.ArgumentParser, until: str) -> argparse._ArgumentGroup:
    """Options that say how long and how; `until` is what ends it without --duration. Returns their group."""
    how = parser.add_argument_group("how long and how")
    how.add_argument("--duration", type=duration, metavar="T", help=f"stop after T (30s, 2m); default: {until}")
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
    how.add_argument(
        "--no-pauses", dest="pauses", action="store_false", help="shares and rates only: nothing is done to the program"
    )
    how.add_argument("--max-threads", type=positive, default=16384, metavar="N", help=argparse.SUPPRESS)
    how.add_argument("--max-ranges", type=positive, default=1 << 20, metavar="N", help=argparse.SUPPRESS)
    how.add_argument("--max-mappings", type=positive, default=65536, metavar="N", help=argparse.SUPPRESS)
    return how


def declare_output(parser: argparse.ArgumentParser) -> None:
    """Options that say what becomes of the profile."""
    out = parser.add_argument_group("output")
    out.add_argument("-o", "--output", type=Path, metavar="FILE", help="profile to write (default: a new name)")
    out.add_argument("--force", action="store_true", help="replace FILE")
    out.add_argument("-q", "--quiet", action="store_true", help="no progress and no table, just the file")


def common_options(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The fields of RecordingOptions; `name` of what is profiled goes into that of the profile."""
    from causal.windows import EngineOptions

    if args.period and not 50e-6 <= args.period <= 0.1:
        raise UsageError("--period must lie between 50us and 100ms", "leave it out, or try 1ms")
    return {
        "output": args.output or _default_output(name),
        "points": args.progress,
        "latencies": args.latency,
        "accept_many": args.accept_many,
        "unit": args.unit,
        "binaries": args.binary,
        "sources": args.scope,
        "only": args.only,
        "given": args.given,
        "speedups": args.speedups,
        "duration_s": args.duration,
        "period_ns": round(args.period * 1e9) if args.period else None,
        "overhead": args.overhead,
        "seed": args.seed,
        "force": args.force,
        "companions": tuple(dict.fromkeys(args.companions)),
        "pauses": args.pauses,
        "attribution": _attribution(args),
        "engine": EngineOptions(
            max_pause_ns=round(args.max_pause * 1e9),
            max_threads=args.max_threads,
            max_ranges=args.max_ranges,
            max_mappings=args.max_mappings,
        ),
    }


def _attribution(args: argparse.Namespace) -> Attribution:
    from causal.windows import Attribution

    if args.callers:
        return Attribution.CALL_SITE
    return Attribution.ANY_FRAME if args.inclusive else Attribution.INNERMOST


def _default_output(name: str) -> Path:
    return Path(f"causal-{os.path.basename(name)}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl")


def record_and_print(
    quiet: bool,
    record: Callable[[Callable[[Status], None], Callable[[Path], None], Callable[[str], None]], Outcome],
) -> Outcome:
    """Record with live progress, then print the table. `record` is told how to show progress, result and warnings."""
    from cli.live import LiveProgress

    with LiveProgress(quiet) as progress:

        def report(path: Path) -> None:
            progress.stop()
            if not quiet:
                _print_result(path)

        def warn(text: str) -> None:
            if not quiet:
                print_labelled("warning:", text)

        return record(progress.show, report, warn)


def _print_result(path: Path) -> None:
    from causal.profile import read_profile
    from cli.report import print_report

    print_report(read_profile(path))
    print(f"\nsee it again: causal-bpf report {shlex.quote(str(path))}", flush=True)


def announce_suggestions() -> None:
    """Say why it takes a while, where somebody is watching."""
    if sys.stderr.isatty():
        print("no progress point given: looking at the program for up to ten seconds ...", file=sys.stderr)


def refuse_without_point(found: Suggestion, before: str, after: Sequence[str], if_ended: str) -> int:
    """List what could be progress points, then raise UsageError with the command to type."""
    if found.status is not None and not found.points:
        raise UsageError("no progress point given, and the program ended before one could be suggested", if_ended)
    for kind, points in found.points.items():
        print(f"{_SUGGESTED[kind]} and their visits per second:", file=sys.stderr)
        for spec, rate in points:
            print(f"{rate:12,.1f}  -p {shlex.quote(spec)}", file=sys.stderr)
    if found.note:
        print(f"note: {found.note}", file=sys.stderr)
    point = shlex.quote(found.best) if found.best else "FUNCTION"
    raise UsageError(
        "no progress point given",
        f"choose what is visited once per unit of work: {before} -p {point} {shlex.join(after)}",
    )
