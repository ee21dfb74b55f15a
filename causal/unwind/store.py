"""Unwind tables of files, kept in the user's cache directory once they are built.

module = load_file("/lib/x86_64-linux-gnu/libc.so.6")
module.rows, module.image.table_address(file_offset)
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from causal.mappings import read_maps
from causal.symbols import cache
from causal.unwind.image import Image, NoImage, read_image
from causal.unwind.rules import ROW_DTYPE
from causal.unwind.table import build_table

# Tables with fewer rows are built about as fast as they are read from the cache.
_WORTH_CACHING = 500
_MAX_ENTRIES = 1_024
# Goes up whenever the same file would give other rows.
_FORMAT = 2


@dataclass(frozen=True)
class Module:
    """`key` is the same for files with the same code. `rows`: shape (n,) of ROW_DTYPE, one row when there is no
    information; `lost` entries made no sense."""

    key: str
    image: Image
    rows: NDArray[np.void]
    lost: int


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """A file as bytes, read where it is looked at. Not mapped: who replaces a library in place makes it shorter for a
    moment, and reading a mapping beyond the end is a SIGBUS."""

    descriptor: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, where: slice, /) -> bytes:
        start, stop, _ = where.indices(self.size)
        return os.pread(self.descriptor, max(stop - start, 0), start)


def _image(data: _OpenFile) -> Image:
    try:
        return read_image(data)
    except struct.error:
        raise NoImage("it became shorter while it was read") from None


def load_file(path: str, cache_root: Path | None = None) -> Module:
    """The table of a program or library, from `cache_root` (default: the user's cache directory) where it is known.

    Raises NoImage or OSError.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            raise NoImage("empty")
        data = _OpenFile(file.fileno(), status.st_size)
        image = _image(data)
        identity = image.build_id or f"{os.path.realpath(path)}:{status.st_mtime_ns}:{status.st_ino}"
        # The same code with .debug_frame may know more.
        text = f"{_FORMAT}:{identity}:{status.st_size}"
        key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        root = cache_root or cache.cache_directory() / "unwind"
        kept = cache.load(key, {"rows": ROW_DTYPE}, root)
        if kept is not None and isinstance(kept[1], int) and len(kept[0]["rows"]):
            return Module(key, image, kept[0]["rows"], kept[1])
        table = build_table(data, image)
        now = os.fstat(file.fileno())
        unchanged = (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    # A table of half a file must not stay under the name of the whole one.
    if unchanged and len(table.rows) >= _WORTH_CACHING:
        cache.store(key, {"rows": table.rows}, table.lost, root, _MAX_ENTRIES)
    return Module(key, image, table.rows, table.lost)


@lru_cache(maxsize=1)
def load_vdso() -> Module:
    """The table of the code that the kernel maps into every process: the same in ours. Raises NoImage or OSError."""
    ours = next((mapping for mapping in read_maps(os.getpid()) if mapping.path == "[vdso]"), None)
    if ours is None:
        raise NoImage("the kernel maps none")
    with open("/proc/self/mem", "rb", 0) as memory:
        memory.seek(ours.start)
        data = memory.read(ours.end - ours.start)
    image = read_image(data)
    table = build_table(data, image)
    return Module("[vdso]", image, table.rows, table.lost)
