"""Traces: what is known about each run or request of a program, and the checks that every trace must pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal.errors import CausalError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Sparse = Any  # scipy.sparse.csc_matrix or csr_matrix: scipy has no types

# What the first thread of a program is called, and what stands between a function and the thread that called it.
FIRST_THREAD, ON_THREAD = "main", " on thread "
_UNIT_IN_NAME = re.compile(
    r"^(?P<name>.+?)(?:\s*[(\[](?P<bracket>[^)\]]+)[)\]]|_(?P<suffix>ns|us|ms|s|min|h|b|bytes|kb|mb|gb|kib|mib|gib))$"
)


@dataclass(frozen=True)
class Traces:
    """N traces of one program.

    `inputs` is (N, P) and `calls` a sparse (N, F) matrix of call counts, `output` has N values: all finite and not
    negative. `rows` are the line numbers in the file, for messages. `exit_codes` has N values; () means all are 0.
    """

    ids: list[str]
    input_names: list[str]
    inputs: Floats
    output_name: str
    output: Floats
    functions: list[str]
    calls: Sparse
    rows: Sequence[int] = field(default_factory=list)
    exit_codes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.exit_codes):
            object.__setattr__(self, "exit_codes", np.zeros(len(self.ids), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Named:
    """The name of a column and the unit that is written in it: `time_ms` and `time (ms)` are both time in ms."""

    name: str
    unit: str

    @classmethod
    def parse(cls, column: str) -> Named:
        """Split a column's name; the unit is empty where there is none."""
        match = _UNIT_IN_NAME.match(column)
        return cls(match["name"], match["bracket"] or match["suffix"] or "") if match else cls(column, "")


def check_traces(traces: Traces) -> None:
    """Raises CausalError for traces that cannot be explained: each message names the column or row at fault."""
    if len(traces) < 2:
        count = "no traces" if len(traces) == 0 else "only one trace"
        raise CausalError(f"there is {count}", "classes are differences between traces: record more of them")
    _check_ids(traces)
    _check_values(traces, traces.inputs, traces.input_names)
    _check_values(traces, traces.output[:, None], [traces.output_name])
    _check_calls(traces)
    if np.ptp(traces.output) == 0:
        raise CausalError(
            f"column {traces.output_name!r} is constant: {traces.output[0]:g} in all {len(traces)} traces",
            "there is no difference to explain; choose another column with --output",
        )
    for index, name in enumerate(traces.input_names):
        if np.ptp(traces.inputs[:, index]) == 0:
            raise CausalError(
                f"column {name!r} is constant: {traces.inputs[0, index]:g} in all {len(traces)} traces",
                "an input must vary; record other sizes, or name the inputs with --inputs",
            )


def _row(traces: Traces, index: int) -> str:
    return f"row {traces.rows[index]}" if len(traces.rows) else f"trace {index}"


def _check_ids(traces: Traces) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(traces.ids):
        if name in seen:
            raise CausalError(
                f"{_row(traces, index)}: id {name!r} was already used in {_row(traces, seen[name])}",
                "every trace needs an id of its own",
            )
        seen[name] = index


def _check_values(traces: Traces, values: Floats, names: Sequence[str]) -> None:
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        row, column = (int(each) for each in np.argwhere(wrong)[0])
        raise CausalError(
            f"{_row(traces, row)}, column {names[column]!r}: {describe_wrong(float(values[row, column]))}",
            "inputs, outputs and call counts are finite numbers, 0 or more",
        )


def _check_calls(traces: Traces) -> None:
    data = traces.calls.data
    wrong = ~np.isfinite(data) | (data < 0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        coordinates = traces.calls.tocoo()
        row, column = int(coordinates.row[at]), int(coordinates.col[at])
        raise CausalError(
            f"{_row(traces, row)}, column {traces.functions[column]!r}: {describe_wrong(float(data[at]))}",
            "inputs, outputs and call counts are finite numbers, 0 or more",
        )


def describe_wrong(value: float) -> str:
    """What is wrong with a number that is not finite and at least 0."""
    if np.isnan(value):
        return "the value is missing (NaN)"
    return f"{value:g} is not finite" if np.isinf(value) else f"{value:g} is negative"
