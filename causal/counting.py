"""What progress points saw between two edges of a window, from what the kernel side kept of them.

A latency needs no record of single requests: the requests in flight, integrated over time, are known from sums alone,
    integral = sum of end times - sum of begin times + in flight now * now    (less the same at the start),
and the mean latency is that integral divided by the number of requests that ended (Little, A proof for the queuing
formula L = lambda W, Operations Research 1961). Times are virtual: those of the sped-up world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from causal.windows import PointReading

_WORD = 1 << 64


@dataclass(frozen=True)
class Edges:
    """What the kernel cut at the start, the middle and the end of a window (`struct cut` of bpf/progress.h)."""

    start: Any
    middle: Any
    end: Any
    placebo: bool

    def virtual_ns(self, cut: Any) -> int:
        """The time of an edge in the sped-up world."""
        return int(cut.now_ns - (cut.cost if self.placebo else cut.granted))


class Source(Protocol):
    """Where the visits of a progress point come from."""

    def read(self, edges: Edges) -> PointReading: ...


@dataclass(frozen=True)
class Counted:
    """A point that the kernel side counts, by its number."""

    number: int

    def read(self, edges: Edges) -> PointReading:
        """Visits, and when the first and the last were."""
        start, middle, end = (cut.points[self.number] for cut in (edges.start, edges.middle, edges.end))
        visits, origin = int(end.visits - start.visits), edges.virtual_ns(edges.start)
        return PointReading(
            visits=visits,
            half_visits=int(middle.visits - start.visits),
            first_ns=int(end.first_ns - origin) if visits else None,
            last_ns=int(end.last_ns - origin) if visits else None,
        )


@dataclass(frozen=True)
class Macros:
    """A counter in the program, by the lines of its table: more than one when processes claimed it at the same time."""

    lines: tuple[int, ...]

    def read(self, edges: Edges) -> PointReading:
        """Visits; nobody noted when they were."""
        start, middle, end = (
            sum(int(cut.macros[i]) for i in self.lines) for cut in (edges.start, edges.middle, edges.end)
        )
        return PointReading(end - start, middle - start, None, None)


@dataclass(frozen=True)
class InFlight:
    """Requests between two points, or between two counters in the program; `number` of the pair in the kernel."""

    number: int
    begin: int
    end: int
    macros: bool = False

    def read(self, edges: Edges) -> PointReading:
        """Requests that ended and began, and the integral of those in flight."""
        began = [self._passed(cut, self.begin) for cut in (edges.start, edges.middle, edges.end)]
        ended = [self._passed(cut, self.end) for cut in (edges.start, edges.middle, edges.end)]
        return PointReading(
            visits=ended[2] - ended[0],
            half_visits=ended[1] - ended[0],
            first_ns=None,
            last_ns=None,
            arrivals=began[2] - began[0],
            in_flight_ns=self._integral(edges),
        )

    def _passed(self, cut: Any, which: int) -> int:
        return int(cut.macros[which]) if self.macros else int(cut.points[which].visits)

    def _integral(self, edges: Edges) -> int:
        if self.macros:
            return int(edges.end.latencies[self.number].integral - edges.start.latencies[self.number].integral)
        # What was in flight before anybody looked ended without having begun.
        unseen = -min(int(edges.end.latencies[self.number].lowest), 0)
        grown = self._so_far(edges.end, edges, unseen) - self._so_far(edges.start, edges, unseen)
        grown %= _WORD  # the kernel's sums are words
        return max(grown - _WORD if grown >= _WORD // 2 else grown, 0)

    def _so_far(self, cut: Any, edges: Edges, unseen: int) -> int:
        begin, end = cut.points[self.begin], cut.points[self.end]
        in_flight = int(begin.visits) - int(end.visits) + unseen
        return int(end.moments) - int(begin.moments) + in_flight * edges.virtual_ns(cut)
