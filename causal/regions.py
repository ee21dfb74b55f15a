"""What can be virtually sped up: the regions of a run, their names, and the table by which the kernel finds them.

Use:

    scope = Scope(main.path)
    table = RegionTable("function")
    table.add_functions(binary for binary in binaries if scope.includes(binary.path))
    table.ranges, table.slices                # for the kernel: RANGE_DTYPE, path -> (low, high)
    table.select(["work_*"])                  # --only
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from causal.errors import CausalError, UsageError
from causal.ranges import flatten, in_file, joined
from causal.sources import short_names, source_matches
from causal.symbols.demangle import bare_name, base_name, demangle
from causal.symbols.elf import Binary
from causal.symbols.functions import FunctionTable
from causal.symbols.libraries import library_matches
from causal.symbols.lines import SourceLines
from causal.symbols.nearest import near_names
from causal.waiting import CALL_REGIONS, WaitClass

RANGE_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("region", "<u4"), ("pad", "<u4")])
NO_REGION = 0
# Units that are found by where the code is.
CODE_UNITS = ("line", "file", "function")
DEFAULT_MAX_RANGES = 1 << 20
JIT_CODE = "[jit]"
_WHOLE_FILE = (0, 2**64 - 1)
_SPLIT_OFF = re.compile(r"\.cold(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Region:
    """Something that can be sped up. `id` is its number in the kernel, `binary` the file it is in ("" for threads).

    Lines and files have a `source`, the path of the file, and lines their number and the `function` they are in.
    """

    id: int
    name: str
    unit: str
    binary: str
    source: str = ""
    line: int = 0
    function: str = ""


class Scope:
    """The binaries whose code counts.

    `patterns` as `-b` gives them (see library_matches); `!pattern` excludes. Without patterns the main executable
    alone counts; with exclusions only, everything else does. An exclusion always wins. `jit`: code compiled at run time
    counts although the patterns do not say so.
    """

    def __init__(self, main: str, patterns: Sequence[str] = (), jit: bool = False) -> None:
        self._jit = jit
        if any(not pattern.removeprefix("!").strip() for pattern in patterns):
            raise UsageError("a binary pattern is empty", "give a name such as libc or 'lib*', or !NAME to exclude one")
        self._main = os.path.realpath(main)
        self._wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
        self._excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]

    def includes(self, path: str) -> bool:
        if any(library_matches(pattern, path) for pattern in self._excluded):
            return False
        if self._wanted:
            return any(library_matches(pattern, path) for pattern in self._wanted)
        return bool(self._excluded) or path == self._main or os.path.realpath(path) == self._main

    def includes_jit(self) -> bool:
        """Whether just-in-time compiled code counts: unless `-b` names binaries, or excludes "jit"."""
        if any(fnmatch.fnmatchcase("jit", pattern) for pattern in self._excluded):
            return False
        return self._jit or not self._wanted or any(fnmatch.fnmatchcase("jit", pattern) for pattern in self._wanted)

    def add_code(self, table: RegionTable, binaries: Iterable[Binary]) -> None:
        """Make the code of these binaries, which are in scope, regions."""
        table.add_functions(binaries)


class RegionTable:
    """The regions of one run, all of one unit: "line", "file", "function", "module", "thread", "process", "wait" or
    "syscall". Ids are dense and never change.

    `max_ranges` is the size of the kernel's table; going beyond raises CausalError.
    """

    def __init__(self, unit: str, max_ranges: int = DEFAULT_MAX_RANGES) -> None:
        self.unit = unit
        self.has_code = unit in CODE_UNITS  # code is regions, or the call sites of regions
        self._max_ranges = max_ranges
        self._regions: list[Region] = []
        self._by_name: dict[str, Region] = {}
        self._by_line: dict[tuple[str, int], Region] = {}
        self._source_names: dict[str, str] = {}  # short name -> path
        self._plain: list[str] = []  # names before they were told apart
        self._sites: dict[int, tuple[Region, Region]] = {}  # id -> itself, the region whose call site it is
        self._parts: list[NDArray[np.void]] = []
        self._slices: dict[str, tuple[int, int]] = {}
        # Of slices that change: the room of this version, and that of the next.
        self._room: dict[str, tuple[int, int]] = {}
        self._spare: dict[str, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._regions)

    def __iter__(self) -> Iterator[Region]:
        yield from self._regions
        yield from (site for site, _ in self._sites.values())

    def __contains__(self, region_id: int) -> bool:
        return region_id in self._sites or 1 <= region_id <= len(self._regions)

    def region(self, region_id: int) -> Region:
        """The region with this id. Raises KeyError for 0 and for ids never given."""
        if region_id in self._sites:
            return self._sites[region_id][0]
        if not 1 <= region_id <= len(self._regions):
            raise KeyError(region_id)
        return self._regions[region_id - 1]

    @property
    def ranges(self) -> NDArray[np.void]:
        """All ranges, shape (n,) of RANGE_DTYPE; within a slice sorted by start and free of overlaps (file offsets)."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([*self._parts, np.empty(0, RANGE_DTYPE)])]
        return self._parts[0]

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Which part of `ranges` is which file's: path -> (low, high), high exclusive. Stays as files are added."""
        return dict(self._slices)

    def lookup(self, path: str, file_offset: int) -> int:
        """The region id at a byte of a file, NO_REGION if none: what the kernel's search must answer too."""
        low, high = self._slices.get(path, (0, 0))
        part = self.ranges[low:high]
        row = int(np.searchsorted(part["start"], np.uint64(file_offset), side="right")) - 1
        return int(part["region"][row]) if row >= 0 and file_offset < part["end"][row] else NO_REGION

    def add_functions(self, binaries: Iterable[Binary]) -> None:
        """Make every function of these files a region; files already known are passed over.

        Names that files added together have in common, or that an earlier file has taken, become `name@file`.
        A file without symbols gets an empty slice.
        """
        fresh = {binary.path: binary for binary in binaries if binary.path not in self._slices}
        labelled = {path: _labels(binary.functions) for path, binary in fresh.items()}
        shared = Counter(label for labels, _ in labelled.values() for label in labels.values())
        for path, (labels, owner) in labelled.items():
            functions = fresh[path].functions
            ids = {}
            for row, label in labels.items():
                name = self._free_name(label, path, shared[label] > 1)
                ids[row] = self._new_region(name, path, demangle(functions.names[row])).id
            region_ids = np.fromiter((ids[row] for row in owner), np.uint32, len(owner))
            self._add_ranges(path, *flatten(functions.start, functions.end, region_ids))

    def add_lines(self, binary: Binary, lines: SourceLines | None, includes: Callable[[str], bool]) -> None:
        """Make the source lines (unit `line`) or source files (unit `file`) of a binary regions.

        `includes` says which source files count; code of others belongs to the line that an inlined call of it is
        at. A binary without lines (None) gets an empty slice. A file's line is one region, whatever binaries it is in.
        """
        if binary.path in self._slices:
            return
        if lines is None:
            self._add_ranges(binary.path, np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))
            return
        places = lines.attribute(np.array([includes(path) for path in lines.files], np.bool_))
        numbers = places["line"] if self.unit == "line" else np.zeros(len(places), np.uint32)
        keys = places["file"].astype(np.uint64) << np.uint64(32) | numbers
        unique, first, which = np.unique(keys, return_index=True, return_inverse=True)
        functions = _functions_at(places[first], lines, binary) if self.unit == "line" else [""] * len(unique)
        files = (unique >> np.uint64(32)).tolist()
        self._name_sources([lines.files[file - 1] for file in dict.fromkeys(files)])
        ids = [
            self._line_region(lines.files[file - 1], line, binary.path, function).id
            for file, line, function in zip(files, (unique & np.uint64(0xFFFFFFFF)).tolist(), functions, strict=True)
        ]
        region_ids = np.array(ids, np.uint32)[which] if ids else np.empty(0, np.uint32)
        self._add_ranges(binary.path, *joined(*in_file(places, region_ids, binary)))

    def _name_sources(self, paths: Sequence[str]) -> None:
        self._source_names |= {name: path for path, name in short_names(paths, self._source_names).items()}
        self._short = {path: name for name, path in self._source_names.items()}

    def _line_region(self, source: str, line: int, binary: str, function: str) -> Region:
        known = self._by_line.get((source, line))
        if known is None:
            name = f"{self._short[source]}:{line}" if self.unit == "line" else self._short[source]
            known = self._new_region(name, binary, name, source, line, function)
            self._by_line[source, line] = known
        return known

    def add_module(self, path: str) -> Region:
        """Make a whole mapped file (or "[vdso]", "[anonymous]") one region, named after the file."""
        if path in self._slices:
            low, _ = self._slices[path]
            return self.region(int(self.ranges["region"][low]))
        label = os.path.basename(path) or path
        region = self._new_region(path if label in self._by_name else label, path, label)
        start, end = (np.array([bound], np.uint64) for bound in _WHOLE_FILE)
        self._add_ranges(path, start, end, np.array([region.id], np.uint32))
        return region

    def add_site(self, region_id: int, region: int, caller: int) -> None:
        """Make a region as called from another (0: from nothing in scope) a region; known ones are passed over."""
        if region_id in self._sites:
            return
        inner = self.region(region)
        self._sites[region_id] = replace(inner, id=region_id, name=self.site_name(region, caller)), inner

    def site_name(self, region: int, caller: int) -> str:
        """What a region is called as called from another, or from nothing in scope (0)."""
        name = self.region(region).name
        return f"{name} from {self.region(caller).name}" if caller else name

    def jit_region(self, name: str) -> Region:
        """The region of a function that was compiled just in time, made at its first use."""
        label = name
        while (known := self._by_name.get(label)) is not None and known.binary != JIT_CODE:
            label += f"@{JIT_CODE}"
        return known or self._new_region(label, JIT_CODE, name)

    def replace_ranges(
        self, key: str, start: NDArray[np.uint64], end: NDArray[np.uint64], region_ids: NDArray[np.uint32]
    ) -> bool:
        """Give `key` these ranges, of which later ones hold where they overlap; False if there is no room.

        They go into another part of the table than those before, which a core may be searching.
        """
        order = np.argsort(start, kind="stable")
        age = -np.arange(len(start), dtype=np.int64)[order]
        start, end, region_ids = flatten(start[order], end[order], region_ids[order], age)
        self._free += filter(None, [self._spare.pop(key, None)])
        room = self._take_room(len(start))
        if room is None:
            return False
        low = room[0]
        part = self.ranges[low : low + len(start)]
        part["start"], part["end"], part["region"] = start, end, region_ids
        if key in self._slices:
            self._spare[key] = self._room[key]
        self._room[key] = room
        self._slices[key] = low, low + len(start)
        return True

    def _take_room(self, size: int) -> tuple[int, int] | None:
        fitting = [room for room in self._free if room[1] - room[0] >= size]
        if fitting:
            self._free.remove(fitting[0])
            return fitting[0]
        low, high = self._size, self._size + 2 * size  # it will grow
        if high > self._max_ranges:
            return None
        self._parts.append(np.zeros(high - low, RANGE_DTYPE))
        self._size = high
        return low, high

    def clear_ranges(self, key: str) -> None:
        """Take back what replace_ranges gave."""
        if self._slices.pop(key, None):
            self._free += filter(None, [self._room.pop(key, None), self._spare.pop(key, None)])

    def add_waits(self) -> None:
        """Make the classes of waits the regions (unit `wait`); their ids are those of the kernel side."""
        for kind in WaitClass:
            self._new_region(kind.label, "", kind.label)

    def add_calls(self, names: Mapping[int, str]) -> None:
        """Make system calls the regions (unit `syscall`), by their names: number n gets the id n + 1."""
        for number in range(CALL_REGIONS):
            name = names.get(number, f"system call {number}")
            self._new_region(name, "", name)

    def region_for_thread(self, label: str) -> Region:
        """The region of all threads with this label, made at its first use."""
        return self._by_name.get(label) or self._new_region(label, "", label)

    def select(self, patterns: Sequence[str]) -> list[Region]:
        """The regions that `--only` names, in id order. Raises CausalError for a pattern that matches none."""
        chosen: dict[int, Region] = {}
        for pattern in patterns:
            matching = [region for region in self._regions if self.matches(region, (pattern,))]
            if not matching:
                raise self._no_such_region(pattern)
            # `foo` means foo, also where foo@libx.so and foo(int) exist.
            exact = [region for region in matching if region.name == pattern]
            chosen.update((region.id, region) for region in exact or matching)
        return [chosen[region_id] for region_id in sorted(chosen)]

    def matches(self, region: Region, patterns: Sequence[str]) -> bool:
        """Whether any pattern means this region: its name, a glob, or its name without parameters or `@file`.

        A call site is also meant by what means the region that is called.
        """
        if region.id in self._sites and self.matches(self._sites[region.id][1], patterns):
            return True
        for pattern in patterns:
            if pattern == region.name or fnmatch.fnmatchcase(region.name, pattern):
                return True
            if self.unit == "module" and library_matches(pattern, region.binary):
                return True
            if region.id in self._sites:
                continue
            if self.unit == "function" and _matches_function(pattern, self._plain[region.id - 1]):
                return True
            if region.source and _matches_source(pattern, region):
                return True
        return False

    def _new_region(
        self, name: str, binary: str, plain: str, source: str = "", line: int = 0, function: str = ""
    ) -> Region:
        region = Region(len(self._regions) + 1, name, self.unit, binary, source, line, function)
        self._regions.append(region)
        self._plain.append(plain)
        self._by_name[name] = region
        return region

    def _free_name(self, label: str, path: str, is_shared: bool) -> str:
        if not is_shared and label not in self._by_name:
            return label
        name = f"{label}@{os.path.basename(path)}"
        return f"{label}@{path}" if name in self._by_name else name

    def _add_ranges(
        self, path: str, start: NDArray[np.uint64], end: NDArray[np.uint64], region_ids: NDArray[np.uint32]
    ) -> None:
        size = self._size + len(start)
        if size > self._max_ranges:
            raise CausalError(
                f"too many {self.unit}s in scope: {size} ranges, the table holds {self._max_ranges}",
                "count fewer binaries with -b (lines: sources with -s), raise --max-ranges, or use --unit module",
            )
        part = np.zeros(len(start), RANGE_DTYPE)
        part["start"], part["end"], part["region"] = start, end, region_ids
        self._parts.append(part)
        self._slices[path] = (self._size, size)
        self._size = size

    def _no_such_region(self, pattern: str) -> CausalError:
        names = [region.name for region in self._regions]
        short = {base_name(plain): None for plain in self._plain}
        short |= {region.function: None for region in self._regions}
        near = near_names(pattern, [*names, *short])
        wider = "widen the scope with -b (lines: also -s), or choose another unit with -u"
        hint = f"did you mean {', '.join(near)}?" if near else wider
        return CausalError(f"no {self.unit} in scope is called {pattern}", hint)


