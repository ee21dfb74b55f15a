"""Just-in-time compiled functions as regions, for runtimes that write a map of them (see symbols/perf_map.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from causal.mappings import Mapping
from causal.regions import JIT_CODE, RegionTable, Scope
from causal.symbols.perf_map import PerfMap

# A busy compiler writes all the time; each reading costs as much as there are functions.
_READING_INTERVAL_S = 0.2


class JitCode:
    """Keeps each process's compiled functions in the region table. Only the unit `function` has a use for them.

    `notes` receives what a user should know: path of a map -> why it is not used.
    """

    def __init__(
        self, table: RegionTable, scope: Scope, notes: dict[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table, self._notes, self._clock = table, notes, clock
        self._wanted = table.unit == "function" and scope.includes_jit()
        self._maps: dict[int, PerfMap] = {}
        self._read_s: dict[int, float] = {}

    def slice_of(self, tgid: int) -> tuple[int, int]:
        """Which part of the table's ranges is the compiled code of this process; offsets there are addresses."""
        return self._table.slices.get(_key(tgid), (0, 0))

    def forget(self, tgid: int) -> None:
        """The process has ended, or executes another program."""
        self._maps.pop(tgid, None)
        self._read_s.pop(tgid, None)
        self._table.clear_ranges(_key(tgid))

    def refresh(self, tgid: int, layout: Sequence[Mapping]) -> bool:
        """Look whether the process has compiled more; whether its part of the ranges is another one now."""
        now = self._clock()
        if not self._wanted or now < self._read_s.get(tgid, 0.0):
            return False
        if not any(mapping.kind == "anonymous" for mapping in layout):
            return False
        self._read_s[tgid] = now + _READING_INTERVAL_S
        found = self._maps.setdefault(tgid, PerfMap(tgid))
        changed = found.read_on()
        if found.why_not:
            self._notes[found.path] = found.why_not
        if not changed:
            return False
        ids = [self._table.jit_region(function.name).id for function in found.functions]
        start = np.array([function.start for function in found.functions], np.uint64)
        end = np.array([function.end for function in found.functions], np.uint64)
        if not self._table.replace_ranges(_key(tgid), start, end, np.array(ids, np.uint32)):
            self._notes[found.path] = "its newest functions do not fit the table of ranges: raise --max-ranges"
            return False
        return True


def _key(tgid: int) -> str:
    return f"{JIT_CODE} {tgid}"
