"""The list of regions that `--list-regions` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from causal.report.symbols import elide_middle, printable
from causal.survey import Share, Survey

_SHOWN = 40
_PLACES = 12
# Less than this is not worth a line.
_NEGLIGIBLE = 0.001
_NOTABLE_WAIT = 0.01


def print_survey(found: Survey, console: Console | None = None) -> None:
    """Regions with their shares, then where the time is whatever the scope, and how to widen the scope."""
    console = console or Console(highlight=False)
    if not found.samples:
        console.print(Text("The program used no CPU time while it was looked at."))
        return
    _print(console, found.unit, [share for share in found.regions if _is_notable(share)], _SHOWN)
    console.print(Text(f"{found.in_scope:.0%} of {found.samples:,} samples are in scope."))
    outside = [share for share in found.places if not share.in_scope and _is_notable(share)]
    if outside:
        console.print()
        _print(console, "out of scope", outside, _PLACES)
        options = "-s FILE or -b BINARY" if found.unit in ("line", "file") else "-b BINARY"
        told = f"Their time counts for the innermost caller in scope, if there is one. Take them in with {options}."
        console.print(Text(told))


def _is_notable(share: Share) -> bool:
    return share.share >= _NEGLIGIBLE or share.waits >= _NOTABLE_WAIT


def _print(console: Console, title: str, shares: Sequence[Share], limit: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    titles = (title, "function") if any(share.function for share in shares) else (title,)
    for header in titles:
        table.add_column(header, no_wrap=True)
    table.add_column("CPU", justify="right", no_wrap=True)
    waits = any(share.waits >= _NOTABLE_WAIT for share in shares)
    if waits:
        table.add_column("waits", justify="right", no_wrap=True)
    room = max((console.width - 12 - 8 * waits) // len(titles), 8)
    for share in shares[:limit]:
        names = [share.name, share.function][: len(titles)]
        shown = [elide_middle(printable(name, console.encoding), room) for name in names]
        numbers = [f"{share.share:.1%}", f"{share.waits:.0%}"][: 1 + waits]
        table.add_row(*(Text(name) for name in shown), *(Text(number) for number in numbers))
    console.print(table)
    rest = shares[limit:]
    if rest:
        console.print(Text(f"and {len(rest):,} more with {sum(share.share for share in rest):.1%} together"))