def _matches_function(pattern: str, plain: str) -> bool:
    if pattern == plain:
        return True
    base = base_name(plain)
    return pattern in (base, bare_name(base)) or fnmatch.fnmatchcase(base, pattern)


def _matches_source(pattern: str, region: Region) -> bool:
    """`file.c:12`, `file.c:10-20`, all lines of `file.c` or of a function; files as `-s` names them."""
    if region.function and _matches_function(pattern, region.function):
        return True
    file, _, lines = pattern.rpartition(":")
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", lines) if file else None
    if match is None or not region.line:
        return source_matches(pattern, region.source)
    first, last = int(match[1]), int(match[2] or match[1])
    return first <= region.line <= last and source_matches(file, region.source)


def _functions_at(places: NDArray[np.void], lines: SourceLines, binary: Binary) -> list[str]:
    """The function of each place: from the debug information, else from the symbol table."""
    names = lines.function_names(places["instance"])
    missing = [row for row, name in enumerate(names) if not name]
    if missing and len(binary.functions):
        table = binary.functions
        offsets = [binary.file_offset(int(places["start"][row])) or 0 for row in missing]
        found = np.searchsorted(table.start, np.array(offsets, np.uint64), side="right") - 1
        for row, offset, at in zip(missing, offsets, found.tolist(), strict=True):
            if at >= 0 and offset < table.end[at]:
                names[row] = base_name(demangle(table.names[at]))
    return names


