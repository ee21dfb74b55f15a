"""The processes under test: who is on the clock, what they have mapped, how their threads are called.

The kernel side adopts children by itself; here their address spaces are read and translated into the tables by
which it turns addresses into regions.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from causal.engine import MAPPING, Engine
from causal.errors import CausalError
from causal.injection import Handlers
from causal.jit import JitCode
from causal.mappings import PROBED, Mapping, read_maps
from causal.processes import Claims, executable_of, look_up, root_of
from causal.range_pages import RangePages
from causal.regions import RegionTable, Scope
from causal.spaces import Space, Spaces
from causal.symbols.elf import Binary
from causal.unwind.modules import Modules

# For so long at once are tables built: more than enough for all that is mapped, unless it is thousands of modules.
_BUILDING_S = 0.5
# In a window it must not disturb: a library of common size takes a few milliseconds, one with so much code is put off.
_BUILDING_IN_WINDOW_S = 0.02
_LARGE = 16 << 20
# Mappings that are many, or change all the time, are looked at for at most a tenth of the time.
_LOOKING_SHARE = 9
_FULL = "the table of mappings"
_HIDDEN = "mappings of some processes"
_MAKE_ROOM = "raise --max-mappings, or follow fewer processes"


class Target:
    """Keeps the kernel's picture of the target's processes up to date; call `refresh` a few times a second."""

    def __init__(
        self, engine: Engine, table: RegionTable, scope: Scope, handlers: Handlers | None = None,
        claims: Claims | None = None, sampled_slice: Callable[[str], int] = lambda path: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._handlers = handlers
        self._claims = claims
        self._sampled_slice = sampled_slice
        self._clock = clock
        self._table = table
        self._scope = scope
        self._versions: dict[int, int] = {}
        self._layouts: dict[int, tuple[Mapping, ...]] = {}
        self._binaries: dict[str, Binary | None] = {}
        self._spaces = Spaces(engine, clock)
        self._unmapped = 0
        self._unsure: set[int] = set()  # processes that may have other mappings by now
        self._look_again_s = 0.0
        self._homeless: set[int] = set()  # processes for whose mappings there is no room
        self.modules: Modules | None = None
        self.was_registered = False  # at some time a process had a handler that can pause its threads
        self._pages: RangePages | None = None
        self._labels: dict[int, str] = {}
        self.unreadable: dict[str, str] = {}  # binaries without usable symbols -> why
        self._jit = JitCode(table, scope, self.unreadable)

    def refresh(self, building: bool = True) -> None:
        """Read the mappings of processes that are new, executed another program, or hit addresses unknown to us.

        `building`: any unwind tables may be built, which can keep a core busy for a while. Else large ones wait.
        """
        counters = self._engine.counters()
        unmapped = counters["unmapped"] + counters["frames_unmapped"]
        if unmapped > self._unmapped:
            self._unsure.update(self._versions)
        self._unmapped = unmapped
        doubtful = set(self._unsure) if self._clock() >= self._look_again_s else set()
        spent_s = 0.0
        for tgid, version in self._engine.processes().items():
            fresh = self._versions.get(tgid) != version
            if fresh:
                self._jit.forget(tgid)
            if fresh or tgid in doubtful:
                self._versions[tgid] = version
                began_s = self._clock()
                self._read_space(tgid, fresh)
                spent_s += self._clock() - began_s
            if fresh:
                self._meet(tgid)
            if self._jit.refresh(tgid, self._layouts.get(tgid, ())):
                self._engine.write_ranges(self._table.ranges)
                self._write_space(tgid)
            if not os.path.exists(f"/proc/{tgid}"):
                self._forget(tgid)
            elif self._handlers:
                if self._engine.registered(tgid):
                    self.was_registered = True
                else:
                    self._handlers.attend(tgid, version)
        if spent_s:
            self._look_again_s = self._clock() + _LOOKING_SHARE * spent_s
        self._build_unwind_tables(building)
        if self._table.unit == "thread":
            self._label_threads()
        for number, (region, caller) in self._engine.sites().items():
            self._table.add_site(number, region, caller)

    def without_information(self) -> dict[str, int]:
        """Mappings of which frames had to be left by the frame pointer -> about how many frames, the most first."""
        return dict(self._spaces.frames_guessed().most_common())

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

    def _read_space(self, tgid: int, fresh: bool = False) -> None:
        self._unsure.discard(tgid)
        root = root_of(tgid)
        try:
            layout = tuple(seen_from_here(mapping, root) for mapping in read_maps(tgid))
        except CausalError as error:
            if not self._layouts:
                raise
            self.unreadable.setdefault(_HIDDEN, error.message)  # such as sudo, for users who are not root
            return
        if layout and self._layouts.get(tgid) != layout:
            self._layouts[tgid] = layout
            self._add_regions(layout)
            self._write_space(tgid)
        elif layout and (fresh or tgid in self._homeless):
            self._write_space(tgid)

    def _write_space(self, tgid: int) -> None:
        layout, compiled = self._layouts[tgid], self._jit.slice_of(tgid)
        if self._spaces.share(tgid, (layout, compiled)):
            return
        self._pages = self._pages or RangePages(self._engine.range_pages())
        ranges, slices = self._table.ranges, self._table.slices
        rows = np.zeros(len(layout), MAPPING)
        for name in ("start", "end", "offset"):
            rows[name] = np.array([getattr(mapping, name) for mapping in layout], np.uint64)
        parts = [slices.get(mapping.path, (0, 0)) for mapping in layout]
        rows["lo"], rows["hi"] = np.array(parts, np.uint32).reshape(-1, 2).T
        for index, (part, mapping) in enumerate(zip(parts, layout, strict=True)):
            if part[1]:
                rows["pages"][index] = self._pages.find(ranges, part, mapping.offset, mapping.end - mapping.start)
        rows["sampled"] = [self._sampled_slice(mapping.path) for mapping in layout]
        if compiled[1]:
            anonymous = np.array([mapping.kind == "anonymous" for mapping in layout])
            rows["lo"][anonymous], rows["hi"][anonymous] = compiled
            rows["pages"][anonymous] = 0
            rows["offset"][anonymous] = rows["start"][anonymous]  # those ranges are addresses
        if self.modules is not None:
            for index, mapping in enumerate(layout):
                if self.modules.is_known(mapping):
                    rows["module"][index], rows["pc"][index] = self.modules.find(tgid, mapping)
        if self._spaces.add(tgid, (layout, compiled), layout, rows):
            self._homeless.discard(tgid)
        else:
            self._homeless.add(tgid)
            self._unsure.add(tgid)  # there may be room later
            self.unreadable[_FULL] = f"it is full, and {len(self._homeless)} processes have no regions: {_MAKE_ROOM}"

    def _forget(self, tgid: int) -> None:
        self._engine.remove_process(tgid)
        if self._claims:
            self._claims.release(tgid)
        self._jit.forget(tgid)
        self._spaces.leave(tgid)
        self._unsure.discard(tgid)
        self._homeless.discard(tgid)
        self._versions.pop(tgid, None)
        self._layouts.pop(tgid, None)

    def _build_unwind_tables(self, building: bool) -> None:
        """Tables of all that is mapped, for a while: where stacks have led, then the largest; the next call goes on."""
        if not self._table.has_code and self._table.unit != "module":
            return  # nobody looks at stacks
        if self.modules is None:
            self.modules = Modules(self._engine.unwind_memory())
        until_s = self._clock() + (_BUILDING_S if building else _BUILDING_IN_WINDOW_S)
        built = 0
        for space in self._spaces:
            built += self._build_for(space, until_s, np.inf if building else _LARGE, not built)

    def _build_for(self, space: Space, until_s: float, largest: float, at_least_one: bool) -> int:
        """Returns how many tables were built."""
        modules, built, put_off = self.modules, 0, False
        assert modules is not None
        rows = self._engine.mappings(space.first, len(space.layout))
        wanted = np.flatnonzero((rows["module"] == 0) & ((rows["guessed"] > 0) | (not space.complete)))
        sizes = rows["end"][wanted].astype(np.float64) - rows["start"][wanted]
        for index in wanted[np.lexsort((-sizes, -rows["guessed"][wanted].astype(np.int64)))].tolist():
            mapping = space.layout[index]
            if not modules.is_known(mapping):
                late = self._clock() >= until_s and (built or not at_least_one)
                if late or mapping.end - mapping.start > largest:
                    put_off = True
                    continue
                built += 1
            number, rows["pc"][index] = modules.find(next(iter(space.users)), mapping)
            rows["module"][index] = number  # last: from here on the kernel uses both
        space.complete = space.complete or not put_off
        return built

    def _add_regions(self, layout: Iterable[Mapping]) -> None:
        before = len(self._table.ranges)
        for path in {mapping.path for mapping in layout}:
            if path == PROBED or path in self._table.slices or not self._scope.includes(path):
                continue
            if self._table.unit == "module":
                self._table.add_module(path)
            elif self._table.has_code and (binary := self._binary(path)):
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
