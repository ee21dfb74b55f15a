"""The unwind tables that the kernel side has: which module's rows are where, filled as modules are met.

    modules = Modules(Memory(rows, pages, modules))      # arrays that the kernel searches
    number, pc = modules.find(pid, mapping)              # for the row of the mapping, number 0: no information

A module is there once, however many processes have it mapped. Nothing is ever taken out, since a core may be searching
it; what does not fit is unwound by frame pointers, and `lacking` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from causal.mappings import PROBED, Mapping, open_path
from causal.unwind.image import Image, NoImage
from causal.unwind.rules import PAGE_BITS, ROW_DTYPE, Kind, pack
from causal.unwind.store import load_file, load_vdso

NO_MODULE = 0
# Probed instructions are the first ones of functions, where the return address is on top of the stack; those that move
# it (push) are mostly emulated and not stepped through. The first page of a table is nobody's.
_PROBED_PC = 1 << 12
_PROBED_ROWS = np.array(
    [(0, Kind.NOTHING), (_PROBED_PC, pack(Kind.STACK_POINTER, 8)), (2 * _PROBED_PC, Kind.NOTHING)], ROW_DTYPE
)


@dataclass(frozen=True)
class Memory:
    """As in bpf/unwind.h: `rows` of ROW_DTYPE, `pages` of 64-bit numbers, `modules` with first_page, pages and page."""

    rows: NDArray[np.void]
    pages: NDArray[np.uint64]
    modules: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    image: Image | None


class Modules:
    """Fills the kernel's tables. `cache_root` as for load_file."""

    def __init__(self, memory: Memory, cache_root: Path | None = None) -> None:
        self._memory = memory
        self._cache_root = cache_root
        self._count = 0
        self._rows = 0
        self._pages = 0
        self._numbers: dict[str, int] = {}  # key of a module -> its number
        self._files: dict[tuple[str, int, str], _Known] = {}
        self.lacking: dict[str, str] = {}  # path -> why there is no table

    @property
    def used(self) -> tuple[int, int]:
        """How many modules and rows there are."""
        return self._count, self._rows

    def is_known(self, mapping: Mapping) -> bool:
        """Whether `find` answers without reading a file."""
        return mapping.kind == "anonymous" or _identity(mapping) in self._files

    def find(self, pid: int, mapping: Mapping) -> tuple[int, int]:
        """(number of the module, table's address of the mapping's first byte); (0, 0) when nothing is known of it."""
        if mapping.path == PROBED:
            if PROBED not in self._numbers:
                self._numbers[PROBED] = self._place(_PROBED_ROWS, PROBED)
            return self._numbers[PROBED], _PROBED_PC
        if mapping.kind == "anonymous":
            self.lacking[mapping.path] = "code that is made at run time"
            return NO_MODULE, 0
        identity = _identity(mapping)
        known = self._files.get(identity)
        if known is None:
            known = self._files[identity] = self._load(pid, mapping)
        if known.image is None or not known.number:
            return NO_MODULE, 0
        pc = known.image.table_address(mapping.offset)
        return (NO_MODULE, 0) if pc is None else (known.number, pc)

    def _load(self, pid: int, mapping: Mapping) -> _Known:
        try:
            if mapping.kind == "vdso":
                if mapping.path != "[vdso]":
                    return _Known(NO_MODULE, None)
                module = load_vdso()
            else:
                path = open_path(pid, mapping) if mapping.deleted else mapping.path
                module = load_file(path, self._cache_root)
        except (NoImage, OSError) as error:
            self.lacking[mapping.path] = getattr(error, "strerror", None) or str(error)
            return _Known(NO_MODULE, None)
        if module.key not in self._numbers:
            self._numbers[module.key] = self._place(module.rows, mapping.path)
        return _Known(self._numbers[module.key], module.image)

    def _place(self, rows: NDArray[np.void], path: str) -> int:
        if len(rows) < 2:
            self.lacking[path] = "it has no call-frame information"
            return NO_MODULE
        first_page = int(rows["pc"][1]) >> PAGE_BITS
        count = (int(rows["pc"][-1]) >> PAGE_BITS) - first_page + 1
        number = self._count + 1
        memory = self._memory
        if (
            self._rows + len(rows) > len(memory.rows)
            or self._pages + count + 1 > len(memory.pages)
            or number >= len(memory.modules)
        ):
            self.lacking[path] = f"the tables are full ({self._rows:,} rows of {number - 1:,} modules)"
            return NO_MODULE
        memory.rows[self._rows : self._rows + len(rows)] = rows
        edges = np.arange(first_page, first_page + count + 1, dtype=np.int64) << PAGE_BITS
        # The first row, for address 0, belongs to no page: it is the one in force before the code begins.
        index = np.maximum(np.searchsorted(rows["pc"].astype(np.int64), edges), 1)
        memory.pages[self._pages : self._pages + count + 1] = index + self._rows
        memory.modules[number] = (first_page, count, self._pages, 0)
        self._count = number
        self._rows += len(rows)
        self._pages += count + 1
        return number


def _identity(mapping: Mapping) -> tuple[str, int, str]:
    return mapping.path, mapping.inode, mapping.device
