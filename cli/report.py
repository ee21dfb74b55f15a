"""`causal-bpf report PROFILE`: the table of a recorded profile, or the same as JSON."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from causal.profile import Profile, read_profile
from cli.command import examples


class ReportCommand:
    """Shows what a profile says; needs neither root nor the machine on which it was recorded."""

    name = "report"
    help = "Show what a recorded profile says: which code is worth making faster, and by how much."

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("profile", metavar="PROFILE", help="the file written by `causal-bpf run -o FILE`")
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the table")
        parser.epilog = examples(
            ("causal-bpf report profile.jsonl", "the table that ended the run"),
            ("causal-bpf report profile.jsonl --json", "all numbers, for programs; speedups are fractions"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints the report; CausalError when the file is not a readable profile."""
        profile = read_profile(args.profile)
        if args.json:
            print_json(profile, sys.stdout)
        else:
            print_report(profile, sys.stdout)
        return 0


def print_report(profile: Profile, file: TextIO | None = None) -> None:
    """Prints the table and the diagnosis, in colour only on a terminal; to stdout by default."""
    from rich.console import Console

    from causal.analysis import analyse
    from causal.report.table import TableReporter

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process here with exit code 1; what `| head` means is for the caller to say.
            raise

    console = Terminal(file=file, markup=False, emoji=False, highlight=False)
    TableReporter(console).render(analyse(profile))


def print_json(profile: Profile, file: TextIO) -> None:
    """Prints the JSON form of the report."""
    from causal.analysis import analyse
    from causal.report.json import JsonReporter

    JsonReporter(file).render(analyse(profile))
