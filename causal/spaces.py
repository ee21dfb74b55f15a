"""Room for address spaces in the kernel's tables: which process has which, and when room may be used again.

    spaces = Spaces(engine)
    space = spaces.share(tgid, key) or spaces.add(tgid, key, layout, rows)
    spaces.leave(tgid)

Processes with the same mappings (forked workers) have one space together. What nobody has any more is used again after
a while: a core may still be searching it, and a child that was just forked may have it before we know of the child.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from causal.errors import CausalError
from causal.mappings import Mapping
from causal.windows import EngineOptions

Layout = tuple[Mapping, ...]
# A search takes microseconds, a child is adopted at its first system call.
_REST_S = 1.0


class Kernel(Protocol):
    """What is needed of the engine."""

    options: EngineOptions

    def write_space(self, space: int, first: int, mappings: npt.NDArray[Any]) -> None: ...
    def set_space(self, tgid: int, space: int) -> None: ...
    def mappings(self, first: int, count: int) -> npt.NDArray[Any]: ...
    def spaces_in_use(self) -> set[int]: ...


@dataclass(eq=False)
class Space:
    """`number` is its index in the kernel's table, `first` that of its first row, one for each mapping of `layout`."""

    number: int
    first: int
    layout: Layout
    key: Hashable
    users: set[int] = field(default_factory=set)
    complete: bool = False  # what there is of unwind tables has been built


class Spaces:
    """`clock` in seconds. Iterating gives the spaces that processes have."""

    def __init__(self, kernel: Kernel, clock: Callable[[], float] = time.monotonic) -> None:
        self._kernel, self._clock = kernel, clock
        self._of: dict[int, Space] = {}
        self._by_key: dict[Hashable, Space] = {}
        self._resting: deque[tuple[float, Space]] = deque()  # since when
        self._free_rows = [(0, kernel.options.max_mappings)]  # (first, count), in order
        self._free_numbers = deque(range(1, kernel.options.max_spaces))  # 0 is "not read yet"
        self._guessed: Counter[str] = Counter()  # frames in the mappings of spaces that are gone

    def __iter__(self) -> Iterator[Space]:
        return iter(self._by_key.values())

    def share(self, tgid: int, key: Hashable) -> Space | None:
        """Give a process the space with this key; None: there is none. (Its own again, too: exec takes it away.)"""
        space = self._by_key.get(key)
        if space is not None:
            self._give(tgid, space)
        return space

    def add(self, tgid: int, key: Hashable, layout: Layout, rows: npt.NDArray[Any]) -> Space | None:
        """Give a process a new space with these rows (dtype MAPPING), None: there is no room now.

        Raises CausalError if there will never be.
        """
        options = self._kernel.options
        if len(rows) > options.max_mappings:
            raise CausalError(f"a process has {len(rows)} executable mappings", "raise --max-mappings")
        first = self._take(len(rows))
        if first is None:
            return None
        space = Space(self._free_numbers.popleft(), first, layout, key)
        self._kernel.write_space(space.number, first, rows)
        self._by_key[key] = space
        self._give(tgid, space)
        return space

    def leave(self, tgid: int) -> None:
        """A process has ended, or has another space now."""
        space = self._of.pop(tgid, None)
        if space is None:
            return
        space.users.discard(tgid)
        if not space.users:
            self._guessed += self._guesses(space)
            del self._by_key[space.key]
            self._resting.append((self._clock(), space))

    def frames_guessed(self) -> Counter[str]:
        """Paths of mappings -> about how many frames in them were left by the frame pointer."""
        return sum((self._guesses(space) for space in self), self._guessed.copy())

    def _give(self, tgid: int, space: Space) -> None:
        before = self._of.get(tgid)
        space.users.add(tgid)
        self._kernel.set_space(tgid, space.number)
        if before is not space:
            self.leave(tgid)
        self._of[tgid] = space

    def _guesses(self, space: Space) -> Counter[str]:
        frames: Counter[str] = Counter()
        counts = self._kernel.mappings(space.first, len(space.layout))["guessed"]
        for index in counts.nonzero()[0].tolist():
            frames[space.layout[index].path] += int(counts[index])
        return frames

    def _take(self, count: int) -> int | None:
        for attempt in range(2):
            fitting = [room for room in self._free_rows if room[1] >= count]
            if fitting and self._free_numbers:
                first, size = fitting[0]
                at = self._free_rows.index(fitting[0])
                self._free_rows[at : at + 1] = [(first + count, size - count)] if size > count else []
                return first
            if not attempt:
                self._use_again()
        return None

    def _use_again(self) -> None:
        in_use = self._kernel.spaces_in_use()
        still: deque[tuple[float, Space]] = deque()
        for since, space in self._resting:
            if self._clock() - since < _REST_S or space.number in in_use:
                still.append((since, space))
                continue
            self._free_numbers.append(space.number)
            self._free_rows.append((space.first, len(space.layout)))
        self._resting = still
        joined: list[tuple[int, int]] = []
        for first, count in sorted(self._free_rows):
            if joined and sum(joined[-1]) == first:
                joined[-1] = (joined[-1][0], joined[-1][1] + count)
            else:
                joined.append((first, count))
        self._free_rows = joined
