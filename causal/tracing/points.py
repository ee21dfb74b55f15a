"""Where requests begin and end, and what is read at their begin: `--begin`, `--end` and `--input`.

parse_value("size=arg2")                    # the second argument, as an unsigned number
parse_value("length@parse_header")          # the parameter of that name of a function that is called in the request
parse_value("size=this.body.size")          # a member of the object that a parameter points or refers to
parse_value("string-length:arg1")           # length of the string that the first argument points to
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from causal.errors import CausalError, UsageError
from causal.progress import parse_spec, resolve
from causal.symbols.demangle import demangle
from causal.symbols.elf import Binary

MAX_VALUES = 8
_VALUE = re.compile(
    r"(?:(?P<name>[A-Za-z_][\w-]*)=)?(?P<string>string-length:)?(?P<what>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"(?:@(?P<where>.+))?$"
)
_POSITION = re.compile(r"arg(\d+)$")
_REGISTERS = 6  # arguments that are passed in registers (System V x86-64 ABI)


@dataclass(frozen=True)
class Place:
    """Places in files where one probe goes; `names` are those of the functions there."""

    path: str
    offsets: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Value:
    """One input variable: an argument (`argN`, from 1, or the name of a parameter, or `parameter.member`) of the
    function `where`.

    `where` None: of the function at which requests begin. `string` means its length as a string.
    """

    name: str
    argument: str
    string: bool
    where: str | None


@dataclass(frozen=True)
class Register:
    """An argument in an integer register: `position` from 1, from bit `shift` on; or `offset` bytes behind the address
    that is in it (None: in the register). Of 64 bits, `unused_bits` at the top are not the value's.

    `is_text`: the value is the address of a C string, whose length is wanted.
    """

    position: int
    unused_bits: int = 0
    signed: bool = False
    offset: int | None = None
    shift: int = 0
    is_text: bool = False


@dataclass(frozen=True)
class Reading:
    """How a value is read: `places` where that is done, or () where requests begin."""

    value: Value
    register: Register
    places: tuple[Place, ...]


def parse_value(text: str) -> Value:
    """Read `[NAME=][string-length:]ARGUMENT[@FUNCTION]`; raises UsageError when it makes no sense."""
    match = _VALUE.match(text.strip())
    if match is None:
        raise UsageError(
            f"--input {text}: this names no argument",
            "write arg2, string-length:arg1, or a name in front: size=arg2; the first argument is arg1",
        )
    check_argument(f"--input {text}", match["what"])
    string = match["string"] is not None
    name = match["name"] or (f"length_{match['what']}" if string else match["what"])
    return Value(name, match["what"], string, match["where"])


def check_argument(option: str, argument: str) -> None:
    """Raises UsageError for a position that is in no register."""
    position = _POSITION.match(argument)
    if position and not 1 <= int(position[1]) <= _REGISTERS:
        raise UsageError(f"{option}: only arg1 to arg{_REGISTERS} are in registers", "choose one of these")
    if not re.fullmatch(r"[A-Za-z_][\w.]*", argument) or (position is None and _POSITION.match(argument.split(".")[0])):
        raise UsageError(f"{option}: this names no argument", "write arg1, or the name of a parameter")


def check_values(values: Sequence[Value]) -> None:
    """Raises UsageError for no values, too many, and for two of one name."""
    if not values:
        raise UsageError(
            "a trace needs an input variable", "give one that tells how large a request is: --input size=arg2"
        )
    if len(values) > MAX_VALUES:
        raise UsageError(f"{len(values)} input variables are more than {MAX_VALUES}", "give the ones that matter")
    if len({each.name for each in values}) < len(values):
        raise UsageError("two input variables have the same name", "name them apart: --input NAME=arg2")


def find_register(argument: str, string: bool, place: Place, index: int = 0) -> Register:
    """Where an argument is at one function of a place; names need debug information. Raises CausalError."""
    position = _POSITION.match(argument)
    if position:
        return Register(int(position[1]), is_text=string)
    from causal.symbols.parameters import find_parameter

    binary = Binary.load(place.path)
    found = find_parameter(binary, place.offsets[index], place.names[index], argument, string)
    return Register(found.position, 64 - 8 * found.size, found.signed, found.offset, found.shift, found.is_text)


def find_reading(
    value: Value, begin: Sequence[Place], begins_at: str, main: Binary, libraries: Sequence[str]
) -> Reading:
    """How to read a value; raises CausalError where there is no such function or parameter."""
    elsewhere = value.where is not None and value.where != begins_at
    places = find_place("input", value.where, main, libraries) if elsewhere and value.where else begin
    each = [
        (name, find_register(value.argument, value.string, place, index))
        for place in places
        for index, name in enumerate(place.names)
    ]
    if len({register for _, register in each}) > 1:
        raise CausalError(
            f"{value.argument} is in different places in the {len(each)} functions that are meant",
            f"name one of them: {'; '.join(demangle(name) for name, _ in each[:6])}",
        )
    return Reading(value, each[0][1], tuple(places) if elsewhere else ())


def key_cookies(argument: str, place: Place) -> list[int]:
    """What the BPF program is told of each function of a place: the position of the key, and its unused bits."""
    position = _POSITION.match(argument)
    if position:
        return [int(position[1])] * len(place.offsets)
    from causal.symbols.parameters import find_identity

    binary = Binary.load(place.path)
    found = [find_identity(binary, *each, argument) for each in zip(place.offsets, place.names, strict=True)]
    return [each.position | (64 - 8 * each.size) << 8 for each in found]


def find_place(option: str, spec: str, main: Binary, libraries: Sequence[str]) -> list[Place]:
    """The places that a SPEC means; raises CausalError with near names when there is none."""
    try:
        probes = resolve(parse_spec(spec), main, libraries)
    except CausalError as error:
        message = error.message.replace("progress point", option, 1)
        raise CausalError(message, error.hint, error.exit_code) from None
    paths = dict.fromkeys(probe.path for probe in probes)
    by_path = {path: [probe for probe in probes if probe.path == path] for path in paths}
    return [
        Place(path, tuple(each.file_offset for each in these), tuple(each.symbol for each in these))
        for path, these in by_path.items()
    ]
