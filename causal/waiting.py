"""Off-CPU time: the classes of waits, and which of them belong to the regions of each unit.

Plain values shared by the engine, which counts waits exactly from the scheduler's events, and by what reads its counts.
All times in ns. A region's waits are thread time: two threads that wait for a second waited for two.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

# As in bpf/waits.h.
CLASS_BITS = 3


class WaitClass(enum.IntEnum):
    """What a thread waits for. `label` is its name in tables and the region's in the unit `wait`."""

    IO = 1
    LOCK = 2
    RUNQUEUE = 3
    SLEEP = 4
    IDLE = 5

    @property
    def label(self) -> str:
        return {WaitClass.IO: "I/O"}.get(self, self.name.lower())


class WaitMode(enum.IntEnum):
    """Which waits a virtual speedup shortens."""

    NONE = 0
    OF_CODE = 1  # I/O and sleep, at the code that waits
    BY_CLASS = 2
    BY_CALL = 3


# A lock wait shrinks when the holder gets faster, an idle one when there is more to do: neither is its code's own.
OF_CODE = (WaitClass.IO, WaitClass.SLEEP)
UNITS = ("wait", "syscall")
LOCKS_ARE_COUNTED = (
    "lock waits are counted, but not sped up: they shrink with the code that holds the lock (--unit line or function)"
)
CALL_REGIONS = 1024  # more system calls than there are
# Numbers on x86-64, as in bpf/waits.h. All others are I/O.
_CALLS = {
    WaitClass.LOCK: (202, 449, 454, 455, 65, 220, 64, 73),
    WaitClass.SLEEP: (35, 230),
    WaitClass.IDLE: (7, 271, 23, 270, 232, 281, 441, 43, 288, 61, 247, 34, 128, 130, 70, 243),
}
Waits = Mapping[tuple[int, WaitClass], int]  # (region of the code that waited, class) -> ns


def class_of_call(number: int) -> WaitClass:
    """What a thread waits for in a system call."""
    return next((kind for kind, numbers in _CALLS.items() if number in numbers), WaitClass.IO)


def mode_of(unit: str) -> WaitMode:
    """Which waits the regions of a unit include. Threads and processes are sped up as far as they compute."""
    if unit in ("thread", "process"):
        return WaitMode.NONE
    return {"wait": WaitMode.BY_CLASS, "syscall": WaitMode.BY_CALL}.get(unit, WaitMode.OF_CODE)


def shortened(mode: WaitMode) -> tuple[WaitClass, ...]:
    """The classes of waits that a virtual speedup shortens."""
    if mode is WaitMode.OF_CODE:
        return OF_CODE
    kept_out = {WaitMode.BY_CALL: (WaitClass.LOCK, WaitClass.RUNQUEUE), WaitMode.BY_CLASS: (WaitClass.LOCK,)}
    return tuple(kind for kind in WaitClass if kind not in kept_out[mode]) if mode in kept_out else ()


def by_region(waits: Waits, mode: WaitMode, sites: Mapping[int, tuple[int, int]] | None = None) -> Counter[int]:
    """The time that threads spent in waits which a virtual speedup of each region would shorten.

    `sites`: with call sites, region -> (region, region of its caller), or (class, region of the code that waited).
    """
    if sites is not None and mode is WaitMode.BY_CLASS:
        return Counter({number: waits.get((place, WaitClass(kind)), 0) for number, (kind, place) in sites.items()})
    included = shortened(mode)
    total: Counter[int] = Counter()
    for (place, kind), spent_ns in waits.items():
        if kind in included:
            total[int(kind) if mode is WaitMode.BY_CLASS else place] += spent_ns
    del total[0]
    return total
