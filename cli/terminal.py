"""The console that reports are printed to: colours only on a terminal, names never taken as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def terminal(file: TextIO | None = None) -> Console:
    """A rich Console on `file` (default: stdout) whose broken pipes are for the caller to deal with."""
    # rich takes a while to import, and --help must not wait for it.
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process here with exit code 1; what `| head` means is for the caller to say.
            raise

    return Terminal(file=file, markup=False, emoji=False, highlight=False)
