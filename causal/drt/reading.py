"""Reads traces from a file: CSV as the paper has it, JSON Lines for wide data, Parquet where pyarrow is installed.

Cells are parsed many rows at a time, and a file that is not all numbers is then searched cell by cell, so that good
files are fast and bad ones get a message with the row and the column.
"""

from __future__ import annotations

import csv
import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from causal.drt.columns import Roles, assign_roles
from causal.drt.sparse_reading import read_json_lines
from causal.drt.traces import Floats, Traces, check_traces, describe_wrong
from causal.errors import CausalError, UsageError

# Rows are turned into a sparse matrix in blocks of about this many cells, which bounds the memory of parsing.
_BLOCK_CELLS = 4_000_000


def read_traces(path: Path, inputs: Sequence[str] = (), output: str | None = None, by_thread: bool = False) -> Traces:
    """Traces from `path`; the form follows from its name: .jsonl (sparse), .parquet, anything else is CSV.

    `inputs` and `output` name columns (default: what stands before the first measurement, and that measurement; of
    repeats T1..Tn the median). `by_thread` counts also per thread what several threads call; .jsonl alone has that.
    Raises CausalError with the row and column of the first thing that is wrong.
    """
    sparse = path.suffix in (".jsonl", ".ndjson")
    if by_thread and not sparse:
        raise UsageError("only traces in the sparse form (.jsonl) know threads", "leave --by-thread away")
    try:
        if sparse:
            traces = read_json_lines(path, inputs, output, by_thread)
        elif path.suffix == ".parquet":
            traces = _read_parquet(path, inputs, output)
        else:
            traces = read_csv(path, inputs, output)
    except MemoryError:
        raise CausalError(f"{path} does not fit into memory", "give the traces in the sparse form (.jsonl)") from None
    except UnicodeDecodeError as error:
        raise CausalError(f"{path}: byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    except OSError as error:
        raise CausalError(f"{path}: {error.strerror}", "check the path") from None
    check_traces(traces)
    return traces


def read_csv(path: Path, inputs: Sequence[str] = (), output: str | None = None) -> Traces:
    """Dense form: a header, then one line per trace. The delimiter is the first of comma, tab and semicolon found."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        if not first.strip():
            raise CausalError(f"{path} is empty", "the first line names the columns: id,size,time,...")
        delimiter = next((each for each in ",\t;" if each in first), ",")
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter))]
        roles = assign_roles(header, inputs, output)
        parser = _CsvParser(header, roles, delimiter)
        for number, line in enumerate(file, 2):
            if line.strip():
                parser.add(number, line)
    return parser.finish()


class _CsvParser:
    """Collects lines, parses them in blocks."""

    def __init__(self, header: list[str], roles: Roles, delimiter: str) -> None:
        self._header = header
        self._roles = roles
        self._delimiter = delimiter
        self._numeric = [i for i in range(len(header)) if i != roles.ident]
        self._block_rows = max(1, _BLOCK_CELLS // len(header))
        self._ids: list[str] = []
        self._rows: list[int] = []
        self._lines: list[str] = []
        self._tables: list[Floats] = []
        self._calls: list[Any] = []

    def add(self, number: int, line: str) -> None:
        """One line of the file."""
        text = line.rstrip("\r\n")
        if '"' in text:
            cells = next(csv.reader([text], delimiter=self._delimiter))
            if len(cells) != len(self._header):
                raise self._wrong_length(number, len(cells))
            ident = cells[self._roles.ident] if self._roles.ident is not None else ""
            text = self._delimiter.join(cells[i].strip() for i in self._numeric)
            if self._delimiter in "".join(cells[i] for i in self._numeric):
                raise self._find_wrong(number, [cells[i] for i in self._numeric])
        elif self._roles.ident is not None:
            ident, _, text = text.partition(self._delimiter)
        else:
            ident = ""
        self._ids.append(ident.strip() or str(number))
        self._rows.append(number)
        self._lines.append(text)
        if len(self._lines) >= self._block_rows:
            self._flush()

    def finish(self) -> Traces:
        """The traces of all lines."""
        from scipy import sparse

        self._flush()
        roles = self._roles
        names = [self._header[i] for i in roles.functions]
        width = len(roles.inputs) + len(roles.outputs)
        table = np.concatenate(self._tables) if self._tables else np.empty((0, width))
        calls = sparse.vstack(self._calls, format="csc") if self._calls else sparse.csc_matrix((0, len(names)))
        return Traces(
            ids=self._ids,
            input_names=[self._header[i] for i in roles.inputs],
            inputs=table[:, : len(roles.inputs)],
            output_name=roles.output_name,
            output=np.median(table[:, len(roles.inputs) :], axis=1) if len(table) else np.empty(0),
            functions=names,
            calls=calls,
            rows=self._rows,
        )

    def _flush(self) -> None:
        from scipy import sparse

        if not self._lines:
            return
        values = self._parse()
        place = {column: position for position, column in enumerate(self._numeric)}
        roles = self._roles
        wanted = [place[i] for i in (*roles.inputs, *roles.outputs)]
        self._check(values, wanted)
        self._tables.append(values[:, wanted])
        functions = [place[i] for i in roles.functions]
        counts = values[:, functions[0] :] if functions == list(range(len(place)))[-len(functions) :] else None
        self._calls.append(sparse.csr_matrix(values[:, functions] if counts is None else counts))
        self._lines = []

    def _parse(self) -> Floats:
        columns = len(self._numeric)
        if all(line.count(self._delimiter) == columns - 1 for line in self._lines):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # numpy only warns where it could not read on
                try:
                    text = self._delimiter.join(self._lines)
                    flat = np.fromstring(text, dtype=np.float64, sep=self._delimiter)
                    if flat.size == len(self._lines) * columns:
                        return flat.reshape(len(self._lines), columns)
                except (DeprecationWarning, ValueError):
                    pass
        return np.array([self._parse_line(row, line) for row, line in self._numbered()])

    def _numbered(self) -> Iterator[tuple[int, str]]:
        return zip(self._rows[-len(self._lines) :], self._lines, strict=True)

    def _parse_line(self, row: int, line: str) -> list[float]:
        cells = line.split(self._delimiter)
        if len(cells) != len(self._numeric):
            raise self._wrong_length(row, len(cells) + (self._roles.ident is not None))
        try:
            return [float(cell) for cell in cells]
        except ValueError:
            raise self._find_wrong(row, cells) from None

    def _check(self, values: Floats, wanted: list[int]) -> None:
        """Outputs that were not chosen may hold anything; functions, inputs and the output may not."""
        used = set(wanted)
        wrong = ~np.isfinite(values) | (values < 0)
        if not wrong.any():
            return
        functions = set(self._roles.functions)
        for row, column in np.argwhere(wrong):
            if column in used or self._numeric[column] in functions:
                number = self._rows[len(self._rows) - len(self._lines) + int(row)]
                raise _bad_cell(number, self._header[self._numeric[column]], describe_wrong(values[row, column]))

    def _find_wrong(self, row: int, cells: Sequence[str]) -> CausalError:
        for position, cell in enumerate(cells):
            name = self._header[self._numeric[position]]
            if not cell.strip():
                return _bad_cell(row, name, "the value is missing")
            try:
                float(cell)
            except ValueError:
                return _bad_cell(row, name, f"{cell.strip()!r} is not a number")
        return CausalError(f"row {row}: cannot be read", "check its quotes")

    def _wrong_length(self, row: int, found: int) -> CausalError:
        last = self._header[min(found, len(self._header)) - 1]
        return CausalError(
            f"row {row}: {found} columns where the header has {len(self._header)} (the last is {last!r})",
            "every line needs one value per column",
        )


def _bad_cell(row: int, column: str, what: str) -> CausalError:
    return CausalError(
        f"row {row}, column {column!r}: {what}", "inputs, outputs and call counts are finite numbers, 0 or more"
    )


def _read_parquet(path: Path, inputs: Sequence[str], output: str | None) -> Traces:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CausalError("Parquet files need pyarrow", "install it with pip install pyarrow, or use CSV") from None
    from scipy import sparse

    try:
        table = parquet.read_table(path)
    except ValueError as error:  # of which pyarrow's own errors are a kind
        raise CausalError(f"{path} is no Parquet file: {error}", "check the path") from None
    header = list(table.column_names)
    roles = assign_roles(header, inputs, output)
    ids = table.column(roles.ident).to_pylist() if roles.ident is not None else range(len(table))
    measured = np.array([_floats(table, i) for i in roles.outputs])
    calls = [sparse.csc_matrix(_floats(table, i)[:, None]) for i in roles.functions]
    return Traces(
        ids=[str(each) for each in ids],
        input_names=[header[i] for i in roles.inputs],
        inputs=np.stack([_floats(table, i) for i in roles.inputs], axis=1),
        output_name=roles.output_name,
        output=np.median(measured, axis=0),
        functions=[header[i] for i in roles.functions],
        calls=sparse.hstack(calls, format="csc") if calls else sparse.csc_matrix((len(table), 0)),
    )


def _floats(table: Any, index: int) -> Floats:
    column = table.column(index).to_pylist()
    values = np.empty(len(column))
    for row, value in enumerate(column):
        try:
            values[row] = math.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise _bad_cell(row, table.column_names[index], f"{value!r} is not a number") from None
    return values
