"""The options of `causal-bpf trace`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.arguments import duration, fraction, positive
from cli.command import examples

EXAMPLES = examples(
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
    (
        "causal-bpf trace -o traces --import callgrind.out.* --inputs sizes.csv",
        "traces that valgrind collected",
    ),
    (
        "sudo causal-bpf trace -o traces --pid 4711 --begin handle --input size=arg2 --duration 30s",
        "one trace per request of a running server",
    ),
    (
        "sudo causal-bpf trace -o traces --pid 4711 --begin accept_job --part run_job --end finish_job "
        "--key job --input size@run_job",
        "requests that other threads take over, known by their parameter `job`",
    ),
    (
        "causal-bpf explain traces --json | sudo causal-bpf trace --callers-of - --inputs 'img/*.png' -- "
        "./convert {} /dev/null",
        "who calls the functions that explain the difference?",
    ),
)


def declare_options(parser: argparse.ArgumentParser) -> None:
    """All of them, and the examples."""
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="directory for the traces")
    parser.add_argument("--force", action="store_true", help="start again, replacing the traces in DIR")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
    _declare_inputs(parser)
    _declare_time(parser)
    _declare_calls(parser)
    _declare_imports(parser)
    _declare_requests(parser)
    _declare_callers(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD {}", help="the program to trace")
    parser.epilog = EXAMPLES


def _declare_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--inputs", metavar="WHAT", nargs="+", action="extend", default=[],
        help="a pattern such as 'img/*.png' (the input variable is size_bytes); @FILE, a list with one input per "
        "line; or FILE.csv, whose first column replaces {} and column NAME replaces {NAME}, and whose numeric "
        "columns are the input variables",
    )  # fmt: skip
    group.add_argument("--stdin", action="store_true", help="feed the input file to the command's standard input")
    group.add_argument("--timeout", metavar="T", type=duration, help="end runs that take longer (default: never)")


def _declare_time(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time")
    group.add_argument("--repeat", metavar="N", type=positive, default=5, help="timed runs per input (default: 5)")
    group.add_argument(
        "--measure", default="wall", choices=("wall", "cpu", "instructions"),
        help="what is explained by default; times are recorded always, instructions (in user mode) when asked for, "
        "where the CPU counts them (default: %(default)s)",
    )  # fmt: skip
    group.add_argument("--seed", type=int, default=0, help="of the random order of runs (default: %(default)s)")


def _declare_calls(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("calls")
    group.add_argument(
        "-b", "--binary", metavar="PATTERN", action="append", default=[],
        help="files whose functions are counted, as libfoo or '!libbar' (default: the main executable)",
    )  # fmt: skip
    group.add_argument(
        "--function", metavar="PATTERN", action="append", default=[],
        help="count only these functions (names or globs; default: all)",
    )  # fmt: skip
    group.add_argument("--max-functions", metavar="N", type=positive, default=50_000, help=argparse.SUPPRESS)
    group.add_argument(
        "--max-slowdown", metavar="X", type=float, default=20.0,
        help="drop the hottest functions where counting makes a run slower than X times (and the whole counting "
        "than a minute; default: %(default)g; 0: never)",
    )  # fmt: skip


def _declare_imports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traces of other profilers, instead of a command")
    group.add_argument(
        "--import", dest="imported", metavar="FILE", type=Path, nargs="+", default=[],
        help="files (or directories of them) of callgrind, cProfile or `perf script`, or CSV; --inputs TABLE.csv "
        "names the files in its first column and their input variables in the next ones",
    )  # fmt: skip


def _declare_requests(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests of a live process, instead of a command")
    group.add_argument("--pid", metavar="PID", type=positive, help="trace each request of this process")
    group.add_argument("--begin", metavar="SPEC", help="function that begins a request: FUNCTION or FUNCTION@LIBRARY")
    group.add_argument("--end", metavar="SPEC", help="function that ends it (default: where the first one returns)")
    group.add_argument(
        "--input", metavar="[NAME=]ARG", action="append", default=[],
        help="input variable: an argument of the begin function by its position, as size=arg2, or by its name "
        "(where there is debug information), as length, this.size or request.body.size; length@parse for one of a "
        "function called later in the request; string-length:text for the length of a string; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--key", metavar="ARG",
        help="for asynchronous programs, where a request moves between threads: the argument (argN or a name) of "
        "the begin and end functions that tells requests apart, such as a pointer to the request; needs --end",
    )  # fmt: skip
    group.add_argument(
        "--part", metavar="SPEC", action="append", default=[],
        help="with --key: a function that works on the request in this argument; until it returns, the calls and "
        "the CPU time of its thread belong to the request, as they do in the begin function; repeatable",
    )  # fmt: skip
    group.add_argument("--duration", metavar="T", type=duration, default=10.0, help="how long (default: 10s)")
    group.add_argument(
        "--dry-run", metavar="T", type=duration, default=1.0,
        help="how long to look for functions that are too hot, before (default: 1s)",
    )  # fmt: skip
    group.add_argument("--requests", metavar="N", type=positive, help="stop after so many")
    group.add_argument(
        "--max-overhead", metavar="X", type=fraction, default=0.1,
        help="share of a CPU that counting may cost; the hottest functions are dropped (default: 10%%)",
    )  # fmt: skip


def _declare_callers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("callers, after an explanation")
    group.add_argument(
        "--callers-of", metavar="TREE",
        help="say who calls the functions in a tree that `explain --json` wrote (- for standard input): runs the "
        "command once more per input, or watches --pid for --duration, with stacks; -o DIR keeps all of it in "
        "DIR/callers.json",
    )  # fmt: skip
