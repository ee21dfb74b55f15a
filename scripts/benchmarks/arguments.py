"""Options that benchmarks with a profiler and a report have in common."""

import argparse
from pathlib import Path

from .cases import ROOT

PROFILER = str(ROOT / ".venv" / "bin" / "causal-bpf")


def declare_output(parser: argparse.ArgumentParser) -> None:
    """What is printed and written, and by which profiler it is measured."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    parser.add_argument("--markdown", type=Path, metavar="FILE",
                        help="also write a Markdown report; text above its marker line is kept")  # fmt: skip
    parser.add_argument("--causal-bpf", type=str.split, metavar="CMD", help="the profiler (default .venv's)",
                        default=[PROFILER])  # fmt: skip
