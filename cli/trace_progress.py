"""A bar with the time left while traces are collected; nothing where stderr is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cli.redrawn import Redrawn, is_shown

if TYPE_CHECKING:
    from causal.tracing.runs import Status


class TraceProgress(Redrawn[Progress]):
    """One line on stderr, redrawn in place."""

    def __init__(self, quiet: bool) -> None:
        self._task: TaskID | None = None
        progress = None
        if is_shown(quiet):
            progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("left; Ctrl-C stops, the same command goes on", markup=False),
                console=Console(stderr=True, markup=False, emoji=False, highlight=False),
                transient=True,
                # A thread that draws would take time from what is timed.
                auto_refresh=False,
            )
        super().__init__(progress)

    def show(self, status: Status) -> None:
        """Draw what is done."""
        if self._drawing is None:
            return
        if self._task is None:
            self._task = self._drawing.add_task(status.phase, total=status.total_s)
        self._drawing.update(
            self._task, description=status.phase, completed=status.done_s, total=status.total_s, refresh=True
        )
