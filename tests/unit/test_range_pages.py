"""Where the kernel begins to search for a range."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from causal.range_pages import PAGE_BITS, RANGE_PAGE, RangePages
from causal.regions import RANGE_DTYPE


def made(gaps_and_sizes):
    ranges = np.zeros(len(gaps_and_sizes), RANGE_DTYPE)
    at = 0
    for row, (gap, size) in zip(ranges, gaps_and_sizes, strict=True):
        row["start"], row["end"] = at + gap, at + gap + size
        at += gap + size
    ranges["region"] = np.arange(1, len(ranges) + 1)
    return ranges


def search(ranges, low, high, offset):
    hits = [int(r["region"]) for r in ranges[low:high] if r["start"] <= offset < r["end"]]
    return hits[0] if hits else 0


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 700)), min_size=8, max_size=40),
    st.integers(0, 8),
    st.integers(0, 2000),
)
def test_a_page_holds_what_a_search_of_all_would_find(gaps_and_sizes, low, offset):
    ranges = made(gaps_and_sizes)
    high = len(ranges)
    size = max(int(ranges["end"][-1]) - offset, 1) + 50
    memory = np.zeros(1000, RANGE_PAGE)
    first = RangePages(memory).find(ranges, (low, high), offset, size)
    if high - low < 8:
        assert first == 0
        return
    for at in range(offset, offset + size, 7):
        page = memory[first + (at - offset >> PAGE_BITS)]
        assert search(ranges, int(page["lo"]), int(page["hi"]), at) == search(ranges, low, high, at)


def test_each_mapping_once_and_none_without_room():
    ranges = made([(0, 100)] * 20)
    pages = RangePages(np.zeros(20, RANGE_PAGE))
    first = pages.find(ranges, (0, 20), 0, 2000)
    assert first == 1 and pages.find(ranges, (0, 20), 0, 2000) == first
    other = pages.find(ranges, (0, 20), 512, 2000)
    assert other > first
    assert pages.find(ranges, (0, 20), 1024, 2000) == 0 and pages.find(ranges, (0, 20), 0, 1 << 46) == 0
    assert pages.find(ranges, (0, 20), 512, 2000) == other
