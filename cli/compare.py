"""`causal-bpf compare BEFORE AFTER`: did the change do what the profile predicted?"""

from __future__ import annotations

import argparse
import sys

from cli.arguments import percent
from cli.command import examples

EXIT_REGRESSION = 3


class CompareCommand:
    """Compares two profiles of a program; needs neither root nor the machine on which they were recorded."""

    name = "compare"
    help = (
        "Compare the profile of a program before a change with one after it: what became faster, by how much the\n"
        "program gained, and whether that is what the first profile predicted."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("before", metavar="BEFORE", help="the profile of the program as it was")
        parser.add_argument("after", metavar="AFTER", help="the profile of the changed program")
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the text")
        parser.add_argument(
            "--fail-on-regression", action="store_true",
            help=f"exit with code {EXIT_REGRESSION} when a progress point became slower",
        )  # fmt: skip
        parser.add_argument(
            "--tolerance", type=percent, default=0.01, metavar="P",
            help="smallest change of the time per visit that counts, as 2%% (default: 1%%)",
        )  # fmt: skip
        parser.epilog = examples(
            ("causal-bpf compare before.jsonl after.jsonl", "predicted and observed, side by side"),
            ("causal-bpf compare main.jsonl branch.jsonl --fail-on-regression --tolerance 3%", "in CI: exit code 3"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints the comparison; CausalError when a file is not a readable profile."""
        from causal.analysis.comparison import compare_profiles
        from causal.reading import read_any

        comparison = compare_profiles(read_any(args.before), read_any(args.after), args.tolerance)
        if args.json:
            from causal.report.comparison import write_json

            write_json(comparison, sys.stdout)
        else:
            from causal.report.comparison import ComparisonReporter
            from cli.terminal import terminal

            ComparisonReporter(terminal(sys.stdout)).render(comparison)
        return EXIT_REGRESSION if args.fail_on_regression and comparison.regressed else 0
