"""Which function could be the progress point? A look at a program nobody named one for.

Counts the calls of all its functions for ten seconds, a part of them at a time, so that a probe in a hot function
slows the program only for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from causal.attachment import AttachOptions
from causal.engine import Engine
from causal.errors import CausalError
from causal.interruption import Interruption
from causal.looking import joined, started
from causal.processes import is_alive
from causal.recording import RunOptions
from causal.symbols.demangle import demangle
from causal.symbols.elf import Binary

_LOOK_S = 10.0
_ROUNDS = 10
_LISTED = 12
# Rarer is too rare for experiments of a second, more often costs too much as a uprobe.
_USEFUL_RATES = (1.0, 50_000.0)


@dataclass(frozen=True)
class Suggestion:
    """Functions with their calls per second, likely progress points first; `status` when the program ended."""

    functions: list[tuple[str, float]]
    status: int | None


def suggest_for_process(options: AttachOptions, interruption: Interruption) -> Suggestion:
    """Look at processes that run already for ten seconds."""
    with joined(options) as (engine, subject, members):
        rates = _rates(engine, subject.main, lambda: any(map(is_alive, members.roots)), interruption)
    return Suggestion(rank(rates), None if any(map(is_alive, members.roots)) else 0)


def suggest(options: RunOptions, interruption: Interruption) -> Suggestion:
    """Start the command, look at it for ten seconds, end it."""
    with started(options) as (engine, subject, child):
        rates = _rates(engine, subject.main, lambda: child.poll() is None, interruption)
        return Suggestion(rank(rates), child.poll())


def _rates(engine: Engine, main: Binary, alive: Callable[[], bool], interruption: Interruption) -> dict[str, float]:
    functions = main.functions
    rows = [row for row in range(len(functions.names)) if not functions.ifunc[row]][
        : engine.options.max_calls * _ROUNDS
    ]
    parts = [rows[i::_ROUNDS] for i in range(_ROUNDS)]
    rates = {}
    for part in filter(None, parts):
        if not alive() or interruption():
            break
        try:
            counter = engine.probes.start_counting_calls(main.path, [int(functions.start[row]) for row in part])
        except OSError as error:
            raise CausalError(
                f"cannot count the calls of {main.name}: {error.strerror}",
                "name a progress point with -p FUNCTION; this kernel may be older than 6.6",
            ) from None
        began = time.monotonic()
        while time.monotonic() - began < _LOOK_S / _ROUNDS and alive() and not interruption():
            time.sleep(0.02)
        elapsed = time.monotonic() - began
        for row, count in zip(part, counter.counts(), strict=True):
            if count:
                rates[demangle(functions.names[row])] = count / elapsed
        counter.close()
    return rates


def rank(rates: dict[str, float]) -> list[tuple[str, float]]:
    """The rates worth showing: useful ones first, the rarest of them first, since work comes in few large units."""
    low, high = _USEFUL_RATES
    useful = sorted((item for item in rates.items() if low <= item[1] <= high), key=lambda item: item[1])
    others = sorted((item for item in rates.items() if not low <= item[1] <= high), key=lambda item: -item[1])
    return (useful + others)[:_LISTED]
