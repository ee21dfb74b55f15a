"""What could be sped up, and how much of the time it takes: a look at a program before any experiment.

The first half of the look counts regions as an experiment would: each sample belongs to the innermost frame in scope.
The second half counts where the samples really are, in scope or not, so that a scope that leaves out too much shows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from causal.attachment import AttachOptions
from causal.engine import Engine
from causal.interruption import Interruption
from causal.looking import joined, started
from causal.processes import is_alive
from causal.project import ProjectScope
from causal.recording import RecordingOptions, Subject
from causal.regions import RegionTable, Scope
from causal.running import RunOptions
from causal.symbols.elf import Binary
from causal.target import Target

LOOK_S = 10.0
_REFRESH_S = 0.05


@dataclass(frozen=True)
class Share:
    """A region, or a place that code is in, and its part of all samples. `in_scope`: an experiment would see it.

    `waits`: how many threads waited there on average.
    """

    name: str
    function: str
    share: float
    in_scope: bool
    waits: float = 0.0


@dataclass(frozen=True)
class Survey:
    """`regions` in scope and `places` (source files and binaries) by share; samples of the first half, and of those the
    part in scope; `status` is the command's, None when it still ran."""

    unit: str
    regions: list[Share]
    places: list[Share]
    samples: int
    in_scope: float
    status: int | None


def survey(options: RunOptions, interruption: Interruption) -> Survey:
    """Start the command, look at it for `options.duration_s` (10 s), end it. Raises CausalError with a remedy."""
    with started(options) as (engine, subject, child):
        looked = _survey(options, engine, subject, lambda: child.poll() is not None or interruption())
        return replace(looked, status=child.poll())


def survey_processes(options: AttachOptions, interruption: Interruption) -> Survey:
    """Look at processes that run already, and do nothing to them. Raises CausalError with a remedy."""
    with joined(options) as (engine, subject, members):
        return _survey(options, engine, subject, lambda: not any(map(is_alive, members.roots)) or interruption())


def _survey(options: RecordingOptions, engine: Engine, subject: Subject, ended: Callable[[], bool]) -> Survey:
    half_s = (options.duration_s or LOOK_S) / 2
    regions, samples, in_scope = _look(engine, subject.table, subject.scope, half_s, ended)
    return Survey(subject.unit, regions, _places(engine, subject, half_s, ended), samples, in_scope, None)


def _places(engine: Engine, subject: Subject, length_s: float, ended: Callable[[], bool]) -> list[Share]:
    if isinstance(subject.scope, ProjectScope):
        table = RegionTable("file", engine.options.max_ranges)
        return _look(engine, table, _Everywhere(subject.main, subject.scope), length_s, ended)[0]
    table = RegionTable("module", engine.options.max_ranges)
    scope = Scope(subject.main.path, ("*",))
    found = _look(engine, table, scope, length_s, ended)[0]
    paths = {region.name: region.binary for region in table}
    return [replace(s, function="", in_scope=subject.scope.includes(paths[s.name])) for s in found]


class _Everywhere(Scope):
    """All source files of the binaries in scope, and all other binaries as a whole."""

    def __init__(self, main: Binary, inner: ProjectScope) -> None:
        super().__init__(main.path, ("*",))
        self.inner = inner

    def add_code(self, table: RegionTable, binaries: Iterable[Binary]) -> None:
        for binary in binaries:
            if not (self.inner.includes(binary.path) and self.inner.add_every_file(table, binary)):
                table.add_module(binary.path)


def _look(
    engine: Engine, table: RegionTable, scope: Scope, length_s: float, ended: Callable[[], bool]
) -> tuple[list[Share], int, float]:
    """Sample for so long; shares by region, the largest first, the number of samples, the part in any region."""
    engine.write_ranges(table.ranges)
    target = Target(engine, table, scope)
    target.refresh()
    before, counted, waited = engine.region_samples(), engine.counters(), _waits(engine)
    engine.tick(True)
    began = time.monotonic()
    while time.monotonic() - began < length_s and not ended():
        time.sleep(_REFRESH_S)
        target.refresh()
    engine.tick(False)
    samples = engine.counters()["samples"] - counted["samples"]
    hits = engine.region_samples() - before
    looked_ns = max(time.monotonic() - began, 1e-9) * 1e9
    waits = {number: (ns - waited[number]) / looked_ns for number, ns in _waits(engine).items() if number <= len(table)}
    shares = []
    for number in sorted({*np.flatnonzero(hits[: len(table) + 1]).tolist(), *waits}):
        region = table.region(number)
        counts = not isinstance(scope, _Everywhere) or scope.inner.counts(region)
        share = float(hits[number]) / max(samples, 1)
        shares.append(Share(region.name, region.function, share, counts, waits.get(number, 0.0)))
    shares.sort(key=lambda share: (-share.share, -share.waits))
    return shares, samples, sum(share.share for share in shares)


def _waits(engine: Engine) -> Counter[int]:
    # By region, whatever for; those that go on may be of the regions of an earlier look.
    found: Counter[int] = Counter()
    for (place, _), spent_ns in engine.waits(finished=True).items():
        if place:
            found[place] += spent_ns
    return found
