"""Lines on stderr that begin with what they are: error, hint, warning."""

from __future__ import annotations

import contextlib
import os
import sys

_COLOURS = {"error:": "31", "hint:": "36", "warning:": "33"}


def print_labelled(label: str, text: str) -> None:
    """Print one line, whatever is in the text: names come from files and may hold line ends or terminal commands."""
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        label = f"\x1b[1;{_COLOURS[label]}m{label}\x1b[0m"
    with contextlib.suppress(OSError):  # nobody is listening any more; the exit code still tells
        sys.stderr.write(f"{label} {shown}\n")
        sys.stderr.flush()
