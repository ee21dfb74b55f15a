"""Where the kernel's search for a code range begins: page by page of each mapping, so that it takes few steps.

Use:

    pages = RangePages(memory)                # RANGE_PAGE, the `range_pages` of bpf/regions.h
    row["pages"] = pages.find(table.ranges, (low, high), mapping.offset, mapping.end - mapping.start)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# As in bpf/regions.h: the ranges of a page are ranges[lo:hi].
RANGE_PAGE = np.dtype([("lo", "<u4"), ("hi", "<u4")])
PAGE_BITS = 8
# Fewer are found as fast without.
_WORTH_PAGES = 8


class RangePages:
    """Pages of a mapping are written once and stay."""

    def __init__(self, memory: NDArray[np.void]) -> None:
        self._memory = memory
        self._known: dict[tuple[int, int, int, int], int] = {}
        self._size = 1  # 0 is "no pages"

    def find(self, ranges: NDArray[np.void], among: tuple[int, int], offset: int, size: int) -> int:
        """Where the pages of a mapping begin that shows `size` bytes of a file from `offset` on, whose ranges are
        ranges[low:high]; 0 where there are none: too few ranges, or no room."""
        low, high = among
        count = (size >> PAGE_BITS) + 1
        if high - low < _WORTH_PAGES:
            return 0
        key = (low, high, offset, size)
        if key not in self._known:
            if self._size + count > len(self._memory):
                return 0
            starts = np.uint64(offset) + (np.arange(count, dtype=np.uint64) << np.uint64(PAGE_BITS))
            part = self._memory[self._size : self._size + count]
            ends = starts + np.uint64(1 << PAGE_BITS)
            part["lo"] = low + np.searchsorted(ranges["end"][low:high], starts, side="right")
            part["hi"] = low + np.searchsorted(ranges["start"][low:high], ends, side="left")
            self._known[key] = self._size
            self._size += count
        return self._known[key]
