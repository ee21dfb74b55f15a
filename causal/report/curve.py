"""A curve of gains in a few characters."""

from __future__ import annotations

from collections.abc import Sequence

from causal.analysis.results import PointResult

BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII = "_.-~=+*#"


def sparkline(points: Sequence[PointResult], scale: float, width: int, ascii_only: bool = False) -> str:
    """Gains against virtual speedups from the lowest level to the highest in at most `width` characters.

    `scale` is the gain drawn as the full height, the same for all curves of a table, so that they can be compared.
    Losses are drawn as `v`, levels without a number as a space. Neighbouring levels are averaged where there are more
    of them than characters.
    """
    marks = ASCII if ascii_only else BLOCKS
    gains = [point.program_speedup for point in points]
    if scale <= 0 or all(gain is None for gain in gains):
        return ""
    cells = min(width, len(gains))
    drawn = []
    for cell in range(cells):
        some = gains[cell * len(gains) // cells : (cell + 1) * len(gains) // cells]
        part = [gain for gain in some if gain is not None]
        if not part:
            drawn.append(" ")
            continue
        height = sum(part) / len(part) / scale
        # Half a step below zero is noise, not a loss.
        if height < -0.5 / len(marks):
            drawn.append("v")
        else:
            drawn.append(marks[max(0, min(len(marks) - 1, round(height * (len(marks) - 1))))])
    return "".join(drawn)
