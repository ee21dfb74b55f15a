"""What is redrawn in place on stderr while something goes on, and taken away at the end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar


class Drawing(Protocol):
    """What rich's Live and Progress have in common."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


DrawingT = TypeVar("DrawingT", bound=Drawing)


class Redrawn(Generic[DrawingT]):
    """Shows a drawing while it is entered; None where there is nothing to show it on."""

    def __init__(self, drawing: DrawingT | None) -> None:
        self._drawing = drawing

    def __enter__(self) -> Self:
        if self._drawing:
            self._drawing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take it away; may be called twice."""
        if self._drawing:
            self._drawing.stop()
            self._drawing = None


def is_shown(quiet: bool) -> bool:
    """Progress belongs on a terminal, and nowhere else."""
    return not quiet and sys.stderr.isatty()
