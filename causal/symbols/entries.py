"""The entries of debug information, by pyelftools, wherever they lie: in the program, in a separate file, in the
alternate file that dwz made of what several have in common, in the .dwo files of a program built with -gsplit-dwarf."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from elftools.common.exceptions import DWARFError
from elftools.dwarf.die import AttributeValue
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

from causal.symbols.debugfile import find_debug_path, read_debug_file
from causal.symbols.elf import Binary
from causal.symbols.native import SPLIT_SECTIONS, Skeleton
from causal.symbols.split import SplitFiles, read_loose, read_packed

# Arguments of DWARFInfo, which takes a place for each section that there may be.
_ALL = (
    "debug_info", "debug_aranges", "debug_abbrev", "debug_frame", "eh_frame", "debug_str", "debug_loc", "debug_ranges",
    "debug_line", "debug_pubtypes", "debug_pubnames", "debug_addr", "debug_str_offsets", "debug_line_str",
    "debug_loclists", "debug_rnglists", "debug_sup", "gnu_debugaltlink", "debug_types",
)  # fmt: skip
# What reading lines does without: an index of units by address, and the types of DWARF 4 that several units share.
_FURTHER = (".debug_aranges", ".debug_types")
_LISTS = ("debug_loc", "debug_loclists", "debug_ranges", "debug_rnglists")
_COLUMNS = ("info", "abbrev", "strings", "str_offsets", "rnglists")  # of contributions, for SPLIT_SECTIONS
_NAMES = ("DW_AT_dwo_name", "DW_AT_comp_dir")
_ADDRESS_BASE = "DW_AT_addr_base"
# Where the first entry is in the parts that a .dwo file has (DWARF 5, sections 7.26, 7.28, 7.29). Other units say it.
_BASES = {"DW_AT_str_offsets_base": 8, "DW_AT_rnglists_base": 12, "DW_AT_loclists_base": 12}


class Entries:
    """Debug information of a binary. `paths`: the files it is in, beside which there may be a .dwp file."""

    def __init__(self, info: Any, paths: Sequence[str]) -> None:
        self._info = info
        self._paths = paths
        self.lacking = ""  # what units lack, for want of a .dwo file

    def units(self, address: int | None) -> Iterator[Any]:
        """The units that may have the code at an address, those of .dwo files instead of what stands for them."""
        aranges = self._info.get_aranges()
        at = aranges.cu_offset_at_addr(address) if aranges else None
        for unit in [self._info.get_CU_at(at)] if at is not None else self._info.iter_CUs():
            if "DW_AT_GNU_dwo_name" in unit.get_top_DIE().attributes:
                self.lacking = "that of .dwo files is read where it is DWARF 5 (-gdwarf-5)"
            skeleton = _skeleton(unit)
            yield (self._split(unit, skeleton) or unit) if skeleton else unit

    @functools.cached_property
    def _packed(self) -> SplitFiles | None:
        return read_packed(self._paths)

    def _split(self, unit: Any, skeleton: Skeleton) -> Any | None:
        files = self._packed or read_loose([skeleton])
        for row in files.contributions:
            if self._packed and not _begins_with(files.sections[".debug_info.dwo"], int(row["info"]), skeleton.id):
                continue
            sections = {
                name.removesuffix(".dwo"): bytes(files.sections.get(name, b"")[int(row[column]) :])
                for name, column in zip(SPLIT_SECTIONS, _COLUMNS, strict=True)
            }
            sections[".debug_info"] = sections[".debug_info"][: int(row["info_size"])]
            info = _as_dwarf(sections)
            info.debug_addr_sec = self._info.debug_addr_sec
            for found in info.iter_CUs():
                if found.header.get("dwo_id") == skeleton.id:
                    return _complete(found, unit)
        path = files.missing or os.path.join(skeleton.directory, skeleton.name)
        self.lacking = f"{path} is not there, or is another one"
        return None


def read_entries(binary: Binary) -> Entries | None:
    """The debug information of a binary; None where there is none. Raises CausalError when it is damaged."""
    path = find_debug_path(binary)
    if path is None:
        return None
    sections = read_debug_file(path, further=_FURTHER).sections
    if not sections.get(".debug_info"):
        return None
    shared = {name.removeprefix("sup"): content for name, content in sections.items() if name.startswith("sup")}
    info = _as_dwarf(sections)
    if shared:
        info.supplementary_dwarfinfo = _as_dwarf(shared)
    return Entries(info, tuple(dict.fromkeys((binary.path, path))))


def _begins_with(entries: bytes | bytearray, at: int, identity: int) -> bool:
    """Whether the unit there is that one: a packed file has thousands (header: DWARF 5, section 7.5.1.2)."""
    return int.from_bytes(entries[at + 12 : at + 20], "little") == identity


def _skeleton(unit: Any) -> Skeleton | None:
    """What a unit of DWARF 5 says about the file that its entries are in; None where it has them itself.

    Before DWARF 5 there are forms in such files that pyelftools does not follow.
    """
    given = unit.get_top_DIE().attributes
    if "DW_AT_dwo_name" not in given or "dwo_id" not in unit.header:
        return None
    name, directory = (os.fsdecode(given[key].value) if key in given else "" for key in _NAMES)
    return Skeleton(unit.header["dwo_id"], name, directory)


def _complete(unit: Any, skeleton: Any) -> Any:
    """Give a unit from a .dwo file what only its skeleton says, or nobody: where its strings and addresses begin."""
    with contextlib.suppress(DWARFError):  # the top entry has names, too
        unit.get_top_DIE()
    top, bases = unit.get_top_DIE(), dict(_BASES)
    if _ADDRESS_BASE in skeleton.get_top_DIE().attributes:
        bases[_ADDRESS_BASE] = skeleton.get_top_DIE().attributes[_ADDRESS_BASE].value
    for name, value in bases.items():
        top.attributes[name] = AttributeValue(name, "DW_FORM_sec_offset", value, value, 0, 0)
    return unit


class _Zeros(BytesIO):
    """Endless. Lists of ranges and locations are looked up with each entry, and nobody here asks what is in them."""

    def read(self, size: int | None = -1, /) -> bytes:
        return bytes(max(size or 0, 0))


def _as_dwarf(sections: Mapping[str, bytes]) -> Any:
    descriptors = {f"{name}_sec": _descriptor(f".{name}", sections.get(f".{name}")) for name in _ALL}
    for name in _LISTS:
        descriptors[f"{name}_sec"] = DebugSectionDescriptor(_Zeros(), f".{name}", 0, 0, 0)
    return DWARFInfo(config=DwarfConfig(True, "x64", 8), **descriptors)


def _descriptor(name: str, content: bytes | None) -> DebugSectionDescriptor | None:
    return DebugSectionDescriptor(BytesIO(content), name, 0, len(content), 0) if content else None
