"""The shape of a verb of the command line, and what all verbs share.

A verb is a class with a text, a method that declares its options, and a method that does the work:

    class ReportCommand:
        name = "report"
        help = "Show a recorded profile."

        def prepare_parser(self, parser): ...
        def run(self, args): ...

`cli.main` imports a verb's module only when that verb is asked for. Modules of verbs import what is slow
(numpy, statsmodels, bcc) inside `run`, so that `--help` stays instant.
"""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """One verb. `help` is the description at the top of its own --help."""

    name: str
    help: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options, and set `parser.epilog = examples(...)`."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code; raises CausalError for what the user can mend."""


def examples(*lines: tuple[str, str]) -> str:
    """The end of a help text: what one may type, and what it does."""
    text = "\n\n".join(f"  {command}\n      {meaning}" for command, meaning in lines)
    return f"examples:\n{text}"
