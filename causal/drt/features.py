"""What a tree may ask about a trace: the functions' columns reduced to those that can tell traces apart.

Constant columns are dropped, and of identical columns one is kept, with the names of the rest. A count that follows
the size of the input becomes calls per size, so that a tree explains the cost of a size and does not find the size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal.drt.traces import Bools, Floats, Ints, Sparse, Traces

# A count follows the input when the input explains most of its variation, that is more than half.
_FOLLOWS_INPUT = 0.5
# A column is the output in disguise when they agree to the six digits that are usually printed.
_SAME = 1e-5


@dataclass(frozen=True)
class Feature:
    """One column: `kind` is called (0 or 1), calls (a count) or rate (calls per unit of the first input)."""

    name: str
    kind: str
    same_as: tuple[str, ...] = ()  # functions whose columns, seen in this way, are identical to this one


@dataclass(frozen=True)
class Features:
    """F features of N traces: `values` is a sparse (N, F) matrix in columns, ordered by name."""

    columns: tuple[Feature, ...]
    values: Sparse
    constant: int = 0  # functions dropped because every trace calls them alike
    leaks: tuple[str, ...] = ()  # functions dropped because their column is the output
    per_input: str = ""  # what rates are per

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> list[str]:
        """The functions, one per feature."""
        return [each.name for each in self.columns]

    def select(self, chosen: Sequence[int] | Ints) -> Features:
        """Some of the columns."""
        columns = tuple(self.columns[int(i)] for i in chosen)
        return replace(self, columns=columns, values=self.values[:, np.asarray(chosen, dtype=np.int64)])


def make_features(traces: Traces) -> Features:
    """The features of all traces. Their order is that of the names, so the order of columns in a file is nothing."""
    calls = traces.calls.tocsc()
    calls.sort_indices()
    varying = _varying(calls)
    order = sorted((int(i) for i in np.flatnonzero(varying)), key=lambda i: traces.functions[i])
    leaks = [i for i in order if _is_output(_dense(calls, i), traces.output)]
    order = [i for i in order if i not in set(leaks)]
    columns: dict[bytes, Feature] = {}
    values: list[tuple[Ints, Floats]] = []
    for index in order:
        rows, counts = _entries(calls, index)
        name = traces.functions[index]
        for kind, data in _views(rows, counts, traces.inputs[:, 0]):
            key = _digest(rows, data)
            if key in columns:
                columns[key] = replace(columns[key], same_as=(*columns[key].same_as, name))
            else:
                columns[key] = Feature(name, kind)
                values.append((rows, data))
    return Features(
        columns=tuple(columns.values()),
        values=_assemble(values, len(traces)),
        constant=int((~varying).sum()),
        leaks=tuple(traces.functions[i] for i in leaks),
        per_input=traces.input_names[0],
    )


def _entries(calls: Sparse, column: int) -> tuple[Ints, Floats]:
    where = slice(calls.indptr[column], calls.indptr[column + 1])
    return calls.indices[where], calls.data[where]


def _dense(calls: Sparse, column: int) -> Floats:
    values = np.zeros(calls.shape[0])
    rows, counts = _entries(calls, column)
    values[rows] = counts
    return values


def _varying(calls: Sparse) -> Bools:
    """Which columns are not constant, without making any of them dense."""
    n = calls.shape[0]
    stored = np.diff(calls.indptr)
    varying = (stored > 0) & (stored < n)
    full = np.flatnonzero((stored == n) & (n > 0))
    for column in full:
        counts = _entries(calls, int(column))[1]
        varying[column] = bool(np.ptp(counts) > 0)
    return np.asarray(varying, dtype=np.bool_)


def _is_output(column: Floats, output: Floats) -> bool:
    scale = float(column @ output) / float(column @ column)
    return bool(np.abs(column * scale - output).max() <= _SAME * np.abs(output).max())


def _digest(rows: Ints, data: Floats) -> bytes:
    """A key that identical columns share."""
    digest = hashlib.blake2b(rows.astype(np.int64).tobytes(), digest_size=16)
    digest.update(data.astype(np.float64).tobytes())
    return digest.digest()


def _views(rows: Ints, counts: Floats, size: Floats) -> list[tuple[str, Floats]]:
    """The forms in which a column is offered: called, calls, or called and calls per size."""
    called = np.ones(len(counts))
    if (counts == 1).all():
        return [("called", called)]
    spread = float(np.ptp(counts))
    everywhere = len(counts) == len(size)
    views = [] if everywhere else [("called", called)]
    if spread == 0:
        return views
    at = size[rows]
    follows = np.ptp(at) > 0 and float(np.corrcoef(counts, at)[0, 1]) ** 2 > _FOLLOWS_INPUT
    if not follows or not (at > 0).all():
        return [("calls", counts)]  # "called" is among its thresholds
    rate = counts / at
    if np.ptp(rate) > _SAME * np.abs(rate).max():
        views.append(("rate", rate))
    return views


def _assemble(columns: list[tuple[Ints, Floats]], n: int) -> Sparse:
    from scipy import sparse

    if not columns:
        return sparse.csc_matrix((n, 0))
    ends = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in columns])])
    rows = np.concatenate([each for each, _ in columns])
    data = np.concatenate([each for _, each in columns])
    return sparse.csc_matrix((data, rows, ends), shape=(n, len(columns)))


def group_identical(features: Features, exact: bool = False) -> Ints:
    """For each trace the number of its group, (N,): traces that called the same functions are one group.

    With `exact` they also called them equally often, as far as counts do not follow the size. Groups are numbered by
    first appearance.
    """
    values = features.values.tocsr()
    if exact:
        counted = np.array([each.kind != "rate" for each in features.columns], dtype=np.bool_)
        values = values[:, np.flatnonzero(counted)]
    values.sort_indices()
    numbers: dict[bytes, int] = {}
    groups = np.empty(values.shape[0], dtype=np.int64)
    for row in range(values.shape[0]):
        where = slice(values.indptr[row], values.indptr[row + 1])
        key = values.indices[where].tobytes()
        if exact:
            key += values.data[where].tobytes()
        groups[row] = numbers.setdefault(key, len(numbers))
    return groups
