"""In which registers a value of a type is passed, from the type's DWARF entry.

System V x86-64 ABI, section 3.2.3, and for C++ the Itanium C++ ABI, section 3.1.2: what a copy constructor or a
destructor has to deal with is passed by the address of a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from elftools.dwarf.die import DIE

INTEGER_REGISTERS, VECTOR_REGISTERS = 6, 8
POINTERS = ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type")
REFERENCES = POINTERS[1:]
AGGREGATES = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
_WRAPPERS = tuple(
    f"DW_TAG_{name}" for name in ("typedef", "const_type", "volatile_type", "restrict_type", "atomic_type")
)
SCALARS = (*POINTERS, "DW_TAG_base_type", "DW_TAG_enumeration_type", "DW_TAG_unspecified_type")
_SIGNED = (0x05, 0x06, 0x0D)  # DW_ATE_signed, signed_char, signed_fixed
_FLOATS = (0x03, 0x04, 0x0F)  # DW_ATE_complex_float, float, decimal_float
_BY_REFERENCE = 4  # DW_CC_pass_by_reference
_DEFAULTED_IN_CLASS = 1  # DW_DEFAULTED_in_class
_C = (0x01, 0x02, 0x0C, 0x1D, 0x2C)  # DW_LANG_C89, C, C99, C11, C17
_BYTES = 8  # of a register
_LARGEST = 16  # what is larger is passed in memory


class UnknownPassing(Exception):
    """The debug information does not tell how a value of this type is passed."""


@dataclass(frozen=True)
class Passing:
    """`eightbytes` says of each 8 bytes: integer, vector or none (padding); () where it is in memory.

    `by_reference`: an integer register holds the address.
    """

    eightbytes: tuple[str, ...]
    by_reference: bool = False

    @property
    def integers(self) -> int:
        """Integer registers that it takes."""
        return self.eightbytes.count("integer")

    @property
    def vectors(self) -> int:
        """Vector registers that it takes."""
        return self.eightbytes.count("vector")


def passing(kind: DIE | None) -> Passing:
    """How a value of a type (as type_of gives it) is passed. Raises UnknownPassing."""
    if kind is None:
        return Passing(("integer",))
    if kind.tag not in AGGREGATES:
        return _scalar(kind)
    if not _is_trivial(kind):
        return Passing(("integer",), by_reference=True)
    size = size_of(kind)
    if size > _LARGEST:
        return Passing(())
    eightbytes = ["none"] * ((size + _BYTES - 1) // _BYTES)
    for offset, leaf in _leaves(kind, 0):
        if leaf is None or offset % min(size_of(leaf), _BYTES):
            return Passing(())  # not aligned: in memory
        for index, each in enumerate(_scalar(leaf).eightbytes or ("memory",), offset // _BYTES):
            if each == "memory":
                return Passing(())
            if eightbytes[index] != "integer":
                eightbytes[index] = each
    return Passing(tuple(eightbytes))


def _is_trivial(kind: DIE) -> bool:
    """Whether objects of a class can be copied byte by byte. Raises UnknownPassing."""
    convention = number(kind, "DW_AT_calling_convention")  # clang says it
    if convention is not None:
        return convention != _BY_REFERENCE
    if number(kind.cu.get_top_DIE(), "DW_AT_language") in _C:
        return True
    if number(kind, "DW_AT_declaration"):
        raise UnknownPassing
    copies = []
    for child in kind.iter_children():
        if child.tag == "DW_TAG_subprogram":
            if number(child, "DW_AT_virtuality"):
                return False
            if name_of(child).startswith("~") and _is_provided(child):
                return False
            if _is_copy(child, kind):
                if _is_provided(child):
                    return False
                copies.append(child)
        elif child.tag == "DW_TAG_inheritance" and number(child, "DW_AT_virtuality"):
            return False
    if copies and all(number(each, "DW_AT_deleted") for each in copies):
        return False
    parts = (_element(type_of(member)) for member in members_of(kind))
    return all(_is_trivial(part) for part in parts if part is not None and part.tag in AGGREGATES)


def _element(kind: DIE | None) -> DIE | None:
    while kind is not None and kind.tag == "DW_TAG_array_type":
        kind = type_of(kind)
    return kind


def _is_copy(function: DIE, kind: DIE) -> bool:
    """Whether a member function is a constructor from another object of its class."""
    if name_of(function) != name_of(kind).partition("<")[0]:
        return False
    parameters = [child for child in function.iter_children() if child.tag == "DW_TAG_formal_parameter"]
    source = type_of(parameters[1]) if len(parameters) == 2 else None
    return source is not None and source.tag in REFERENCES and type_of(source) == kind


def _is_provided(function: DIE) -> bool:
    """Whether a special member function was written by hand, so that it may do anything."""
    if number(function, "DW_AT_artificial") or number(function, "DW_AT_deleted"):
        return False
    if function.cu["version"] < 5:
        raise UnknownPassing  # `= default` is said since DWARF 5
    return number(function, "DW_AT_defaulted") != _DEFAULTED_IN_CLASS


def _scalar(kind: DIE) -> Passing:
    if kind.tag == "DW_TAG_ptr_to_member_type":
        target = type_of(kind)
        return Passing(("integer",) * (2 if target is not None and target.tag == "DW_TAG_subroutine_type" else 1))
    if kind.tag not in SCALARS:
        raise UnknownPassing
    size = size_of(kind)
    if is_float(kind):
        complex_number = number(kind, "DW_AT_encoding") == _FLOATS[0]
        if size > _BYTES and not (complex_number and size == _LARGEST):
            return Passing(())  # long double
        return Passing(("vector",) * ((size + _BYTES - 1) // _BYTES))
    return Passing(("integer",) * ((size + _BYTES - 1) // _BYTES))


def _leaves(kind: DIE, base: int) -> Iterator[tuple[int, DIE | None]]:
    """The scalars in a type of at most 16 bytes, and their offsets."""
    if kind.tag in AGGREGATES:
        for member in members_of(kind):
            inner = type_of(member)
            if inner is None:
                raise UnknownPassing
            yield from _leaves(inner, base + offset_of(member))
    elif kind.tag == "DW_TAG_array_type":
        element = type_of(kind)
        ranges = [child for child in kind.iter_children() if child.tag == "DW_TAG_subrange_type"]
        if element is None or len(ranges) != 1:
            raise UnknownPassing
        upper, count = number(ranges[0], "DW_AT_upper_bound"), number(ranges[0], "DW_AT_count")
        length = count if count is not None else -1 if upper is None else upper + 1
        if not 0 <= length <= _LARGEST:
            raise UnknownPassing
        for index in range(length):
            yield from _leaves(element, base + index * size_of(element))
    else:
        yield base, kind


def members_of(kind: DIE) -> Iterator[DIE]:
    """The members that each object of a class has, and the parts that are its base classes."""
    for child in kind.iter_children():
        static = "DW_AT_external" in child.attributes or "DW_AT_declaration" in child.attributes
        if child.tag == "DW_TAG_inheritance" or (child.tag == "DW_TAG_member" and not static):
            yield child


def offset_of(member: DIE) -> int:
    """Where a member or base class begins in its object; raises UnknownPassing for a virtual base."""
    if "DW_AT_data_bit_offset" in member.attributes:
        return (number(member, "DW_AT_data_bit_offset") or 0) // 8
    if "DW_AT_data_member_location" not in member.attributes:
        return 0  # of a union
    offset = number(member, "DW_AT_data_member_location")
    if offset is None or number(member, "DW_AT_virtuality"):
        raise UnknownPassing
    return offset


def size_of(kind: DIE) -> int:
    """Size in bytes; that of a pointer where nothing is said."""
    size = number(kind, "DW_AT_byte_size")
    return _BYTES if size is None else size


def is_float(kind: DIE) -> bool:
    """Whether a type is one of floating-point numbers."""
    return number(kind, "DW_AT_encoding") in _FLOATS


def is_signed(kind: DIE) -> bool:
    """Whether a type is one of signed integers."""
    return number(kind, "DW_AT_encoding") in _SIGNED


def number(die: DIE, attribute: str) -> int | None:
    """The value of an attribute; None where it is not there, or not constant."""
    found = die.attributes.get(attribute)
    return int(found.value) if found is not None and isinstance(found.value, int) else None


def origin(die: DIE) -> DIE | None:
    """The entry that says the rest about this one."""
    for attribute in ("DW_AT_abstract_origin", "DW_AT_specification"):
        if attribute in die.attributes:
            return die.get_DIE_from_attribute(attribute)
    return None


def name_of(die: DIE | None) -> str:
    """The name of a parameter, function, member or type; empty where it has none."""
    while die is not None:
        if "DW_AT_name" in die.attributes:
            return str(die.attributes["DW_AT_name"].value.decode(errors="replace"))
        die = origin(die)
    return ""


def type_of(die: DIE | None) -> DIE | None:
    """The type of a parameter or member, of the result of a function, or of what a pointer points to, without its
    qualifiers and further names; None for void.
    """
    while die is not None and "DW_AT_type" not in die.attributes:
        die = origin(die)
    kind = die.get_DIE_from_attribute("DW_AT_type") if die is not None else None
    while kind is not None and kind.tag in _WRAPPERS:
        kind = kind.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in kind.attributes else None
    if kind is not None and "DW_AT_signature" in kind.attributes:  # it has a unit of its own (-fdebug-types-section)
        with contextlib.suppress(KeyError):
            return kind.get_DIE_from_attribute("DW_AT_signature")
    return kind
