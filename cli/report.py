"""`causal-bpf report PROFILE`: the table of recorded profiles, or a web page, JSON, COZ's file or stacks."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from causal.errors import CausalError, UsageError
from causal.profile import Profile
from cli.command import examples

_COZ_MINIMUM_POINTS = 10


class ReportCommand:
    """Shows what profiles say; needs neither root nor the machine on which they were recorded."""

    name = "report"
    help = (
        "Show what a recorded profile says: which code is worth making faster, and by how much. Several profiles of\n"
        "one program are combined. Files written by COZ are read as well."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument(
            "profiles", metavar="PROFILE", nargs="+", help="a file written by `causal-bpf run -o FILE`, or by COZ"
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the table")
        form.add_argument("--html", type=Path, metavar="FILE", help="a web page with all curves, that needs no network")
        form.add_argument("--coz", type=Path, metavar="FILE", help="a file for COZ's viewer")
        form.add_argument("--folded", action="store_true", help="samples as collapsed stacks, for flame graphs")
        parser.epilog = examples(
            ("causal-bpf report profile.jsonl", "the table that ended the run"),
            ("causal-bpf report profile.jsonl --html profile.html", "curves, every experiment, and the timeline"),
            ("causal-bpf report monday.jsonl tuesday.jsonl", "two runs of one program as one"),
            ("causal-bpf report profile.coz", "what COZ recorded, with intervals and verdicts"),
            ("causal-bpf report profile.jsonl --json", "all numbers, for programs; speedups are fractions"),
            ("causal-bpf report profile.jsonl --folded | flamegraph.pl > graph.svg", "where the samples are"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints or writes the report; CausalError when a file is not a readable profile."""
        for target in (args.html, args.coz):
            _refuse_to_overwrite(target, args.profiles)
        # Millions of small objects and no cycles among them: looking for cycles would take a fifth of the time.
        gc.disable()
        profile = read_profiles(args.profiles)
        if args.json:
            print_json(profile, sys.stdout)
        elif args.html is not None:
            write_html(profile, args.html)
        elif args.coz is not None:
            _write_coz(profile, args.coz)
        elif args.folded:
            from causal.report.folded import FoldedReporter

            FoldedReporter(sys.stdout).render(profile)
        else:
            print_report(profile, sys.stdout)
        return 0


def read_profiles(paths: Sequence[str]) -> Profile:
    """The profiles of one program, in whatever form, as one."""
    from causal.combining import combine
    from causal.reading import read_any

    seen: list[str] = []
    for path in paths:
        if any(os.path.exists(path) and os.path.samefile(path, other) for other in seen):
            raise UsageError(f"{path} is given twice", "its experiments would count twice: give each profile once")
        seen.append(path)
    return combine([read_any(path) for path in paths])


def print_report(profile: Profile, file: TextIO | None = None) -> None:
    """Prints the table and the diagnosis, in colour only on a terminal; to stdout by default."""
    from causal.analysis import analyse
    from causal.report.table import TableReporter
    from cli.terminal import terminal

    TableReporter(terminal(file)).render(analyse(profile))


def print_json(profile: Profile, file: TextIO) -> None:
    """Prints the JSON form of the report."""
    from causal.analysis import analyse
    from causal.report.json import JsonReporter

    JsonReporter(file).render(analyse(profile))


def write_html(profile: Profile, path: Path) -> None:
    """Writes the report as a web page and says so."""
    from causal.analysis import analyse
    from causal.report.html import HtmlReporter

    analysis = analyse(profile)
    with _output(path) as out:
        HtmlReporter(out).render(analysis, profile)
    print(f"written: {path}")


def _write_coz(profile: Profile, path: Path) -> None:
    from causal.report.coz import CozReporter

    with _output(path) as out:
        CozReporter(out).render(profile)
    print(f"written: {path}; `coz plot` opens it{_fewest_points(profile)}")


def _fewest_points(profile: Profile) -> str:
    # Its viewer hides curves of fewer points than its slider says, and that starts at 10.
    levels = {window.level for window in profile.windows if window.arm == "treated" and window.void is None}
    points = 1 + len(levels)
    return f" (set its Minimum Points to {points})" if levels and points < _COZ_MINIMUM_POINTS else ""


@contextlib.contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            yield out
    except OSError as error:
        raise CausalError(f"cannot write {path}: {error.strerror}", "choose a file in a writable directory") from error


def _refuse_to_overwrite(target: Path | None, profiles: Sequence[str]) -> None:
    # A report can be made again, a recording cannot.
    if target is not None and any(
        os.path.exists(profile) and target.exists() and os.path.samefile(target, profile) for profile in profiles
    ):
        raise UsageError(f"{target} is the profile itself", "give the report another name")
