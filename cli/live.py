"""Live progress on the terminal while a recording runs; on anything else than a terminal it is quiet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli.redrawn import Redrawn, is_shown

if TYPE_CHECKING:
    from causal.experiment import Status

_REDRAW_S = 0.2


class LiveProgress(Redrawn[Live]):
    """A few lines on stderr, redrawn in place: time left, current experiment, visit rates, best regions so far."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        super().__init__(Live(console=console, auto_refresh=False, transient=True) if is_shown(quiet) else None)
        self._drawn = 0.0

    def show(self, status: Status) -> None:
        """Draw, at most a few times a second."""
        if self._drawing and time.monotonic() - self._drawn >= _REDRAW_S:
            self._drawn = time.monotonic()
            self._drawing.update(render(status), refresh=True)


def render(status: Status) -> Group:
    """The lines for one status."""
    left = "" if status.duration_s is None else f"  {max(status.duration_s - status.elapsed_s, 0):.0f} s left"
    lines = [
        Text(f"profiling {status.elapsed_s:.0f} s{left}  {status.pairs} experiments  Ctrl-C ends it", style="bold"),
        Text(f"  now       {status.activity}", overflow="ellipsis", no_wrap=True),
    ]
    for name, rate in status.rates.items():
        lines.append(Text(f"  {rate:9.1f} visits/s of {name}", overflow="ellipsis", no_wrap=True))
    for region, gain, pairs in status.best[:3]:
        lines.append(
            Text(
                f"  {gain:+9.0%} per 100 % of {region} (rough, {pairs})", style="dim", overflow="ellipsis", no_wrap=True
            )
        )
    return Group(*lines)
