"""The sparse form of traces, for programs with thousands of functions: JSON Lines, a trace on each line.

    {"id": "a.png", "inputs": {"size": 1024}, "outputs": {"time_ms": 3.1}, "calls": {"main": 1, "decode": 64}}

Functions that are not listed were not called. An output may be a list of repeats, of which the median counts. A run
that failed has also an "exit_code", one of several threads "threads", with the calls by the name of the thread:

    "threads": {"main": {"threads": 1, "calls": {"main": 1}}, "io": {"threads": 4, "calls": {"decode": 64}}}
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from causal.drt.columns import is_measurement
from causal.drt.traces import FIRST_THREAD, ON_THREAD, Named, Sparse, Traces
from causal.errors import CausalError, UsageError

# 12 bytes each, and clustering and tree need about three copies: more would exceed 8 GB.
MAX_CALLS = 200_000_000


class _Index(dict[str, int]):
    """Gives every new name the next number."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


def read_json_lines(
    path: Path, inputs: Sequence[str] = (), output: str | None = None, by_thread: bool = False
) -> Traces:
    """Traces from the sparse form; raises CausalError with the row (and the key) of the first thing that is wrong.

    `by_thread` adds the calls per thread of those functions that several threads call, as `f on thread io`.
    """
    collected = _Collector(list(inputs), output, by_thread)
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                collected.add(number, line)
    return collected.finish()


class _Collector:
    """Grows the columns of a compressed-row matrix; arrays, because ten million Python numbers would not fit."""

    def __init__(self, inputs: list[str], output: str | None, by_thread: bool) -> None:
        self._inputs = inputs
        self._output = output
        self._by_thread = by_thread
        self._threads_of: dict[str, set[str]] = {}
        self._ids: list[str] = []
        self._rows: list[int] = []
        self._x: list[list[float]] = []
        self._y: list[float] = []
        self._functions = _Index()
        self._columns = array("i")
        self._counts = array("d")
        self._ends = array("q", [0])
        self._exit_codes: list[int] = []

    def add(self, number: int, line: str) -> None:
        """One line of the file."""
        try:
            trace = json.loads(line)
        except ValueError as error:
            raise CausalError(f"row {number}: not JSON: {error}", "one object per line, nothing else") from None
        calls = self._part(number, trace, "calls")
        inputs = self._part(number, trace, "inputs")
        outputs = self._part(number, trace, "outputs")
        if not self._ids:
            self._choose(inputs, outputs)
        assert self._output is not None
        self._x.append([_number(number, name, inputs.get(name)) for name in self._inputs])
        measured = outputs.get(self._output)
        repeats = measured if isinstance(measured, list) and measured else [measured]
        self._y.append(float(np.median([_number(number, self._output, each) for each in repeats])))
        self._ids.append(str(trace.get("id", number)))
        self._exit_codes.append(int(_number(number, "exit_code", trace.get("exit_code", 0))))
        self._rows.append(number)
        self._add_calls(number, calls | self._calls_by_thread(number, trace) if self._by_thread else calls)

    def _calls_by_thread(self, number: int, trace: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # Of a run with one thread nothing is said: it did everything.
        threads = self._part(number, trace, "threads") if "threads" in trace else {FIRST_THREAD: trace}
        for thread, each in threads.items():
            for name, count in self._part(number, each, "calls").items():
                self._threads_of.setdefault(name, set()).add(thread)
                found[f"{name}{ON_THREAD}{thread}"] = count
        return found

    def _add_calls(self, number: int, calls: dict[str, Any]) -> None:
        self._columns.extend(map(self._functions.__getitem__, calls))
        try:
            self._counts.extend(calls.values())
        except TypeError:
            name, value = next((k, v) for k, v in calls.items() if not isinstance(v, int | float))
            raise _wrong(number, name, f"{value!r} is not a number") from None
        self._ends.append(len(self._columns))
        if len(self._columns) > MAX_CALLS:
            raise CausalError(
                f"row {number}: more than {MAX_CALLS:,} call counts", "trace fewer functions, or explain fewer traces"
            )

    @staticmethod
    def _part(number: int, trace: Any, key: str) -> dict[str, Any]:
        part = trace.get(key) if isinstance(trace, dict) else None
        if not isinstance(part, dict):
            raise CausalError(
                f"row {number}: no object {key!r}",
                'a trace is {"id":..., "inputs": {"size":...}, "outputs": {"time":...}, "calls": {...}}',
            )
        return part

    def _choose(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Which inputs and which output: the first trace decides for those not named by the user."""
        self._inputs = self._inputs or list(inputs)
        if not self._inputs:
            raise CausalError(f"row {self._first()}: no inputs", "give at least one, as the size of what is processed")
        named = self._output
        if named is not None and named not in outputs:
            alike = [each for each in outputs if Named.parse(each).name == named]
            if not alike:
                raise UsageError(f"--output: there is no output {named!r}", f"there are {', '.join(outputs) or 'none'}")
            named = alike[0]
        self._output = named or next(filter(is_measurement, outputs), next(iter(outputs), None))
        if self._output is None:
            raise CausalError(f"row {self._first()}: no outputs", 'give one, as "outputs": {"time_ms": 3.1}')

    def _without_repetition(self, names: list[str], calls: Sparse) -> tuple[list[str], Sparse]:
        """Leave out the calls by thread of functions that one thread calls: all calls are that thread's."""
        once = [name for name, threads in self._threads_of.items() if len(threads) == 1]
        repeated = {f"{name}{ON_THREAD}{thread}" for name in once for thread in self._threads_of[name]}
        kept = [i for i, name in enumerate(names) if name not in repeated]
        return ([names[i] for i in kept], calls[:, kept]) if repeated else (names, calls)

    def _first(self) -> int:
        return self._rows[0] if self._rows else 1

    def finish(self) -> Traces:
        """The traces of all lines."""
        from scipy import sparse

        names = list(self._functions)
        counts = np.frombuffer(self._counts, dtype=np.float64) if self._counts else np.empty(0)
        columns = np.frombuffer(self._columns, dtype=np.int32) if self._columns else np.empty(0, dtype=np.int32)
        ends = np.frombuffer(self._ends, dtype=np.int64)
        matrix = sparse.csr_matrix((counts, columns, ends), shape=(len(self._ids), len(names)))
        calls = matrix.tocsc()
        if len(calls.data) and not calls.data.all():
            calls.eliminate_zeros()
        names, calls = self._without_repetition(names, calls)
        return Traces(
            ids=self._ids,
            input_names=self._inputs,
            inputs=np.array(self._x, dtype=np.float64).reshape(len(self._ids), len(self._inputs)),
            output_name=self._output or "time",
            output=np.array(self._y, dtype=np.float64),
            functions=names,
            calls=calls,
            rows=self._rows,
            exit_codes=np.array(self._exit_codes, dtype=np.int64),
        )


def _number(row: int, name: str, value: Any) -> float:
    if value is None:
        raise _wrong(row, name, "the value is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(row, name, f"{value!r} is not a number")
    return float(value)


def _wrong(row: int, column: str, what: str) -> CausalError:
    return CausalError(
        f"row {row}, column {column!r}: {what}", "inputs, outputs and call counts are finite numbers, 0 or more"
    )
