"""A recording of processes that run already: found, prepared, experimented on, and left as they were.

The handler stays in them, idle and a few hundred kilobytes of address space; the next attach uses it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from causal import capabilities
from causal.errors import CausalError, UsageError
from causal.experiment import Status
from causal.interruption import Interruption
from causal.mappings import read_maps
from causal.points import LOADS_MARK, Found, Place, find_points, locate, marks_in, own_libraries
from causal.processes import (
    Process,
    descendants,
    in_cgroup,
    is_alive,
    look_up,
    named,
    refuse_traced,
    root_of,
)
from causal.progress import PointSpec, is_loaded
from causal.quota import throttled_periods
from causal.recording import (
    Outcome,
    Recorder,
    RecordingOptions,
    Subject,
    prepared,
)
from causal.selection import check_unit, find_regions
from causal.source_points import points_in_source
from causal.symbols.elf import Binary
from causal.target import seen_from_here

_GO_WAIT_S = 3.0


@dataclass(frozen=True, kw_only=True)
class AttachOptions(RecordingOptions):
    """What `attach` was asked to do: processes by pid, by name and by control group."""

    pids: Sequence[int] = ()
    names: Sequence[str] = ()
    cgroups: Sequence[str] = ()
    children: bool = True


@dataclass(frozen=True)
class Members:
    """The processes of a target: those that were named, and the children they have already."""

    roots: tuple[Process, ...]
    children: tuple[Process, ...]

    @property
    def all(self) -> tuple[Process, ...]:
        return self.roots + self.children


def find_members(options: AttachOptions) -> Members:
    """The processes that the options mean. Raises CausalError or UsageError with a remedy."""
    pids = dict.fromkeys(options.pids)
    for name in options.names:
        pids.update(dict.fromkeys(named(name)))
    for group in options.cgroups:
        pids.update(dict.fromkeys(in_cgroup(group)))
    wanted = [pid for pid in pids if pid not in options.companions]
    if not wanted:
        raise UsageError("no process to attach to", "give a pid, --name NAME or --cgroup PATH")
    roots = tuple(look_up(pid) for pid in wanted)
    return Members(roots, tuple(_children(roots, options)))


def _children(roots: Sequence[Process], options: AttachOptions) -> list[Process]:
    found = []
    if options.children:
        for pid in descendants(process.pid for process in roots):
            try:
                if pid not in options.companions:
                    found.append(look_up(pid))
            except CausalError:
                continue  # ended meanwhile
    return found


def examine_members(options: AttachOptions, members: Members) -> Subject:
    """Check the unit, the regions and the points against what the processes execute. Raises CausalError."""
    check_unit(options.unit)
    binaries, libraries = programs_of(members)
    scope, table, only = find_regions(options, binaries, chain.from_iterable(libraries.values()))
    looked_at = [path for main, its in libraries.items() for path in (main, *own_libraries(its))]
    may_load = LOADS_MARK in marks_in(looked_at)
    points = find_points(
        options.points, options.latencies, options.accept_many,
        lambda spec: _locate(spec, binaries, libraries, may_load),
    )  # fmt: skip
    if not (options.points or options.latencies):
        points = _points_in_source(binaries, libraries)
    return Subject(binaries[0].path, binaries[0], None, scope, table, only, points)


def programs_of(members: Members) -> tuple[list[Binary], dict[str, list[str]]]:
    """The programs that the processes execute, and by their paths the libraries that they have loaded.

    Raises CausalError when that of a process which was named cannot be read.
    """
    mains: dict[str, tuple[Binary, Process]] = {}
    for process in members.all:
        if process.executable not in mains:
            try:
                mains[process.executable] = (Binary.load(process.executable), process)
            except CausalError:
                if process in members.roots:
                    raise
    binaries = [binary for binary, _ in mains.values()]
    return binaries, {binary.path: library_paths(process) for binary, process in mains.values()}


def _points_in_source(binaries: Sequence[Binary], libraries: dict[str, list[str]]) -> Found:
    """Those of the first program that has any."""
    found = (points_in_source(binary, libraries[binary.path]) for binary in binaries)
    return next((each for each in found if each.places), Found())


def library_paths(process: Process) -> list[str]:
    """The files that a process has mapped beside its executable, as seen from here."""
    root = root_of(process.pid)
    mapped = (seen_from_here(each, root) for each in read_maps(process.pid) if each.kind == "file" and not each.deleted)
    return [path for path in dict.fromkeys(each.path for each in mapped) if path != process.executable]


def _locate(spec: PointSpec, binaries: Sequence[Binary], libraries: dict[str, list[str]], may_load: bool) -> Place:
    """The point in whichever of the programs has it; the first one's complaint when none has."""
    found: list[Place] = []
    if may_load and not any(is_loaded(spec, binary, libraries[binary.path]) for binary in binaries):
        return locate(spec, binaries[0], libraries[binaries[0].path], may_load)
    complaint: CausalError | None = None
    for binary in binaries:
        try:
            found.append(locate(spec, binary, libraries[binary.path], may_load=False))
        except CausalError as error:
            complaint = complaint or error
    if not found:
        assert complaint
        raise complaint
    probes = {(probe.path, probe.file_offset): probe for place in found for probe in place.probes}
    stretches = dict.fromkeys(stretch for place in found for stretch in place.stretches)
    return Place(spec, tuple(probes.values()), tuple(stretches))


