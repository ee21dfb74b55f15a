"""`causal-bpf explain TRACES`: the classes of runs or requests, and the functions that tell them apart."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from causal.errors import UsageError
from cli.arguments import fraction, positive
from cli.command import examples

if TYPE_CHECKING:
    from causal.drt.model import Explanation


class ExplainCommand:
    """Clusters traces by cost and explains the clusters by the functions called; needs no root."""

    name = "explain"
    help = (
        "Find out why some runs (or requests) of one program are slow: traces are clustered by how their cost grows\n"
        "with the input, and a tree over the functions they called tells the clusters apart.\n\n"
        "TRACES is CSV (id, size..., time or repeats T1..Tn, then a column of call counts per function), or JSON\n"
        'Lines for many functions: {"id": "a", "inputs": {"size": 9}, "outputs": {"time": 1.5}, "calls": {"f": 2}}.'
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "traces", metavar="TRACES", type=Path,
            help="a directory that `trace` wrote, or a file (.csv, .jsonl, .parquet)",
        )  # fmt: skip
        what = parser.add_argument_group("what to explain")
        what.add_argument("--output", metavar="COLUMN", help="the cost: time, peak_memory, faults... (default: time)")
        what.add_argument(
            "--inputs", metavar="LIST", type=_names, default=[],
            help="columns that are inputs, as size,width (default: all that stand before the time)",
        )  # fmt: skip
        what.add_argument(
            "--by-thread", action="store_true",
            help="tell apart which thread calls a function, by the names of threads (traces of `trace` know it)",
        )  # fmt: skip
        how = parser.add_argument_group("how")
        how.add_argument("--clusters", metavar="K", type=positive, help="number of classes (default: chosen)")
        how.add_argument(
            "--max-error", metavar="E", type=fraction,
            help="take as many classes as bring the typical error below E, as 5%% or 0.05",
        )  # fmt: skip
        how.add_argument(
            "--method", default="k-linear", choices=("k-linear", "spectral"),
            help="how to cluster (default: %(default)s)",
        )  # fmt: skip
        how.add_argument("--max-depth", metavar="D", type=positive, help="most questions on any way down the tree")
        how.add_argument(
            "--tree", default="greedy", choices=("greedy", "optimal"),
            help="optimal: the smallest tree, by exact search (default: %(default)s)",
        )  # fmt: skip
        how.add_argument("--seed", type=int, default=0, help="of the random starts (default: %(default)s)")
        out = parser.add_argument_group("output").add_mutually_exclusive_group()
        out.add_argument("--html", metavar="FILE", type=Path, help="write one self-contained page with a scatter plot")
        out.add_argument("--json", action="store_true", help="one JSON object on stdout")
        out.add_argument("--dot", action="store_true", help="the tree for Graphviz on stdout")
        parser.add_argument("--force", action="store_true", help="replace the file of --html")
        parser.epilog = examples(
            ("causal-bpf explain traces.csv", "classes and tree on the terminal"),
            ("causal-bpf explain traces.csv --html why.html", "the same with a plot of all traces"),
            ("causal-bpf explain traces.csv --output peak_memory", "explain memory instead of time"),
            ("causal-bpf explain traces --by-thread", "is it a matter of which thread does the work?"),
            ("causal-bpf explain traces.csv --tree optimal", "the smallest tree, where functions work together"),
            ("causal-bpf explain traces.jsonl --dot | dot -Tsvg > tree.svg", "a picture of the tree"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Explains and prints; CausalError for traces that cannot be explained."""
        if args.html is not None and args.html.exists() and not args.force:
            raise UsageError(f"{args.html} exists", "choose another name, or add --force to replace it")
        from causal.drt.model import Options, explain
        from causal.drt.reading import read_traces
        from causal.tracing.journal import traces_in

        traces = read_traces(traces_in(args.traces), args.inputs, args.output, args.by_thread)
        options = Options(
            clusters=args.clusters, method=args.method, max_depth=args.max_depth, tree=args.tree,
            max_error=args.max_error, seed=args.seed,
        )  # fmt: skip
        _print(explain(traces, options), args)
        return 0


def _print(explanation: Explanation, args: argparse.Namespace) -> None:
    if args.json or args.dot:
        for warning in explanation.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    if args.json:
        from causal.report.drt_json import write_json

        write_json(explanation, sys.stdout)
    elif args.dot:
        from causal.report.drt_dot import write_dot

        write_dot(explanation, sys.stdout)
    elif args.html is not None:
        from causal.report.drt_html import write_html

        with args.html.open("w", encoding="utf-8") as file:
            write_html(explanation, file)
        print(f"written: {args.html}")
    else:
        _print_text(explanation)


def _print_text(explanation: Explanation) -> None:
    from rich.console import Console

    from causal.report.drt_text import ExplanationReporter

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process here with exit code 1; what `| head` means is for the caller to say.
            raise

    ExplanationReporter(Terminal(markup=False, emoji=False, highlight=False)).render(explanation)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of columns such as size,width")
    return names