def _labels(functions: FunctionTable) -> tuple[dict[int, str], list[int]]:
    """Names that tell a file's functions apart: row -> label where it is a region, and per row its region's row.

    Equal names get the source file where the symbol table knows it, `name (file.c)`, and then a number, `name#2`.
    """
    owner = _owners(functions)
    rows = [row for row, its_owner in enumerate(owner) if row == its_owner]
    readable = {row: demangle(functions.names[row]) for row in rows}
    count = Counter(readable.values())
    labels: dict[int, str] = {}
    taken: Counter[str] = Counter()
    for row, name in readable.items():
        source = functions.sources[row]
        label = f"{name} ({source})" if count[name] > 1 and source else name
        taken[label] += 1
        labels[row] = label if taken[label] == 1 else f"{label}#{taken[label]}"
    return labels, owner


def _owners(functions: FunctionTable) -> list[int]:
    """Per row the row it is a part of: compilers move unlikely code of `f` to `f.cold`, which is still f."""
    owner = list(range(len(functions)))
    split_off = [row for row, name in enumerate(functions.names) if ".cold" in name and _SPLIT_OFF.search(name)]
    if not split_off:
        return owner
    by_name: dict[str, list[int]] = {}
    for name, row in functions.all_names():
        by_name.setdefault(name, []).append(row)
    for row in split_off:
        wholes = by_name.get(_SPLIT_OFF.sub("", functions.names[row]), [])
        same_file = [whole for whole in wholes if functions.sources[whole] in ("", functions.sources[row])]
        if len(same_file) == 1:
            owner[row] = same_file[0]
    return owner
