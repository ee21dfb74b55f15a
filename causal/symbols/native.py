"""The compiled reader of DWARF (causal/symbols/native) as numpy arrays.

    reader = Reader(sections, code)         # sections: name -> bytes, code: (n, 2) addresses
    reader.lines(), reader.inlines(), reader.names(dies)

The reader takes any bytes: what makes no sense is left out and counted in `losses`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal.errors import CausalError

LIBRARY = Path(__file__).resolve().parent / "native" / "libcausal-dwarf.so"

# As in native/reader.h.
SECTIONS = (
    ".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str", ".debug_str_offsets",
    ".debug_addr", ".debug_ranges", ".debug_rnglists", "sup.debug_info", "sup.debug_abbrev", "sup.debug_str",
)  # fmt: skip
SPLIT_SECTIONS = (
    ".debug_info.dwo", ".debug_abbrev.dwo", ".debug_str.dwo", ".debug_str_offsets.dwo", ".debug_rnglists.dwo",
)  # fmt: skip
ROW_DTYPE = np.dtype([("address", "<u8"), ("file", "<u4"), ("line", "<u4")])
INSTANCE_DTYPE = np.dtype(
    [("die", "<u8"), ("parent", "<u4"), ("call_file", "<u4"), ("call_line", "<u4"), ("pad", "<u4")]
)
PIECE_DTYPE = np.dtype([("address", "<u8"), ("instance", "<u4"), ("pad", "<u4")])
SKELETON_DTYPE = np.dtype([("id", "<u8"), ("name", "<u4"), ("directory", "<u4"), ("unit", "<u4"), ("pad", "<u4")])
# Where in each of SPLIT_SECTIONS what one .dwo file contributes begins, and how long its entries are.
CONTRIBUTION_DTYPE = np.dtype(
    [(name, "<u8") for name in ("info", "info_size", "abbrev", "strings", "str_offsets", "rnglists")]
)
NO_INSTANCE = 0xFFFFFFFF
_TEXT, _OFFSET = np.dtype("u1"), np.dtype("<u8")
_ARRAYS = (ROW_DTYPE, INSTANCE_DTYPE, PIECE_DTYPE, _TEXT, _OFFSET, _TEXT, _OFFSET, SKELETON_DTYPE)
_ROWS, _INSTANCES, _PIECES, _PATHS, _PATH_OFFSETS, _NAMES, _NAME_OFFSETS, _SKELETONS = range(8)


@dataclass(frozen=True, slots=True)
class Losses:
    """Units: `lines` whose line program and `entries` whose entries could not be read to the end; `split` have their
    entries in .dwo files that were not found; `units` there are in all."""

    lines: int
    entries: int
    split: int
    units: int


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A unit whose entries are in another file: `name`, as seen from `directory`; `id` tells whether it is that one."""

    id: int
    name: str
    directory: str


