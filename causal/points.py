"""The progress points of one recording: found before it begins, attached, and followed while it goes on.

Some turn up only later: counters in the program when they are first counted, and points in libraries when these are
loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from causal.counting import Counted, InFlight, Macros, Source
from causal.engine import Engine
from causal.errors import CausalError, UsageError
from causal.line_points import Stretch
from causal.probe_costs import ProbeCost, cost_of, measure_probe_costs
from causal.progress import PROBED, PointSpec, Probe, find_stretches, is_loaded, parse_spec, resolve
from causal.symbols.elf import Binary
from causal.symbols.libraries import library_matches

# A point at more places than this is more likely a mistake than meant.
MANY = 16
_READY, _THROUGHPUT, _BEGIN, _END = 2, 1, 2, 3
# What programs with counters of their own look up by name (coz.h, causal.h, the coz crate).
MACRO_MARK = b"_coz_get_counter"
LOADS_MARK = b"\0dlopen\0"  # of programs that may load libraries nobody knows of yet


@dataclass(frozen=True, slots=True)
class Place:
    """A point and where it is. `awaited`: nowhere yet, its library is to be loaded."""

    spec: PointSpec
    probes: tuple[Probe, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """What lies between two points."""

    name: str
    text: str
    begin: Place
    end: Place


@dataclass(frozen=True, slots=True)
class Found:
    """All points of the command line."""

    points: tuple[Place, ...] = ()
    latencies: tuple[Latency, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """In the order of their numbers."""
        return (*self.points, *(place for each in self.latencies for place in (each.begin, each.end)))


def find_points(
    points: Sequence[str], latencies: Sequence[str], accept_many: bool, locate: Callable[[PointSpec], Place]
) -> Found:
    """Read and locate what `-p` and `--latency` say. Raises CausalError and UsageError, each with a remedy."""

    def find(text: str) -> Place:
        place = locate(parse_spec(text))
        count = max(len(place.probes), len(place.stretches) // 8)
        if count > MANY and not accept_many:
            names = ", ".join(dict.fromkeys(probe.symbol for probe in place.probes[:3]))
            raise UsageError(
                f"progress point {place.spec.text} means {count} places ({names} ...)",
                "name one of them, or accept them all as one point with --all",
            )
        return place

    found = tuple(map(find, points))
    pairs = tuple(_latency(text, find) for text in latencies)
    names = [place.spec.name for place in found] + [pair.name for pair in pairs]
    if len(set(names)) != len(names):
        raise UsageError("two progress points have the same name", "name them apart: -p NAME=SPEC")
    return Found(found, pairs)


def _latency(text: str, find: Callable[[str], Place]) -> Latency:
    name, equals, rest = text.partition("=")
    begin, end = split_pair(rest)
    if not equals or not name.strip() or not begin or not end:
        raise UsageError(f"--latency {text}: it takes a begin and an end", "write --latency NAME=BEGIN,END")
    places = find(begin), find(end)
    for place in places:
        if place.spec.kind == "sampled":
            raise UsageError(f"--latency {text}: a sampled line is no moment", "choose a line or a function")
    return Latency(name.strip(), rest.strip(), *places)


def split_pair(text: str) -> tuple[str, str]:
    """Two SPECs at the first comma that is in no brackets; the second is empty when there is none."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth <= 0:
            return text[:at].strip(), text[at + 1 :].strip()
    return text.strip(), ""


def locate(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str], may_load: bool) -> Place:
    """Where a point is in a program; `may_load`: it can load libraries that nobody knows of yet."""
    if may_load and not is_loaded(spec, main, libraries) and spec.library and "/" not in spec.library:
        return Place(spec, awaited=True)
    if spec.kind == "sampled":
        return Place(spec, stretches=tuple(find_stretches(spec, main, libraries)))
    return Place(spec, tuple(resolve(spec, main, libraries)))


