"""What could be the progress point? A look at a program nobody named one for.

Counts for ten seconds what its functions, its USDT points and its system calls of the kind that accepts or sends. The
former take turns, so that a probe in a hot function slows the program only for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from causal.attachment import AttachOptions, programs_of
from causal.engine import Engine
from causal.errors import CausalError
from causal.interruption import Interruption
from causal.looking import joined, started
from causal.processes import is_alive
from causal.recording import RecordingOptions
from causal.running import RunOptions
from causal.source_points import unread_counters
from causal.symbols.demangle import demangle, is_piece
from causal.symbols.elf import Binary
from causal.symbols.libraries import libraries_of, readable_binaries
from causal.symbols.usdt import usdt_points
from causal.tracefs import events_if_readable

_LOOK_S = 10.0
_ROUNDS = 10
_LISTED = 12
_LISTED_OTHERS = 8
# Rarer is too rare for experiments of a second, more often costs too much as a uprobe.
_USEFUL_RATES = (1.0, 50_000.0)
# What a server does once for a connection or a reply.
_SYSTEM_CALLS = ("accept", "accept4", "sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile64")
# As in causal/point_list.py.
FUNCTION, USDT, SYSTEM_CALL = "function", "usdt", "tracepoint"

Rates = dict[str, dict[str, float]]  # kind -> SPEC -> visits per second


@dataclass(frozen=True)
class Suggestion:
    """SPECs with their visits per second by kind, likely progress points first; `status` when the program ended."""

    points: dict[str, list[tuple[str, float]]]
    status: int | None
    note: str = ""  # what else there is to know

    @property
    def best(self) -> str | None:
        """One to begin with: what is visited neither too rarely nor too often, rather the program's own."""
        low, high = _USEFUL_RATES
        useful = [spec for found in self.points.values() for spec, rate in found if low <= rate <= high]
        return next(iter([*useful, *(spec for found in self.points.values() for spec, _ in found)]), None)


@dataclass(frozen=True)
class Look:
    """Places in one file that are counted at the same time."""

    kind: str
    path: str
    specs: list[str]
    offsets: list[int]
    semaphores: list[int] | None = None


def suggest_for_process(options: AttachOptions, interruption: Interruption) -> Suggestion:
    """Look at processes that run already for ten seconds, or a shorter `options.duration_s`."""
    events = _events()
    with joined(options, len(events)) as (engine, _, members):
        mains, libraries = programs_of(members)
        going = _Going(lambda: any(map(is_alive, members.roots)), interruption)
        loaded = list(dict.fromkeys(chain.from_iterable(libraries.values())))
        rates = _rates(engine, mains, loaded, events, going, _length_s(options))
        status = None if any(map(is_alive, members.roots)) else 0
        notes = (unread_counters(main, libraries[main.path], runs_already=True) for main in mains)
        return Suggestion(_rank_all(rates), status, next(filter(None, notes), ""))


def suggest(options: RunOptions, interruption: Interruption) -> Suggestion:
    """Start the command, look at it for ten seconds or a shorter `options.duration_s`, end it."""
    events = _events()
    with started(options, len(events)) as (engine, subject, child):
        going = _Going(lambda: child.poll() is None, interruption)
        libraries = libraries_of(subject.main)
        rates = _rates(engine, [subject.main], libraries, events, going, _length_s(options))
        return Suggestion(_rank_all(rates), child.poll(), unread_counters(subject.main, libraries, runs_already=False))


@dataclass(frozen=True)
class _Going:
    alive: Callable[[], bool]
    interruption: Interruption

    def __bool__(self) -> bool:
        return self.alive() and not self.interruption()


def _events() -> list[str]:
    known = events_if_readable()
    return [event for call in _SYSTEM_CALLS if (event := f"syscalls:sys_exit_{call}") in known]


def _length_s(options: RecordingOptions) -> float:
    return min(options.duration_s or _LOOK_S, _LOOK_S)


def _rates(
    engine: Engine, mains: Sequence[Binary], libraries: Sequence[str], events: Sequence[str], going: _Going,
    length_s: float,
) -> Rates:  # fmt: skip
    rates: Rates = {FUNCTION: {}, USDT: {}, SYSTEM_CALL: {}}
    for number, event in enumerate(events):
        engine.probes.attach_event(number, *event.split(":"))
    began, before = time.monotonic(), engine.probes.visits(len(events))
    most = engine.options.max_calls
    functions = chain.from_iterable(_function_looks(main, most) for main in mains)
    looks = [*functions, *usdt_looks((*mains, *libraries), most)]
    for look in looks:
        if not going:
            break
        for spec, rate in _count(engine, look, length_s / len(looks), going).items():
            rates[look.kind][spec] = rates[look.kind].get(spec, 0.0) + rate
    elapsed = max(time.monotonic() - began, 1e-3)
    for event, first, last in zip(events, before, engine.probes.visits(len(events)), strict=True):
        if last > first:
            rates[SYSTEM_CALL][f"tracepoint:{event}"] = (last - first) / elapsed
    return rates


def _function_looks(main: Binary, most: int) -> Iterator[Look]:
    functions = main.functions
    named = enumerate(functions.names)
    rows = [row for row, name in named if not functions.ifunc[row] and not is_piece(name)][: most * _ROUNDS]
    for part in filter(None, (rows[i::_ROUNDS] for i in range(_ROUNDS))):
        names = [demangle(functions.names[row]) for row in part]
        yield Look(FUNCTION, main.path, names, [int(functions.start[row]) for row in part])


def usdt_looks(binaries: Sequence[Binary | str], most: int) -> Iterator[Look]:
    """The USDT points of these files, at most so many places at a time."""
    for binary in readable_binaries(binaries):
        places = [
            (point.spec, offset, binary.file_offset(point.semaphore) or 0)
            for point in usdt_points(binary)
            if (offset := binary.file_offset(point.vaddr)) is not None
        ]
        for first in range(0, len(places), most):
            specs, offsets, semaphores = (list(part) for part in zip(*places[first : first + most], strict=True))
            yield Look(USDT, binary.path, specs, offsets, semaphores if any(semaphores) else None)


def _count(engine: Engine, look: Look, length_s: float, going: _Going) -> dict[str, float]:
    """Visits per second of each SPEC that had any; all its places count."""
    try:
        counter = engine.probes.start_counting_calls(look.path, look.offsets, look.semaphores)
    except OSError as error:
        raise CausalError(
            f"cannot count the calls of {look.path}: {error.strerror}",
            "name a progress point with -p FUNCTION; this kernel may be older than 6.6",
        ) from None
    began = time.monotonic()
    while time.monotonic() - began < length_s and going:
        time.sleep(0.02)
    elapsed = time.monotonic() - began
    rates: dict[str, float] = {}
    for spec, count in zip(look.specs, counter.counts(), strict=True):
        if count:
            rates[spec] = rates.get(spec, 0.0) + count / elapsed
    counter.close()
    return rates


def _rank_all(rates: Rates) -> dict[str, list[tuple[str, float]]]:
    return {kind: rank(its, _LISTED if kind == FUNCTION else _LISTED_OTHERS) for kind, its in rates.items() if its}


def rank(rates: dict[str, float], listed: int = _LISTED) -> list[tuple[str, float]]:
    """The rates worth showing: useful ones first, the rarest of them first, since work comes in few large units."""
    low, high = _USEFUL_RATES
    useful = sorted((item for item in rates.items() if low <= item[1] <= high), key=lambda item: item[1])
    others = sorted((item for item in rates.items() if not low <= item[1] <= high), key=lambda item: -item[1])
    return (useful + others)[:listed]
