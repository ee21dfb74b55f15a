"""Where requests begin and end, and what is read at their begin: `--begin`, `--end` and `--input`.

parse_value("size=arg2@handler")            # the second argument, as an unsigned number
parse_value("string-length:arg1")           # length of the string that the first argument points to
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from causal.errors import CausalError, UsageError
from causal.progress import parse_spec, resolve
from causal.symbols.elf import Binary

MAX_VALUES = 8
_VALUE = re.compile(
    r"(?:(?P<name>[A-Za-z_][\w-]*)=)?(?P<string>string-length:)?arg(?P<position>\d+)(?:@(?P<where>.+))?$"
)
_REGISTERS = 6  # arguments that are passed in registers (System V x86-64 ABI)


@dataclass(frozen=True)
class Place:
    """Places in files where one probe goes."""

    path: str
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """One input variable: argument `position` (from 1) of the begin function; `string` means its length as a string."""

    name: str
    position: int
    string: bool
    where: str | None


def parse_value(text: str) -> Value:
    """Read `[NAME=][string-length:]argN[@FUNCTION]`; raises UsageError when it makes no sense."""
    match = _VALUE.match(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text}: this names no argument",
            "write arg2, string-length:arg1, or a name in front: size=arg2; the first argument is arg1",
        )
    position = int(match["position"])
    if not 1 <= position <= _REGISTERS:
        raise UsageError(f"--input {text}: only arg1 to arg{_REGISTERS} are in registers", "choose one of these")
    string = match["string"] is not None
    name = match["name"] or (f"length_arg{position}" if string else f"arg{position}")
    return Value(name, position, string, match["where"])


def check_values(values: Sequence[Value], begin: str) -> None:
    """Raises UsageError for too many, for two of one name, and for arguments of another function than `begin`."""
    if not values:
        raise UsageError(
            "a trace needs an input variable", "give one that tells how large a request is: --input size=arg2"
        )
    if len(values) > MAX_VALUES:
        raise UsageError(f"{len(values)} input variables are more than {MAX_VALUES}", "give the ones that matter")
    if len({each.name for each in values}) < len(values):
        raise UsageError("two input variables have the same name", "name them apart: --input NAME=arg2")
    for each in values:
        if each.where is not None and each.where != begin:
            raise UsageError(
                f"--input {each.name}: arguments are read where the request begins, at {begin}",
                f"leave out @{each.where}, or begin there",
            )


def find_place(option: str, spec: str, main: Binary, libraries: Sequence[str]) -> list[Place]:
    """The places that a SPEC means; raises CausalError with near names when there is none."""
    try:
        probes = resolve(parse_spec(spec), main, libraries)
    except CausalError as error:
        message = error.message.replace("progress point", option, 1)
        raise CausalError(message, error.hint, error.exit_code) from None
    by_path: dict[str, list[int]] = {}
    for probe in probes:
        by_path.setdefault(probe.path, []).append(probe.file_offset)
    return [Place(path, tuple(offsets)) for path, offsets in by_path.items()]
