"""From call-frame information to a sorted table: address -> rule.

    table = build_table(data, read_image(data))
    table.rows                                     # ROW_DTYPE, sorted by pc, the first one for pc 0

Any bytes give a table: what makes no sense is left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from causal.unwind.entries import FUNCTION_DTYPE, read_entries
from causal.unwind.image import Bytes, Image, frames_of
from causal.unwind.rules import ROW_DTYPE

# Between functions lie a few bytes of padding that nobody executes: only longer gaps get a row of their own.
_GAP = 16
_REACH = 1 << 32


@dataclass(frozen=True)
class Table:
    """`functions` the entries used, `lost` the entries that made no sense."""

    rows: NDArray[np.void]
    functions: int
    lost: int


def build_table(data: Bytes, image: Image) -> Table:
    """The table of a whole file. Without information it has one row. Raises NoImage when there is no memory for it."""
    known = np.zeros(0, FUNCTION_DTYPE)
    rows, lost = [], 0
    for frames in frames_of(data, image):
        entries = read_entries(frames, image, known)
        rows.append(entries.rows)
        known = np.concatenate([known, entries.functions])
        known = known[np.argsort(known["start"], kind="stable")]
        lost += entries.lost
    return Table(_merged(rows, known), len(known), lost)


def _merged(parts: Sequence[NDArray[np.void]], functions: NDArray[np.void]) -> NDArray[np.void]:
    far = np.ones(len(functions), bool)
    far[:-1] = functions["start"][1:].astype(np.int64) - functions["end"][:-1].astype(np.int64) >= _GAP
    gaps = functions["end"][far & (functions["end"] < _REACH)]
    pc = np.concatenate([np.zeros(1, np.uint64), gaps, *(part["pc"] for part in parts)])
    rule = np.concatenate([np.zeros(1 + len(gaps), np.uint32), *(part["rule"] for part in parts)])
    if np.any(pc[1:] < pc[:-1]):
        order = np.argsort(pc, kind="stable")
        pc, rule = pc[order], rule[order]
    # Of rows for the same address the last counts: gaps come first.
    last = np.ones(len(pc), bool)
    last[:-1] = pc[1:] != pc[:-1]
    pc, rule = pc[last], rule[last]
    changed = np.ones(len(pc), bool)
    changed[1:] = rule[1:] != rule[:-1]
    rows = np.zeros(int(changed.sum()), ROW_DTYPE)
    rows["pc"], rows["rule"] = pc[changed], rule[changed]
    return rows
