"""The processes under test: who is on the clock, what they have mapped, how their threads are called.

The kernel side adopts children by itself; here their address spaces are read and translated into the tables by
which it turns addresses into regions.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from causal.engine import MAPPING, Engine
from causal.errors import CausalError
from causal.injection import Handlers
from causal.jit import JitCode
from causal.mappings import Mapping, read_maps
from causal.processes import Claims, executable_of, look_up, root_of
from causal.regions import CODE_UNITS, RegionTable, Scope
from causal.symbols.elf import Binary
from causal.unwind.modules import Modules

# Tables that are not in the cache are built at once for so long when a process is met, the rest when stacks lead there.
_BUILDING_S = 0.5


class Target:
    """Keeps the kernel's picture of the target's processes up to date; call `refresh` a few times a second."""

    def __init__(
        self, engine: Engine, table: RegionTable, scope: Scope, handlers: Handlers | None = None,
        claims: Claims | None = None, sampled_slice: Callable[[str], int] = lambda path: 0,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._handlers = handlers
        self._claims = claims
        self._sampled_slice = sampled_slice
        self._table = table
        self._scope = scope
        self._versions: dict[int, int] = {}
        self._layouts: dict[int, tuple[Mapping, ...]] = {}
        self._binaries: dict[str, Binary | None] = {}
        self._spaces = 0
        self._next_mapping = 0
        self._unmapped = 0
        self._places: dict[int, int] = {}  # where the mappings of a process begin in the kernel's table
        self._guessed: Counter[str] = Counter()  # frames of mappings that are gone; see `without_information`
        self.modules: Modules | None = None
        self.was_registered = False  # at some time a process had a handler that can pause its threads
        self._labels: dict[int, str] = {}
        self.unreadable: dict[str, str] = {}  # binaries without usable symbols -> why
        self._jit = JitCode(table, scope, self.unreadable)

    def refresh(self) -> None:
        """Read the mappings of processes that are new, executed another program, or hit addresses unknown to us."""
        counters = self._engine.counters()
        unmapped = counters["unmapped"] + counters["frames_unmapped"]
        grown, self._unmapped = unmapped > self._unmapped, unmapped
        for tgid, version in self._engine.processes().items():
            fresh = self._versions.get(tgid) != version
            if grown or fresh:
                self._versions[tgid] = version
                self._read_space(tgid)
            if fresh:
                self._jit.forget(tgid)
                self._meet(tgid)
            if self._jit.refresh(tgid, self._layouts.get(tgid, ())):
                self._engine.write_ranges(self._table.ranges)
                self._write_space(tgid)
            if not os.path.exists(f"/proc/{tgid}"):
                self._engine.remove_process(tgid)
                self._versions.pop(tgid, None)
                self._jit.forget(tgid)
                self._guessed += self._guesses(tgid, self._places.pop(tgid, 0))
                self._layouts.pop(tgid, None)
            elif self._handlers:
                if self._engine.registered(tgid):
                    self.was_registered = True
                else:
                    self._handlers.attend(tgid, version)
        self._add_unwind_tables()
        if self._table.unit == "thread":
            self._label_threads()
        for number, (region, caller) in self._engine.sites().items():
            self._table.add_site(number, region, caller)

    def without_information(self) -> dict[str, int]:
        """Mappings of which frames had to be left by the frame pointer -> about how many frames, the most first."""
        frames = self._guessed.copy()
        for tgid, first in self._places.items():
            frames += self._guesses(tgid, first)
        return dict(frames.most_common())

    def alive(self) -> bool:
        """Does any process of the target still run, one that only shares the clock aside?"""
        return any(is_running(tgid) for tgid in self._engine.processes(regions_only=True))

    def files(self) -> set[str]:
        """Paths of all binaries that processes of the target have mapped so far, looked at anew."""
        for tgid in self._engine.processes():
            self._read_space(tgid)
        return {mapping.path for layout in self._layouts.values() for mapping in layout if mapping.kind == "file"}

    def registered(self) -> bool:
        """Has any process of the target a handler that can pause its threads?"""
        return any(self._engine.registered(tgid) for tgid in self._engine.processes())

    def _meet(self, tgid: int) -> None:
        """A process is new, or executes another program."""
        with contextlib.suppress(CausalError):
            if self._claims:
                self._claims.claim(look_up(tgid))
            if self._table.unit == "process":
                label = process_label(executable_of(tgid))
                self._engine.set_process_region(tgid, self._table.region_for_thread(label).id)

    def _read_space(self, tgid: int) -> None:
        root = root_of(tgid)
        layout = tuple(seen_from_here(mapping, root) for mapping in read_maps(tgid))
        if not layout or self._layouts.get(tgid) == layout:
            return
        if tgid in self._places:
            self._guessed += self._guesses(tgid, self._places[tgid])
        self._layouts[tgid] = layout
        self._add_regions(layout)
        self._write_space(tgid)

    def _write_space(self, tgid: int) -> None:
        layout, compiled = self._layouts[tgid], self._jit.slice_of(tgid)
        rows = np.zeros(len(layout), MAPPING)
        for row, mapping in zip(rows, layout, strict=True):
            row["start"], row["end"], row["offset"] = mapping.start, mapping.end, mapping.offset
            row["sampled"] = self._sampled_slice(mapping.path)
            row["lo"], row["hi"] = self._table.slices.get(mapping.path, (0, 0))
            if mapping.kind == "anonymous" and compiled[1]:
                row["lo"], row["hi"] = compiled
                row["offset"] = mapping.start  # those ranges are addresses
        self._find_modules(tgid, rows, layout)
        first, space = self._reserve(len(rows))
        self._places[tgid] = first
        self._engine.write_space(space, first, rows)
        self._engine.set_space(tgid, space)

    def _guesses(self, tgid: int, first: int) -> Counter[str]:
        layout = self._layouts.get(tgid, ())
        frames: Counter[str] = Counter()
        for mapping, count in zip(layout, self._engine.mappings(first, len(layout))["guessed"].tolist(), strict=False):
            if count:
                frames[mapping.path] += count
        return frames

    def _find_modules(self, tgid: int, rows: npt.NDArray[Any], layout: Iterable[Mapping]) -> None:
        if self._table.unit not in (*CODE_UNITS, "module"):
            return  # nobody looks at stacks
        if self.modules is None:
            self.modules = Modules(self._engine.unwind_memory())
        until_s = time.monotonic() + _BUILDING_S
        for row, mapping in zip(rows, layout, strict=True):
            if self.modules.is_known(mapping) or time.monotonic() < until_s:
                row["module"], row["pc"] = self.modules.find(tgid, mapping)

    def _add_unwind_tables(self) -> None:
        """Build what was put off, as far as stacks have led there."""
        if self.modules is None:
            return
        for tgid, first in self._places.items():
            rows = self._engine.mappings(first, len(self._layouts[tgid]))
            for index in np.flatnonzero((rows["module"] == 0) & (rows["guessed"] > 0)):
                mapping = self._layouts[tgid][index]
                if not self.modules.is_known(mapping):
                    number, rows["pc"][index] = self.modules.find(tgid, mapping)
                    rows["module"][index] = number  # last: from here on the kernel uses both

    def _reserve(self, size: int) -> tuple[int, int]:
        """Room for one more address space. Old ones stay, since a core may be searching them; the oldest go first."""
        options = self._engine.options
        if self._next_mapping + size > options.max_mappings:
            if size > options.max_mappings:
                raise CausalError(f"a process has {size} executable mappings", "raise --max-mappings")
            self._next_mapping = 0
        first = self._next_mapping
        self._next_mapping += size
        self._spaces = self._spaces % (options.max_spaces - 1) + 1  # 0 is "not read yet"
        return first, self._spaces

    def _add_regions(self, layout: Iterable[Mapping]) -> None:
        before = len(self._table.ranges)
        for path in {mapping.path for mapping in layout}:
            if path in self._table.slices or not self._scope.includes(path):
                continue
            if self._table.unit == "module":
                self._table.add_module(path)
            elif self._table.unit in CODE_UNITS and (binary := self._binary(path)):
                self._scope.add_code(self._table, [binary])
        if len(self._table.ranges) != before:
            self._engine.write_ranges(self._table.ranges)

    def _binary(self, path: str) -> Binary | None:
        if path not in self._binaries:
            try:
                self._binaries[path] = Binary.load(path)
            except CausalError as error:
                self._binaries[path] = None
                self.unreadable[path] = error.message
        return self._binaries[path]

    def _label_threads(self) -> None:
        for tid, tgid in self._engine.threads():
            with contextlib.suppress(OSError):
                label = thread_label(tid, tgid, lambda path: Path(path).read_text().strip())
                if self._labels.get(tid) != label:
                    self._labels[tid] = label
                    self._engine.set_thread_region(tid, self._table.region_for_thread(label).id)


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return False


def seen_from_here(mapping: Mapping, root: str) -> Mapping:
    """The mapping with a path that opens the file from our mount namespace."""
    return replace(mapping, path=root + mapping.path) if root and mapping.kind == "file" else mapping


def process_label(executable: str) -> str:
    """What a process is called: the file name of its program. Processes of the same name (a pool) are one region."""
    return os.path.basename(executable)


def thread_label(tid: int, tgid: int, read: Callable[[str], str]) -> str:
    """What a thread is called: its own name, or when it kept that of the process, that name and its number.

    Threads of the same name (a pool) are one region. `read` returns the text of a file.
    """
    name = read(f"/proc/{tgid}/task/{tid}/comm")
    if tid == tgid:
        return f"{name} (main)"
    return f"{name}/{tid - tgid}" if name == read(f"/proc/{tgid}/comm") else name