def attach(
    options: AttachOptions,
    interruption: Interruption,
    observe: Callable[[Status], None] = lambda status: None,
    report: Callable[[Path], None] = lambda path: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Experiment on running processes and write the profile. Raises CausalError; they go on whatever happens.

    `warn` is told at the start when they, or some of them, cannot be paused.
    """
    capabilities.require()
    members = find_members(options)
    if options.pauses:
        for process in (*members.roots, *map(look_up, options.companions)):
            refuse_traced(process)
    subject = examine_members(options, members)
    with prepared(options, subject, interruption, observe, report, warn) as recorder:
        return _Attachment(recorder, options, members).record()


@dataclass
class _Attachment:
    base: Recorder
    options: AttachOptions
    members: Members

    def record(self) -> Outcome:
        base, roots = self.base, self.members.roots
        self._take_on(self.members)
        # Children that were forked between the look and the hooks.
        late = tuple(child for child in _children(roots, self.options) if child not in self.members.all)
        self._take_on(Members((), late))
        base.add_companions()
        self._settle()
        base.announce_missing()
        command = _command_line(roots[0]) if len(roots) == 1 else [process.name for process in roots]
        base.write_header(
            command, roots[0].pid, base.subject.progress_points(), attached=[process.pid for process in roots],
            children=self.options.children, companions=list(self.options.companions),
        )  # fmt: skip
        reason = base.record(
            base.target.alive, lambda: sum(throttled_periods(process.pid) for process in roots), lambda: None
        )
        base.engine.close()
        base.report(self.options.output)
        return Outcome(self.options.output, reason, None)

    def _take_on(self, members: Members) -> None:
        """Put processes on the clock and bring the handler into them. A root that cannot be traced ends it all."""
        base = self.base
        for process in members.all:
            if process in members.roots:
                base.claims.claim_or_refuse(process)
            elif not base.claims.claim(process):
                continue
            if not is_alive(process):
                if process in members.roots:
                    raise CausalError(f"process {process.pid} has just ended", "attach to one that runs")
                continue
            base.engine.add_process(process.pid, follow=self.options.children)
            base.engine.add_blocked(process.pid)
        base.target.refresh()

    def _settle(self) -> None:
        """Wait for handlers that come a little later (Go). Raises CausalError where another attempt is worth while."""
        base = self.base
        handlers = base.handlers
        if handlers is None:
            return
        deadline = time.monotonic() + _GO_WAIT_S
        roots = [process.pid for process in self.members.roots]
        while time.monotonic() < deadline and not base.interruption():
            base.target.refresh()
            tried = {*handlers.lacking, *handlers.passing}
            if all(base.engine.registered(pid) or pid in tried or pid not in base.engine.processes() for pid in roots):
                break
            time.sleep(0.02)
        if not base.target.alive():
            raise CausalError("the target ended while we attached", "attach to one that runs")
        if all(pid in handlers.passing for pid in roots):
            raise handlers.passing[roots[0]]


def _command_line(process: Process) -> list[str]:
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return [process.name]
    return [word.decode(errors="replace") for word in words if word] or [process.name]
