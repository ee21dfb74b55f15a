"""Names of functions, files and lines as they can be shown: short enough, and without what a terminal would obey."""

from __future__ import annotations

from rich.cells import cell_len


def printable(name: str, encoding: str) -> str:
    """The name with control characters, and what `encoding` lacks, written as escapes."""
    visible = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in name)
    try:
        return visible.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return visible.encode("ascii", "backslashreplace").decode("ascii")


def elide_middle(name: str, width: int, mark: str = "\N{HORIZONTAL ELLIPSIS}") -> str:
    """The name cut to `width` terminal cells with its middle left out: C++ names differ at both ends."""
    if cell_len(name) <= width:
        return name
    room = width - cell_len(mark)
    if room <= 0:
        return mark[:width]
    head, tail = room - room // 2, room // 2
    return _cells(name, head) + mark + _cells(name[::-1], tail)[::-1]


def _cells(text: str, width: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:index]
    return text