def marks_in(paths: Sequence[str]) -> frozenset[bytes]:
    """Which of MACRO_MARK and LOADS_MARK these binaries have somewhere; each is read once."""
    found: set[bytes] = set()
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            content = file.read()
            found.update(mark for mark in (MACRO_MARK, LOADS_MARK) if mark in content)
    return frozenset(found)


def own_libraries(libraries: Sequence[str]) -> list[str]:
    """The libraries of a program without the C library, which has every name."""
    return [path for path in libraries if not os.path.basename(path).startswith(("libc.so", "ld-linux", "libdl"))]


@dataclass
class Points:
    """Attaches the points of a recording and keeps up with what turns up; `names` grows as it does."""

    engine: Engine
    found: Found
    names: list[str] = field(default_factory=list)
    _sources: list[Source] = field(default_factory=list)
    _awaited: dict[int, PointSpec] = field(default_factory=dict)
    _slices: dict[str, int] = field(default_factory=dict)
    _macros: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    _seen: int = 0
    _pairs: int = 0
    _troubles: dict[str, None] = field(default_factory=dict)
    _measured: dict[bool, int] = field(default_factory=dict)
    _costs: dict[int, ProbeCost] = field(default_factory=dict)

    def attach(self) -> None:
        """Find out what uprobes cost, then put all that is known now into place. Raises CausalError where the kernel
        refuses."""
        kinds = {not probe.cheap for place in self.found.places for probe in place.probes}
        if any(place.awaited for place in self.found.places):
            kinds = {False, True}
        self._measured = measure_probe_costs(self.engine, kinds)
        for number, place in enumerate(self.found.places):
            if place.awaited:
                self._awaited[number] = place.spec
            elif place.spec.kind == "tracepoint":
                self.engine.probes.attach_event(number, *place.spec.what.split(":"))
            else:
                self._attach_probes(number, place.probes)
        self._write_stretches()
        for number, place in enumerate(self.found.points):
            self._show(place.spec.name, Counted(number))
        first = len(self.found.points)
        for latency in self.found.latencies:
            self.engine.probes.pair(self._pairs, first, first + 1, macros=False)
            self._show(latency.name, InFlight(self._pairs, first, first + 1))
            self._pairs, first = self._pairs + 1, first + 2
        self.engine.show(self._sources)

    def sampled_slice(self, path: str) -> int:
        """What the kernel has to know of a mapping of this file: where its sampled lines are in the table."""
        return self._slices.get(path, 0)

    @property
    def awaits(self) -> bool:
        """Whether there are points in libraries that are not loaded yet."""
        return bool(self._awaited)

    def refresh(self, paths: Collection[str]) -> None:
        """Take in what is new; `paths` are the files that processes of the target have mapped."""
        for number, spec in list(self._awaited.items()):
            assert spec.library
            loaded = [path for path in paths if library_matches(spec.library, path)]
            if loaded:
                del self._awaited[number]
                self._attach_late(number, spec, loaded)
        if np.count_nonzero(self.engine.probes.macros_ready()) != self._seen:
            self._take_macros()

    def totals(self) -> dict[str, int]:
        """Visits of each point since the recording began, exactly; of latencies, requests that ended."""
        visits = self.engine.probes.visits(len(self.found.places))
        counts = self.engine.probes.macros()["count"]
        totals = {}
        for name, source in zip(self.names, self._sources, strict=True):
            if isinstance(source, Counted):
                totals[name] = visits[source.number]
            elif isinstance(source, Macros):
                totals[name] = sum(int(counts[line]) for line in source.lines)
            elif isinstance(source, InFlight):
                totals[name] = int(counts[source.end]) if source.macros else visits[source.end]
        return totals

    def costs(self) -> list[dict[str, Any]]:
        """What a visit of each point (or a request of each latency) costs where it is counted by uprobes, for the
        profile."""
        numbers: dict[str, tuple[int, ...]] = {p.spec.name: (number,) for number, p in enumerate(self.found.points)}
        first = len(self.found.points)
        for latency in self.found.latencies:
            numbers[latency.name], first = (first, first + 1), first + 2
        found = []
        for name, its in numbers.items():
            known = [self._costs[number] for number in its if number in self._costs]
            if known:
                dearest = max(known, key=lambda cost: cost.ns)
                ns = sum(cost.ns for cost in known)
                found.append({"point": name, "ns": ns, "stepped": dearest.stepped, "instead": dearest.instead})
        return found

    def messages(self) -> Iterator[str]:
        """What the user has to know about the points."""
        yield from self._troubles
        for spec in self._awaited.values():
            yield (
                f"{spec.name} was never attached: no process of the program loaded a library called {spec.library}; "
                "check its name against /proc/PID/maps"
            )
        began = {name for kind, name in self._macros if kind == _BEGIN}
        ended = {name for kind, name in self._macros if kind == _END}
        for name in sorted(began - ended):
            yield f"{name} has a begin but no end was counted, so there is no latency"
        for name in sorted(ended - began):
            yield f"{name} has an end but no begin was counted, so there is no latency"

    def _show(self, name: str, source: Source) -> None:
        self.names.append(name)
        self._sources.append(source)

    def _attach_probes(self, number: int, probes: Sequence[Probe]) -> None:
        if cost := cost_of(probes, self._measured):
            self._costs[number] = cost
        for path in dict.fromkeys(probe.path for probe in probes):
            own = [probe for probe in probes if probe.path == path]
            semaphores = [probe.semaphore for probe in own]
            self.engine.probes.attach_points(
                number, path, [probe.file_offset for probe in own], semaphores if any(semaphores) else None
            )

    def _write_stretches(self) -> None:
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for number, place in enumerate(self.found.places):
            for stretch in place.stretches:
                rows.setdefault(stretch.path, []).append((stretch.start, stretch.end, number))
        first = 0
        for path, its in rows.items():
            self.engine.probes.write_stretches(sorted(its), first)
            self._slices[path] = first << 16 | len(its)
            first += len(its)

    def _attach_late(self, number: int, spec: PointSpec, paths: Sequence[str]) -> None:
        if spec.kind not in PROBED:
            trouble = f"{spec.text}: a sampled line cannot be in a library that is loaded later; name it by its path"
            self._troubles[trouble] = None
            return
        try:
            main, *others = (Binary.load(path) for path in paths)
            self._attach_probes(number, resolve(replace(spec, library=paths[0]), main, others))
        except CausalError as error:
            self._troubles[error.message] = None

    def _take_macros(self) -> None:
        macros = self.engine.probes.macros()
        known = dict(self._macros)
        self._seen = int(np.count_nonzero(macros["state"] == _READY))
        self._macros = {}
        for line in np.flatnonzero(macros["state"] == _READY).tolist():
            key = int(macros["kind"][line]), macros["name"][line].decode(errors="replace")
            self._macros[key] = (*self._macros.get(key, ()), line)
        for (kind, name), lines in self._macros.items():
            if kind == _THROUGHPUT and (kind, name) not in known:
                self._show(self._free_name(name, "counter"), Macros(lines))
            ends = self._macros.get((_END, name))
            fresh = (_BEGIN, name) not in known or (_END, name) not in known
            if kind == _BEGIN and ends and fresh and self._pairs < self.engine.options.max_latencies:
                self.engine.probes.pair(self._pairs, lines[0], ends[0], macros=True)
                self._show(self._free_name(name, "latency"), InFlight(self._pairs, lines[0], ends[0], macros=True))
                self._pairs += 1
        if len(macros) == self.engine.options.max_macros:
            trouble = f"the program has more than {len(macros)} counters; the rest was not counted: give fewer names"
            self._troubles[trouble] = None
        self.engine.show(self._sources)

    def _free_name(self, name: str, kind: str) -> str:
        return name if name not in self.names else f"{name} ({kind})"
