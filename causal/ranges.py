"""Arithmetic of address ranges: addresses become file offsets, like neighbours are joined, overlaps are cut."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from causal.symbols.elf import Binary

Ranges = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint32]]


def in_file(places: NDArray[np.void], region_ids: NDArray[np.uint32], binary: Binary) -> Ranges:
    """Addresses become file offsets; what is in no executable segment is dropped. Sorted by start."""
    parts = [(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))]
    for segment in binary.segments:
        if not segment.executable:
            continue
        low, high = np.uint64(segment.vaddr), np.uint64(segment.vaddr + segment.filesz)
        inside = (places["end"] > low) & (places["start"] < high)
        start = np.maximum(places["start"][inside], low) - low + np.uint64(segment.offset)
        end = np.minimum(places["end"][inside], high) - low + np.uint64(segment.offset)
        parts.append((start, end, region_ids[inside]))
    start, end, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order], ids[order]


def joined(start: NDArray[np.uint64], end: NDArray[np.uint64], ids: NDArray[np.uint32]) -> Ranges:
    """Neighbours of one region become one range; what two segments show twice is kept once."""
    if not len(start):
        return start, end, ids
    before = np.maximum.accumulate(end)
    start = np.maximum(start, np.append(np.uint64(0), before[:-1]))
    kept = start < end
    start, end, ids = start[kept], end[kept], ids[kept]
    fresh = np.append(True, (start[1:] != end[:-1]) | (ids[1:] != ids[:-1]))
    first = np.flatnonzero(fresh)
    return start[first], end[np.append(first[1:], len(start)) - 1], ids[first]


def flatten(
    start: NDArray[np.uint64],
    end: NDArray[np.uint64],
    region_ids: NDArray[np.uint32],
    rank: NDArray[np.int64] | None = None,
) -> Ranges:
    """Cut overlapping ranges (sorted by start) into disjoint ones.

    A byte goes to the range around it with the lowest `rank`, by default to the shortest.
    """
    if len(start) < 2 or bool(np.all(end[:-1] <= start[1:])):
        return start, end, region_ids
    pieces: list[tuple[int, int, int]] = []
    # A group ends where no earlier range reaches beyond the next start.
    breaks = np.flatnonzero(np.maximum.accumulate(end)[:-1] <= start[1:]) + 1
    bounds = [0, *breaks.tolist(), len(start)]
    starts, ends, ids = start.tolist(), end.tolist(), region_ids.tolist()
    ranks = (end - start if rank is None else rank).tolist()
    for low, high in pairwise(bounds):
        if high - low == 1:
            pieces.append((starts[low], ends[low], ids[low]))
        else:
            pieces.extend(_disjoint(starts[low:high], ends[low:high], ids[low:high], ranks[low:high]))
    cut = np.array(pieces, np.uint64)
    return cut[:, 0], cut[:, 1], cut[:, 2].astype(np.uint32)


def _disjoint(starts: list[int], ends: list[int], ids: list[int], ranks: list[int]) -> Iterator[tuple[int, int, int]]:
    """Disjoint pieces of one group of overlapping ranges; neighbouring pieces of a region are joined."""
    edges = sorted({*starts, *ends})
    active: list[tuple[int, int, int]] = []  # (rank, end, region), the lowest first
    upcoming = 0
    piece: tuple[int, int, int] | None = None
    for low, high in pairwise(edges):
        while upcoming < len(starts) and starts[upcoming] <= low:
            entry = (ranks[upcoming], ends[upcoming], ids[upcoming])
            heapq.heappush(active, entry)
            upcoming += 1
        while active[0][1] <= low:
            heapq.heappop(active)
        region = active[0][2]
        if piece is not None and piece[2] == region:
            piece = (piece[0], high, region)
        else:
            if piece is not None:
                yield piece
            piece = (low, high, region)
    if piece is not None:
        yield piece
