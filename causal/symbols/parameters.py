"""Where the parameters of a function are when it is called, by the names that DWARF has for them.

At its first instruction the calling convention alone decides (causal.symbols.passing): so only names, order and types
are read. Members of what a parameter points to, or refers to, are in memory, at an offset that the type says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.dwarf.die import DIE

from causal.errors import CausalError
from causal.symbols.demangle import demangle
from causal.symbols.elf import Binary
from causal.symbols.entries import Entries, read_entries
from causal.symbols.passing import (
    AGGREGATES,
    INTEGER_REGISTERS,
    POINTERS,
    REFERENCES,
    SCALARS,
    VECTOR_REGISTERS,
    Passing,
    UnknownPassing,
    is_float,
    is_signed,
    members_of,
    name_of,
    number,
    offset_of,
    passing,
    size_of,
    type_of,
)

_HINT = "name it by position: arg1 is the first one"
# Members in which classes of the C++ library keep how long their text is (libstdc++: string, string_view).
_LENGTHS = ("_M_string_length", "_M_len")


@dataclass(frozen=True)
class Parameter:
    """Where a value is: in the integer register `position` (from 1), `shift` bits up; or, where there is an `offset`,
    that many bytes behind the address in the register.

    `size` in bytes. `is_text`: it is the address of a C string whose length is wanted.
    """

    name: str
    position: int
    size: int = 8
    signed: bool = False
    offset: int | None = None
    shift: int = 0
    is_text: bool = False


@dataclass(frozen=True)
class _Declared:
    """`registers` has one per 8 bytes (None: of another kind); None where nobody can say."""

    name: str
    kind: DIE | None
    registers: tuple[int | None, ...] | None
    by_reference: bool


def find_parameter(binary: Binary, offset: int, function: str, name: str, string: bool = False) -> Parameter:
    """What `name` means, a parameter or `parameter.member`, in the function at a file offset.

    A reference means what it refers to; `string`: the length of a text. Raises CausalError, with the names there are.
    """
    parameter, *path = name.split(".")
    with _explained(binary, function, name):
        place = _Place(demangle(function), _declared(binary, offset, function, parameter))
        for member in path:
            place.enter(member)
        return place.settle(string)


def find_identity(binary: Binary, offset: int, function: str, name: str) -> Parameter:
    """The register of a parameter that tells objects apart: of a reference the address. Raises CausalError."""
    with _explained(binary, function, name):
        found = _declared(binary, offset, function, name)
        if not found.registers or found.registers[0] is None or len(found.registers) > 1:
            raise _elsewhere(name, demangle(function))
        is_number = found.kind is not None and found.kind.tag not in AGGREGATES
        size = size_of(found.kind) if found.kind is not None and is_number else 8
        return Parameter(name, found.registers[0], size)


@contextlib.contextmanager
def _explained(binary: Binary, function: str, name: str) -> Iterator[None]:
    """What goes wrong with debug information has a message."""
    try:
        yield
    except UnknownPassing:
        raise _unknown(name, demangle(function)) from None
    except (CausalError, OSError):
        raise
    except Exception as error:  # pyelftools lets almost anything escape from damaged files
        what = str(error) or type(error).__name__
        raise CausalError(f"the debug information of {binary.name} is damaged: {what}", _HINT) from error


def _declared(binary: Binary, offset: int, function: str, name: str) -> _Declared:
    if ".isra" in function or ".constprop" in function:
        raise CausalError(f"the compiler has changed the parameters of {function}", _HINT)
    function = demangle(function)
    address = next((offset - s.offset + s.vaddr for s in binary.segments
                    if s.executable and s.offset <= offset < s.offset + s.filesz), None)  # fmt: skip
    entries = read_entries(binary)
    if entries is None:
        raise CausalError(f"{binary.name} has no debug information, so names of parameters are unknown", _HINT)
    die = _subprogram(entries, address)
    if die is None:
        reason = f" itself (-gsplit-dwarf): {entries.lacking}" if entries.lacking else ""
        raise CausalError(f"{binary.name} has no debug information for {function}{reason}", _HINT)
    parameters = _parameters(die)
    found = next((each for each in parameters if each.name == name), None)
    if found is None:
        names = ", ".join(each.name for each in parameters if each.name) or "none"
        raise CausalError(f"{function} has no parameter {name}", f"its parameters: {names}")
    return found


def _subprogram(entries: Entries, address: int | None) -> DIE | None:
    for unit in entries.units(address):
        die: DIE
        for die in unit.iter_DIEs():
            if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes:
                low = die.attributes["DW_AT_low_pc"]
                indirect = low.form.startswith("DW_FORM_addrx")
                if (unit.dwarfinfo.get_addr(unit, low.raw_value) if indirect else low.value) == address:
                    return die
    return None


def _parameters(die: DIE) -> list[_Declared]:
    result = []
    integers, vectors = 0, 0
    known = True  # behind what nobody can say nothing is certain
    try:
        kind = type_of(die)
        # The first register holds the place for a large result.
        integers += kind is not None and kind.tag in AGGREGATES and _in_memory(passing(kind))
    except UnknownPassing:
        known = False
    for child in die.iter_children():
        if child.tag != "DW_TAG_formal_parameter":
            continue
        kind = type_of(child)
        how = Passing(())
        try:
            how = passing(kind)
        except UnknownPassing:
            known = False
        fits = integers + how.integers <= INTEGER_REGISTERS and vectors + how.vectors <= VECTOR_REGISTERS
        registers: list[int | None] = []
        for each in how.eightbytes if fits else ():
            integers += each == "integer"
            vectors += each == "vector"
            registers.append(integers if each == "integer" else None)
        result.append(_Declared(name_of(child), kind, tuple(registers) if known else None, how.by_reference))
    return result


def _in_memory(how: Passing) -> bool:
    return how.by_reference or not how.eightbytes


class _Place:
    """The way from a parameter to a value: in registers, or behind an address in one."""

    def __init__(self, function: str, parameter: _Declared) -> None:
        self._function = function
        self._path = parameter.name
        self._kind = parameter.kind
        self._registers = parameter.registers or ()
        self._base: int | None = None  # the register with the address, once it is behind one
        self._offset = 0
        if parameter.registers is None:
            raise _unknown(parameter.name, function)
        if not parameter.registers:
            raise _elsewhere(parameter.name, function)
        if parameter.by_reference:
            self._base = self._register()

    def _register(self) -> int:
        index = self._offset // 8
        register = self._registers[index] if index < len(self._registers) else None
        if register is None:
            raise _elsewhere(self._path, self._function)
        return register

    def enter(self, member: str) -> None:
        """Go to a member of what is here, or of what is pointed to."""
        self._follow()
        if self._kind is None or self._kind.tag not in AGGREGATES:
            raise CausalError(f"{self._path} of {self._function} is no structure", "name it alone")
        found = _find_member(self._kind, member)
        if found is None:
            raise CausalError(f"{self._path} of {self._function} has no member {member}", _names(self._kind))
        self._offset += found[0]
        self._kind = type_of(found[1])
        self._path += f".{member}"
        if "DW_AT_bit_size" in found[1].attributes:
            raise CausalError(f"{self._path} is a bit field, which cannot be read", "choose another member")

    def _follow(self) -> None:
        """To what a pointer points to."""
        if self._kind is None or self._kind.tag not in POINTERS:
            return
        if self._base is not None:
            raise CausalError(
                f"{self._path} of {self._function} is a pointer in memory, which is not followed",
                "choose an argument of a function that is called with it: NAME@FUNCTION",
            )
        self._base, self._offset = self._register(), 0
        self._kind = type_of(self._kind)

    def settle(self, string: bool) -> Parameter:
        """Where the value is."""
        is_text = string and not self._enter_length()
        if not string and self._kind is not None and self._kind.tag in REFERENCES and self._base is None:
            self._follow()
        kind = self._kind
        if kind is not None and kind.tag in AGGREGATES:
            raise CausalError(f"{self._path} of {self._function} is no number", _names(kind))
        size = 8 if kind is None else size_of(kind)
        if kind is not None and (kind.tag not in SCALARS or is_float(kind) or size > 8):
            raise CausalError(
                f"{self._path} of {self._function} is no integer, and only integers can be read", "choose another one"
            )
        signed = kind is not None and is_signed(kind)
        if self._base is not None:
            return Parameter(self._path, self._base, size, signed, self._offset, is_text=is_text)
        shift = 8 * (self._offset % 8)
        return Parameter(self._path, self._register(), size, signed, shift=shift, is_text=is_text)

    def _enter_length(self) -> bool:
        """To the length that a class for text keeps; False for the address of a C string."""
        kind = self._kind
        if kind is not None and kind.tag in POINTERS:
            target = type_of(kind)
            if target is None or target.tag not in AGGREGATES:
                return False
            kind = target
        if kind is None or kind.tag not in AGGREGATES:
            raise CausalError(f"{self._path} of {self._function} is no string", "name it without string-length:")
        for name in _LENGTHS:
            if _find_member(kind, name):
                self.enter(name)
                return True
        raise CausalError(
            f"where {name_of(kind) or 'this type'} keeps the length of its text is not known",
            f"name a member instead of string-length:{self._path}; {_names(kind)}",
        )


def _find_member(kind: DIE, name: str) -> tuple[int, DIE] | None:
    """Offset and entry of a member, also of base classes and of structures without a name."""
    for each in members_of(kind):
        if name_of(each) == name and each.tag == "DW_TAG_member":
            return offset_of(each), each
    for each in members_of(kind):
        inner = type_of(each)
        if inner is not None and inner.tag in AGGREGATES and (each.tag == "DW_TAG_inheritance" or not name_of(each)):
            try:
                found = _find_member(inner, name)
                if found:
                    return offset_of(each) + found[0], found[1]
            except UnknownPassing:
                continue  # in a virtual base
    return None


def _names(kind: DIE) -> str:
    if number(kind, "DW_AT_declaration"):
        return "the debug information does not say what is in it"
    names: list[str] = []
    for each in members_of(kind):
        inner = type_of(each)
        inside = inner is not None and inner.tag in AGGREGATES and (each.tag != "DW_TAG_member" or not name_of(each))
        names += [name_of(each)] if not inside or inner is None else [name_of(m) for m in members_of(inner)]
    return f"its members: {', '.join(filter(None, names)) or 'none'}"


def _unknown(name: str, function: str) -> CausalError:
    return CausalError(f"the debug information does not say enough to find {name} of {function}", _HINT)


def _elsewhere(name: str, function: str) -> CausalError:
    return CausalError(f"parameter {name} of {function} is not in an integer register", "choose another one")
