"""Many regions are tried, and the luckiest of them always looks good: p-values corrected for that."""

from __future__ import annotations

from collections.abc import Sequence


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts p-values so that calling those below q significant makes a share of at most q of the calls wrong.

    None (no estimate) stays None but counts as a test, for the region was tried. Benjamini & Hochberg, JRSS B 57, 1995.
    """
    tests = len(p_values)
    ranked = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * tests
    smallest = 1.0
    for rank in range(len(ranked), 0, -1):
        p, index = ranked[rank - 1]
        smallest = min(smallest, p * tests / rank)
        adjusted[index] = smallest
    return adjusted
