"""Which source line each byte of a program comes from, also through inlined calls.

Use:

    lines = SourceLines.load(Binary.load("./server"))
    lines.files, lines.rows                 # paths, and address -> file and line
    lines.attribute(in_scope)               # address -> the innermost line in files that count
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal.symbols import cache
from causal.symbols.debugfile import find_debug_path, read_debug_file
from causal.symbols.demangle import base_name, demangle
from causal.symbols.elf import Binary
from causal.symbols.native import INSTANCE_DTYPE, NO_INSTANCE, PIECE_DTYPE, ROW_DTYPE, Losses, Reader
from causal.symbols.split import add_split_files, packed_identity

# Address `start` to `end` (exclusive) is line `line` of file `file` (1-based), as seen from function `instance`.
PLACE_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("file", "<u4"), ("line", "<u4"), ("instance", "<u4")])
# Chains of inlined calls of real programs are below 100 long.
_MAX_CHAIN = 1000
# What is read faster than this many bytes of debug information need is not worth a file in the cache.
_WORTH_CACHING = 4 << 20
_CACHED = {"rows": ROW_DTYPE, "instances": INSTANCE_DTYPE, "pieces": PIECE_DTYPE}


@dataclass(eq=False)
class SourceLines:
    """The lines and inlined calls of one binary, by address (before any load bias).

    `path` is the file the information comes from. `files`: absolute paths where the compiler knew them, file number
    n is files[n - 1]. `rows` (ROW_DTYPE): each lasts until the next, file 0 is no line. `instances` and `pieces`: see
    native.Reader. `losses` counts units that were damaged; `missing`: the first .dwo file that is not there, or "".
    """

    path: str
    files: list[str]
    rows: NDArray[np.void]
    instances: NDArray[np.void]
    pieces: NDArray[np.void]
    losses: Losses
    missing: str = ""
    _binary_path: str = ""
    _reader: Reader | None = field(default=None, repr=False)
    _code: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64), repr=False)

    @classmethod
    def load(cls, binary: Binary, cache_root: Path | None = None) -> SourceLines | None:
        """The source lines of `binary`; None when it has none anywhere. Raises CausalError when they are damaged.

        `cache_root` is where results are kept (default: the user's cache directory).
        """
        path = find_debug_path(binary)
        if path is None:
            return None
        code = code_ranges(binary)
        key, root = _cache_key(binary, path), cache_root or cache.cache_directory() / "lines"
        kept = cache.load(key, _CACHED, root)
        if kept is not None and (lines := _from_cache(path, binary.path, code, *kept)) is not None:
            return lines
        reader, size, missing = _open(path, binary.path, code)
        rows, _ = reader.lines()
        instances, pieces = reader.inlines()
        files = [os.path.normpath(name) for name in reader.paths()]
        losses = reader.losses
        lines = cls(path, files, rows, instances, pieces, losses, missing, binary.path, reader, code)
        # Split files may turn up later.
        if size > _WORTH_CACHING and not losses.split:
            about = {"files": files, "losses": [losses.lines, losses.entries, losses.split, losses.units]}
            cache.store(key, {"rows": rows, "instances": instances, "pieces": pieces}, about, root)
        return lines

    def attribute(self, in_scope: NDArray[np.bool_]) -> NDArray[np.void]:
        """Places (PLACE_DTYPE, sorted, disjoint): the innermost line of the inline chain whose file is in scope.

        `in_scope`: one truth value per file, `in_scope[n - 1]` for file n. Code without such a line is left out.
        """
        scope = np.zeros(len(self.files) + 1, np.bool_)
        scope[1:] = in_scope
        starts = np.union1d(self.rows["address"], self.pieces["address"])
        file, line = self._at(starts)
        instance = _take(self.pieces, starts)["instance"] if len(self.pieces) else np.full(len(starts), NO_INSTANCE)
        instance = instance.astype(np.uint32)
        self._climb(scope, file, line, instance)
        known = scope[file]
        ends = np.append(starts[1:], starts[-1:])
        # Neighbours that are the same place become one.
        fresh = np.ones(len(starts), np.bool_)
        fresh[1:] = (file[1:] != file[:-1]) | (line[1:] != line[:-1]) | (instance[1:] != instance[:-1])
        fresh[1:] |= known[1:] != known[:-1]
        first = np.flatnonzero(fresh)
        places = np.empty(len(first), PLACE_DTYPE)
        places["start"], places["file"], places["line"] = starts[first], file[first], line[first]
        places["instance"] = instance[first]
        places["end"] = ends[np.append(first[1:], len(starts)) - 1] if len(first) else 0
        return places[known[first] & (places["end"] > places["start"])]

    def _at(self, addresses: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        rows = _take(self.rows, addresses)
        file = np.where(rows["file"] <= len(self.files), rows["file"], 0).astype(np.uint32)
        return file, rows["line"].astype(np.uint32)

    def _climb(
        self,
        scope: NDArray[np.bool_],
        file: NDArray[np.uint32],
        line: NDArray[np.uint32],
        instance: NDArray[np.uint32],
    ) -> None:
        """Replace, in place, lines out of scope by the call they were inlined at, as long as there is one."""
        open_ = np.flatnonzero(~scope[file] & (instance < len(self.instances)))
        for _ in range(_MAX_CHAIN):
            if not len(open_):
                return
            inside = self.instances[instance[open_]]
            known = (inside["call_file"] <= len(self.files)) & (inside["call_line"] > 0)
            file[open_] = np.where(known, inside["call_file"], 0)
            line[open_], instance[open_] = inside["call_line"], inside["parent"]
            open_ = open_[~scope[file[open_]] & (instance[open_] < len(self.instances))]

    def chain(self, address: int) -> list[tuple[str, int]]:
        """(path, line) of an address, innermost first: its own, then the calls it was inlined through. ("", 0) is no
        line."""
        at = np.array([address], np.uint64)
        file, line = (int(part[0]) for part in self._at(at))
        instance = int(_take(self.pieces, at)["instance"][0]) if len(self.pieces) else NO_INSTANCE
        found = [(self.files[file - 1] if file else "", line)]
        while instance < len(self.instances) and len(found) < _MAX_CHAIN:
            inside = self.instances[instance]
            instance = int(inside["parent"])
            if instance != NO_INSTANCE:
                file = int(inside["call_file"])
                found.append((self.files[file - 1] if 0 < file <= len(self.files) else "", int(inside["call_line"])))
        return found

    def function_names(self, instances: NDArray[np.uint32]) -> list[str]:
        """How the function of each instance is called, without parameters; "" where that is unknown."""
        known = instances < len(self.instances)
        dies = np.zeros(len(instances), np.uint64)
        dies[known] = self.instances["die"][instances[known]]
        unique, which = np.unique(dies, return_inverse=True)
        names = [base_name(demangle(name)) if name else "" for name in self._names().names(unique)]
        return [names[i] if is_known else "" for i, is_known in zip(which.tolist(), known.tolist(), strict=True)]

    def release(self) -> None:
        """Give back the memory that only `function_names` needs; it reads the file once more when called again."""
        self._reader = None

    def _names(self) -> Reader:
        if self._reader is None:
            self._reader, _, _ = _open(self.path, self._binary_path, self._code)
        return self._reader


def _take(table: NDArray[np.void], addresses: NDArray[np.uint64]) -> NDArray[np.void]:
    """The rows of a table sorted by address that hold at these addresses."""
    at = np.searchsorted(table["address"], addresses, side="right") - 1
    taken: NDArray[np.void] = table[np.maximum(at, 0)]
    return taken


def code_ranges(binary: Binary) -> NDArray[np.uint64]:
    """First address of each executable segment and the one behind its last, shape (n, 2)."""
    bounds = [(s.vaddr, s.vaddr + s.filesz) for s in binary.segments if s.executable and s.filesz]
    return np.array(sorted(bounds)[:64], np.uint64).reshape(-1, 2)


def _cache_key(binary: Binary, path: str) -> str:
    status = os.stat(path)
    identity = binary.build_id or f"{os.path.realpath(path)}:{status.st_mtime_ns}:{status.st_ino}"
    # The same code with more or less debug information has the same build-id.
    text = f"{identity}:{status.st_size}:{[(s.vaddr, s.filesz) for s in binary.segments]}"
    text += packed_identity((binary.path, path))  # where an entry is differs between packed and loose split files
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _open(path: str, binary_path: str, code: NDArray[np.uint64]) -> tuple[Reader, int, str]:
    """A reader of a program's debug file, the bytes of debug information, and the first split file that is missing."""
    sections = read_debug_file(path).sections
    reader = Reader(sections, code)
    split = add_split_files(reader, (binary_path, path))
    return reader, sum(map(len, sections.values())) + split.size, split.missing


def _from_cache(
    path: str, binary_path: str, code: NDArray[np.uint64], arrays: dict[str, NDArray[Any]], about: Any
) -> SourceLines | None:
    try:
        files = [str(name) for name in about["files"]]
        losses = Losses(*map(int, about["losses"]))
    except (KeyError, TypeError, ValueError):
        return None
    tables = (arrays["rows"], arrays["instances"], arrays["pieces"])
    return SourceLines(path, files, *tables, losses, "", binary_path, None, code)


def what_is_missing(binary: Binary, lines: SourceLines | None) -> str | None:
    """What a binary's debug information lacks and how to get it; None when nothing is lost."""
    if lines is None or len(lines.rows) < 2:
        if len(binary.functions):
            return (
                "no line information, only names of functions: build it with -g, install its debug package, or set "
                "DEBUGINFOD_URLS; --unit function works"
            )
        return "no symbols at all: build it with -g or do not strip it; --unit module and --unit thread work"
    losses = lines.losses
    if losses.split:
        return (
            f"{losses.split} of {losses.units} units have split debug information that is not there"
            f"{f' ({lines.missing})' if lines.missing else ', or of another build'}: their inlined calls are unknown; "
            "keep the .dwo files, pack them (dwp or llvm-dwp -e PROGRAM -o PROGRAM.dwp), or build without -gsplit-dwarf"
        )
    if losses.lines or losses.entries:
        return f"damaged debug information: {losses.lines + losses.entries} units were left out or cut short"
    return None
