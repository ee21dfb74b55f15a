"""Split debug information (`-gsplit-dwarf`): the .dwo files a program names, or the .dwp file they were packed into.

Looks where gdb looks: PROGRAM.dwp beside the program, then the files themselves, as the compiler called them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from causal.errors import CausalError
from causal.symbols.native import CONTRIBUTION_DTYPE, SPLIT_SECTIONS, Reader, Skeleton
from causal.symbols.sections import SectionFile

_INFO, _ABBREV, _STRINGS, _STR_OFFSETS, _RNGLISTS = SPLIT_SECTIONS
_ZEROS = np.zeros(0, CONTRIBUTION_DTYPE)
# DW_SECT_*: column of the index of a .dwp file -> what begins there. 8 was .debug_macro.dwo before version 5.
_COLUMNS = {1: "info", 3: "abbrev", 6: "str_offsets", 8: "rnglists"}


@dataclass
class SplitFiles:
    """What was found. `missing`: the first file that is not there or damaged, "" when there is none."""

    sections: Mapping[str, bytes | bytearray] = field(default_factory=dict)
    contributions: NDArray[np.void] = field(default_factory=lambda: _ZEROS)
    missing: str = ""

    @property
    def size(self) -> int:
        """Bytes of debug information."""
        return sum(map(len, self.sections.values()))


def add_split_files(reader: Reader, paths: Iterable[str]) -> SplitFiles:
    """Give the reader of a program, whose file and whose debug file `paths` are, the entries that lie elsewhere."""
    files = find_split_files(reader.skeletons(), paths)
    reader.add_split(files.sections, files.contributions)
    return files


def find_split_files(skeletons: Sequence[Skeleton], paths: Iterable[str]) -> SplitFiles:
    """The entries of these units of a program whose file and whose debug file `paths` are."""
    return (read_packed(paths) or read_loose(skeletons)) if skeletons else SplitFiles()


def packed_identity(paths: Iterable[str]) -> str:
    """Differs between one .dwp file, another and none."""
    for path in filter(os.path.isfile, _packed_paths(paths)):
        status = os.stat(path)
        return f":{path}:{status.st_size}:{status.st_mtime_ns}"
    return ""


def _packed_paths(paths: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(f"{os.path.realpath(path)}.dwp" for path in paths)


def read_packed(paths: Iterable[str]) -> SplitFiles | None:
    """The .dwp file beside one of these files; None where there is none."""
    for path in _packed_paths(paths):
        sections = _read(path, [*SPLIT_SECTIONS, ".debug_cu_index"])
        found = _contributions(sections.pop(".debug_cu_index", b"")) if sections else _ZEROS
        if sections and len(found):
            return SplitFiles(sections, found)
    return None


def read_loose(skeletons: Sequence[Skeleton]) -> SplitFiles:
    """The .dwo files that these units name."""
    whole: dict[str, bytearray] = {name: bytearray() for name in SPLIT_SECTIONS}
    rows, missing = [], ""
    for path in _once(os.path.join(skeleton.directory, skeleton.name) for skeleton in skeletons):
        sections = _read(path, SPLIT_SECTIONS)
        size = len(sections.get(_INFO, b""))
        if not size:
            missing = missing or path
            continue
        starts = (len(whole[name]) for name in (_ABBREV, _STRINGS, _STR_OFFSETS, _RNGLISTS))
        rows.append((len(whole[_INFO]), size, *starts))
        for name, content in sections.items():
            whole[name] += content
    return SplitFiles(whole, np.array(rows, CONTRIBUTION_DTYPE), missing)


def _once(paths: Iterable[str]) -> Iterator[str]:
    """Each file once, by whatever name: a hostile program must not have one read a million times."""
    seen = set()
    for path in dict.fromkeys(paths):
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            yield path
            continue
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield path


def _read(path: str, names: Sequence[str]) -> dict[str, bytes]:
    """Those of these sections that a file has; {} where there is none, or it is damaged."""
    if not os.path.isfile(path):  # a pipe would never end
        return {}
    try:
        with open(path, "rb") as file:
            return SectionFile(path, file).read_all(names)
    except (OSError, CausalError):
        return {}


def _contributions(index: bytes) -> NDArray[np.void]:
    """The rows of a .debug_cu_index (DWARF 5, section 7.3.5; version 2 is that of GNU for DWARF 4)."""
    try:
        version, columns, units, slots = struct.unpack_from("<4I", index)
        if version & 0xFFFF not in (2, 5) or not columns or not units:
            return _ZEROS
        table = np.frombuffer(index, "<u4", offset=16 + 12 * slots)[: columns * (2 * units + 1)]
        offsets, sizes = table[columns:].reshape(2, units, columns)
    except (struct.error, ValueError):
        return _ZEROS
    found = np.zeros(units, CONTRIBUTION_DTYPE)
    for at, kind in enumerate(table[:columns].tolist()):
        name = _COLUMNS.get(kind)
        if name is not None:
            found[name] = offsets[:, at]
        if name == "info":
            found["info_size"] = sizes[:, at]
    return found
