"""Where the parameters of a function are when it is called, by the names that DWARF has for them.

At its first instruction the calling convention alone decides (System V x86-64 ABI, section 3.2.3): integers and
pointers are in six registers, in order; floating-point numbers are elsewhere. So only names, order and types are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

from causal.errors import CausalError
from causal.symbols.elf import Binary

_SIGNED = (0x05, 0x06, 0x0D)  # DW_ATE_signed, signed_char, signed_fixed
_FLOATS = (0x03, 0x04, 0x0F)  # DW_ATE_complex_float, float, decimal_float
_BY_REFERENCE = 4  # DW_CC_pass_by_reference
_WRAPPERS = tuple(
    f"DW_TAG_{name}" for name in ("typedef", "const_type", "volatile_type", "restrict_type", "atomic_type")
)
_POINTERS = ("DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type")
_AGGREGATES = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
_HINT = "name it by position: arg1 is the first one"


@dataclass(frozen=True)
class Parameter:
    """`position` counts from 1 among those in integer registers (None: it is not in one); `size` in bytes."""

    name: str
    position: int | None
    size: int
    signed: bool


def find_parameter(binary: Binary, offset: int, function: str, name: str) -> Parameter:
    """The parameter `name` of the function at a file offset. Raises CausalError, with the names there are."""
    if ".isra" in function or ".constprop" in function:
        raise CausalError(f"the compiler has changed the parameters of {function}", _HINT)
    address = next((offset - s.offset + s.vaddr for s in binary.segments
                    if s.executable and s.offset <= offset < s.offset + s.filesz), None)  # fmt: skip
    with open(binary.path, "rb") as file:
        elf = ELFFile(file)
        if not elf.has_dwarf_info():
            raise CausalError(f"{binary.name} has no debug information, so names of parameters are unknown", _HINT)
        die = _subprogram(elf.get_dwarf_info(), address)
        if die is None:
            raise CausalError(f"{binary.name} has no debug information for {function}", _HINT)
        parameters = _parameters(die)
    found = next((each for each in parameters if each.name == name), None)
    if found is None:
        names = ", ".join(each.name for each in parameters if each.name) or "none"
        raise CausalError(f"{function} has no parameter {name}", f"its parameters: {names}")
    if found.position is None:
        raise CausalError(f"parameter {name} of {function} is not in an integer register", "choose another one")
    return found


def _subprogram(info: Any, address: int | None) -> DIE | None:
    aranges = info.get_aranges()
    at = aranges.cu_offset_at_addr(address) if aranges else None
    units = [info.get_CU_at(at)] if at is not None else info.iter_CUs()
    for unit in units:
        die: DIE
        for die in unit.iter_DIEs():
            if die.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in die.attributes:
                low = die.attributes["DW_AT_low_pc"]
                value = info.get_addr(unit, low.value) if low.form.startswith("DW_FORM_addrx") else low.value
                if value == address:
                    return die
    return None


def _parameters(die: DIE) -> list[Parameter]:
    result = []
    position = 1 + _returns_in_memory(die)
    lost = False  # behind an aggregate passed by value nothing is certain
    for child in die.iter_children():
        if child.tag != "DW_TAG_formal_parameter":
            continue
        kind = _type(child)
        size, signed, integer = _describe(kind)
        lost |= integer is None
        has_place = bool(integer) and not lost and position <= 6
        result.append(Parameter(_name(child), position if has_place else None, size, signed))
        position += bool(integer)
    return result


def _describe(kind: DIE | None) -> tuple[int, bool, bool | None]:
    """Size in bytes, signedness, and whether it takes an integer register (None: cannot be said)."""
    if kind is None:
        return 8, False, None
    if kind.tag in _POINTERS:
        return 8, False, True
    if kind.tag == "DW_TAG_ptr_to_member_type":
        return 8, False, None
    size = int(kind.attributes["DW_AT_byte_size"].value) if "DW_AT_byte_size" in kind.attributes else 8
    if kind.tag in _AGGREGATES:
        convention = kind.attributes.get("DW_AT_calling_convention")
        return 8, False, True if convention is not None and convention.value == _BY_REFERENCE else None
    encoding = kind.attributes["DW_AT_encoding"].value if "DW_AT_encoding" in kind.attributes else 0
    if encoding in _FLOATS:
        return size, False, False
    return (size, encoding in _SIGNED, True) if size <= 8 else (size, False, None)


def _returns_in_memory(die: DIE) -> bool:
    """Whether the first register holds the place for the result."""
    kind = _type(die)
    if kind is None or kind.tag not in _AGGREGATES:
        return False
    convention = kind.attributes.get("DW_AT_calling_convention")
    size = kind.attributes.get("DW_AT_byte_size")
    by_reference = convention is not None and convention.value == _BY_REFERENCE
    return by_reference or (size is not None and int(size.value) > 16)


def _origin(die: DIE) -> DIE | None:
    for attribute in ("DW_AT_abstract_origin", "DW_AT_specification"):
        if attribute in die.attributes:
            return die.get_DIE_from_attribute(attribute)
    return None


def _name(die: DIE | None) -> str:
    while die is not None:
        if "DW_AT_name" in die.attributes:
            return str(die.attributes["DW_AT_name"].value.decode(errors="replace"))
        die = _origin(die)
    return ""


def _type(die: DIE | None) -> DIE | None:
    """The type of a parameter, or of the result of a function, without its qualifiers and further names."""
    while die is not None and "DW_AT_type" not in die.attributes:
        die = _origin(die)
    kind = die.get_DIE_from_attribute("DW_AT_type") if die is not None else None
    while kind is not None and kind.tag in _WRAPPERS:
        kind = kind.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in kind.attributes else None
    return kind
