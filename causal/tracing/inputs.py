"""The inputs of a traced command: files by pattern or from a list, or the rows of a table; and how `{}` becomes one.

find_inputs(["img/*.ppm"])      # size_bytes is the input variable
find_inputs(["@files.txt"])     # one input per line
find_inputs(["runs.csv"])       # first column replaces {}, column `width` replaces {width}; numbers are variables
"""

from __future__ import annotations

import csv
import glob
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from causal.errors import CausalError, UsageError

SIZE = "size_bytes"
_PLACE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class RunInput:
    """One input: `words` replace `{}` (key "") and `{column}` in the command, `values` are its input variables."""

    id: str
    words: dict[str, str]
    values: dict[str, float]


def find_inputs(specs: Sequence[str]) -> list[RunInput]:
    """All inputs in a stable order, each once. Raises CausalError where a spec matches nothing or is no table."""
    found: dict[str, RunInput] = {}
    for spec in specs:
        for each in _from_spec(spec):
            if each.id in found and found[each.id] != each:
                raise CausalError(f"two inputs are called {each.id!r}", "give every row another first column")
            found[each.id] = each
    if not found:
        raise CausalError("no inputs match", "check the pattern of --inputs")
    names = {tuple(each.values) for each in found.values()}
    if len(names) > 1:
        raise UsageError(
            "the inputs have different variables: " + " and ".join(", ".join(each) for each in sorted(names)),
            "trace tables and patterns separately",
        )
    return list(found.values())


def _from_spec(spec: str) -> Iterator[RunInput]:
    wild = any(character in spec for character in "*?[")
    if spec == "-" or spec.startswith("@"):
        yield from map(_file, _listed(spec.removeprefix("@")))
    elif spec.endswith((".csv", ".tsv")) and not wild:
        yield from _table(spec)
    else:
        names = sorted(name for name in glob.glob(spec, recursive=True) if os.path.isfile(name))
        if not names:
            raise CausalError(f"no inputs match {spec}", "check the path; a list of inputs is given as --inputs @FILE")
        yield from map(_file, names)


def _listed(name: str) -> Iterator[str]:
    if name == "-":
        lines = sys.stdin.read().splitlines()
    else:
        with _open(name) as file:
            lines = file.read().splitlines()
    yield from (line for line in lines if line.strip())


def _open(name: str) -> TextIO:
    try:
        return open(name, encoding="utf-8-sig", newline="")
    except OSError as error:
        raise CausalError(f"cannot read {name}: {error.strerror}", "check the path given to --inputs") from None


def _file(name: str) -> RunInput:
    try:
        size = os.stat(name).st_size
    except OSError as error:
        raise CausalError(
            f"input {name}: {error.strerror}",
            "inputs that are no files need a variable of their own: give a CSV with columns such as name,size",
        ) from None
    return RunInput(name, {"": name}, {SIZE: float(size)})


def _table(name: str) -> Iterator[RunInput]:
    with _open(name) as file:
        first = file.readline()
        delimiter = "\t" if "\t" in first else ";" if ";" in first and "," not in first else ","
        file.seek(0)
        rows = list(csv.reader(file, delimiter=delimiter))
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise CausalError(f"{name} has no rows", "the first line names the columns, each further line is an input")
    header = rows[0]
    if len(set(header)) != len(header) or not all(header):
        raise CausalError(f"{name}: every column needs a name of its own", "the first line names the columns")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise CausalError(
                f"{name}, row {number}: {len(row)} columns where the header has {len(header)}",
                "give every row as many columns as the header, and quote values that hold commas",
            )
    yield from _rows(name, header, rows[1:])


def _rows(name: str, header: list[str], rows: list[list[str]]) -> Iterator[RunInput]:
    numeric = [i for i in range(len(header)) if all(_is_number(row[i]) for row in rows)]
    # Of a table without numbers, the first column must be files, whose size is the variable.
    sizes = [] if numeric else [_file(row[0]).values for row in rows]
    unique = len({row[0] for row in rows}) == len(rows)
    for index, row in enumerate(rows):
        values = sizes[index] if sizes else {header[i]: float(row[i]) for i in numeric}
        ident = row[0] if unique else " ".join(row)
        yield RunInput(ident, {"": row[0], **dict(zip(header, row, strict=True))}, values)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) >= 0
    except ValueError:
        return False


def check_command(command: Sequence[str], inputs: Iterable[RunInput], stdin: bool) -> None:
    """Raises UsageError for a command in which the input has no place."""
    names = next(iter(inputs)).words
    places = {place for word in command for place in _PLACE.findall(word)}
    if not places & names.keys() and not stdin:
        others = ", ".join(f"{{{name}}}" for name in names if name)
        raise UsageError(
            "the command has no place for the input",
            "write {} where it belongs" + (f" (or one of {others})" if others else "") + ", or add --stdin to feed it",
        )


def substitute(command: Sequence[str], run_input: RunInput) -> list[str]:
    """The command with every `{}` and `{column}` replaced; other braces (as in awk programs) stay."""
    return [_PLACE.sub(lambda place: run_input.words.get(place[1], place[0]), word) for word in command]
