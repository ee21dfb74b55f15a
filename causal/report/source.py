"""The lines of source around a region, for reports made where the source is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_AROUND = 3
# A file larger than this is no source that anybody reads.
_LARGEST_FILE = 8 * 1024 * 1024
_LONGEST_LINE = 400
_LINE_REGION = re.compile(r"(?P<path>.+):(?P<line>[1-9]\d{0,6})")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of a file; `marked` is the number of the one that is meant."""

    path: str
    first: int
    marked: int
    lines: tuple[str, ...]


def excerpt(region: str, directories: Iterable[Path]) -> Excerpt | None:
    """The source around a region called `path:line`; None for other regions, and where the file cannot be read.

    Relative paths are looked up in each of the directories, absolute ones as they are.
    """
    match = _LINE_REGION.fullmatch(region)
    if match is None:
        return None
    marked = int(match["line"])
    for directory in directories:
        lines = _lines(directory / match["path"])
        if lines is not None and marked <= len(lines):
            first = max(1, marked - _AROUND)
            shown = tuple(line[:_LONGEST_LINE] for line in lines[first - 1 : marked + _AROUND])
            return Excerpt(match["path"], first, marked, shown)
    return None


def _lines(path: Path) -> list[str] | None:
    # Anything can be in a profile: never wait for a pipe, never read a device.
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
