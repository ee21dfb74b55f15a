"""A bar with the time left while traces are collected; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from causal.tracing.runs import Status


class TraceProgress:
    """One line on stderr, redrawn in place."""

    def __init__(self, quiet: bool) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if not quiet and sys.stderr.isatty():
            self._progress = Progress(
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

    def __enter__(self) -> TraceProgress:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line away; may be called twice."""
        if self._progress:
            self._progress.stop()
            self._progress = None

    def show(self, status: Status) -> None:
        """Draw what is done."""
        if self._progress is None:
            return
        if self._task is None:
            self._task = self._progress.add_task(status.phase, total=status.total_s)
        self._progress.update(
            self._task, description=status.phase, completed=status.done_s, total=status.total_s, refresh=True
        )