class Section(ctypes.Structure):
    """struct section."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_uint64)]


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """The compiled library, whose functions have no types yet. Raises CausalError when it is not there."""
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise CausalError(
            f"the reader of debug information is missing or unusable: {error}", "run scripts/setup once more"
        ) from error


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library()
    library.reader_new.restype = ctypes.c_void_p
    library.reader_new.argtypes = [ctypes.POINTER(Section), ctypes.c_void_p, ctypes.c_uint64]
    library.reader_array.restype = ctypes.c_void_p
    library.reader_array.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    for name in ("reader_split", "reader_lines", "reader_inlines", "reader_names"):
        getattr(library, name).restype = ctypes.c_bool
    library.reader_lines.argtypes = library.reader_inlines.argtypes = [ctypes.c_void_p]
    library.reader_split.argtypes = [ctypes.c_void_p, ctypes.POINTER(Section), ctypes.c_void_p, ctypes.c_uint64]
    library.reader_names.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.reader_losses.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("reader_losses", "reader_trim", "reader_free"):
        getattr(library, name).restype = None
    library.reader_trim.argtypes = library.reader_free.argtypes = [ctypes.c_void_p]
    return library


class Reader:
    """Reads the debug information of one file. Arrays it returns are copies.

    `sections`: contents by the names in SECTIONS ("sup" for those of an alternate file); `code`: uint64 of shape
    (n, 2), first address of each executable segment and the one behind its last. Raises CausalError without memory.
    """

    def __init__(self, sections: Mapping[str, bytes], code: NDArray[np.uint64]) -> None:
        library = _library()
        self._kept: list[NDArray[np.uint8]] = []
        self._code = np.ascontiguousarray(code, np.uint64)
        self._handle = library.reader_new(self._table(SECTIONS, sections), self._code.ctypes.data, len(self._code))
        if not self._handle:
            raise _no_memory()
        weakref.finalize(self, library.reader_free, self._handle)

    def _table(self, names: Sequence[str], sections: Mapping[str, bytes | bytearray]) -> ctypes.Array[Section]:
        table = (Section * len(names))()
        for row, name in zip(table, names, strict=True):
            # A view: what it was made of stays as long as we do.
            content = np.frombuffer(sections.get(name, b"") or b"\0", np.uint8)
            self._kept.append(content)
            row.data, row.size = content.ctypes.data, len(sections.get(name, b""))
        return table

    def skeletons(self) -> list[Skeleton]:
        """The units whose entries are in other files."""
        found = self._array(_SKELETONS)
        if not len(found):
            return []
        names = dict(enumerate(self._texts(_NAMES, _NAME_OFFSETS)))
        ids, files, directories = (found[column].tolist() for column in ("id", "name", "directory"))
        return [
            Skeleton(number, names.get(file, ""), names.get(directory, ""))
            for number, file, directory in zip(ids, files, directories, strict=True)
        ]

    def add_split(self, sections: Mapping[str, bytes | bytearray], contributions: NDArray[np.void]) -> None:
        """The entries of skeletons, before anything else and once: SPLIT_SECTIONS of all files behind each other, and
        where each begins (CONTRIBUTION_DTYPE)."""
        ordered = np.sort(contributions.astype(CONTRIBUTION_DTYPE), order="info")
        table = self._table(SPLIT_SECTIONS, sections)
        if not _library().reader_split(self._handle, table, ordered.ctypes.data, len(ordered)):
            raise _no_memory()

    def lines(self) -> tuple[NDArray[np.void], list[str]]:
        """Rows (ROW_DTYPE, by address; each lasts until the next) and the paths they number from 1; file 0: none."""
        if not _library().reader_lines(self._handle):
            raise _no_memory()
        _library().reader_trim(self._handle)
        return self._array(_ROWS), self.paths()

    def inlines(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Instances (INSTANCE_DTYPE: functions, and calls inlined into their `parent`) and pieces (PIECE_DTYPE, by
        address): which instance the code from there on is part of. More `paths` may be known afterwards."""
        if not _library().reader_inlines(self._handle):
            raise _no_memory()
        return self._array(_INSTANCES), self._array(_PIECES)

    def names(self, dies: NDArray[np.uint64]) -> list[str]:
        """The linker's or else the plain name of each entry, "" where there is none; fastest when sorted."""
        wanted = np.ascontiguousarray(dies, np.uint64)
        ids = np.empty(len(wanted), np.uint32)
        if not _library().reader_names(self._handle, wanted.ctypes.data, len(wanted), ids.ctypes.data):
            raise _no_memory()
        texts = self._texts(_NAMES, _NAME_OFFSETS)
        return [texts[i] if i < len(texts) else "" for i in ids.tolist()]

    def paths(self) -> list[str]:
        """The paths of all files met so far; the first is file 1."""
        return self._texts(_PATHS, _PATH_OFFSETS)

    @property
    def losses(self) -> Losses:
        counts = (ctypes.c_uint64 * 4)()
        _library().reader_losses(self._handle, counts)
        return Losses(*counts)

    def _array(self, which: int) -> NDArray[Any]:
        count = ctypes.c_uint64()
        address = _library().reader_array(self._handle, which, ctypes.byref(count))
        dtype: np.dtype[Any] = _ARRAYS[which]
        if not count.value:
            return np.empty(0, dtype)
        view = (ctypes.c_char * (count.value * dtype.itemsize)).from_address(address)
        array: NDArray[Any] = np.frombuffer(memoryview(view), dtype)
        return array.copy()

    def _texts(self, text: int, offsets: int) -> list[str]:
        whole = self._array(text).tobytes()
        return [whole[at : whole.index(b"\0", at)].decode("utf-8", "replace") for at in self._array(offsets).tolist()]


def _no_memory() -> CausalError:
    return CausalError("not enough memory to read the debug information", "count fewer binaries, or use -u function")
