"""What is put into programs to count by (uprobes, tracepoints, sampled lines), and the counters they have themselves.

The kernel side of it is bpf/progress.h and bpf/sampled.h; which points there are is for causal/points.py to say.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from causal import kernel_calls
from causal.errors import CausalError
from causal.loading import captured_output
from causal.windows import EngineOptions

# As in bpf/progress.h; `state` 2 is a counter that is ready, `kind` 1 a point of throughput, 2 a begin, 3 an end.
MACRO = np.dtype([("count", "<u8"), ("backoff", "<u8"), ("state", "<u4"), ("kind", "<u4"), ("name", "S232")])


# What the kernel says of an instruction that it cannot probe, such as one with a lock prefix; 524 is its own ENOTSUPP.
_REFUSALS = (errno.ENOEXEC, errno.EOPNOTSUPP, errno.EILSEQ, 524)


def programs_of_points(points: int, options: EngineOptions) -> str:
    """C: the programs of so many points, for events, and for uprobes where one program cannot have all of them; and
    that of the point for trials."""
    source = [f"int on_event_{point}(void *ctx) {{ visit({point}); return 0; }}" for point in range(points)]
    probed = {*range(points), _trial_point(options)} if points else ()
    source += [f"int on_visit_{point}(struct pt_regs *ctx) {{ visit({point}); return 0; }}" for point in probed]
    return "\n" + "\n".join(source)


def _trial_point(options: EngineOptions) -> int:
    return options.max_points - 1


@dataclass
class CallCounter:
    """Attached probes that count; `close` detaches them."""

    _links: list[int]
    counts: Callable[[], list[int]]

    def close(self) -> None:
        while self._links:
            os.close(self._links.pop())


class PointProbes:
    """The probes of one engine; `macros` is its table of that name in our memory. `close` detaches all of them."""

    def __init__(self, bpf: Any, macros: npt.NDArray[Any], options: EngineOptions) -> None:
        self._bpf, self._macros, self._options = bpf, macros, options
        self._claimed = 0
        self._links: list[int] = []  # closing one detaches it

    def close(self) -> None:
        """Detach everything that was attached here."""
        for fd in self._links:
            os.close(fd)
        self._links.clear()

    def attach_points(
        self, point: int, path: str, file_offsets: Sequence[int], semaphores: Sequence[int] | None = None
    ) -> None:
        """Count visits of these instructions by uprobes, in all processes of the target that have the file mapped, now
        or later. `semaphores`: file offsets of the counters that switch USDT points on, 0 where there is none."""
        from bcc import BPF

        with captured_output():
            program = self._bpf.load_func("on_visit", BPF.KPROBE, attach_type=kernel_calls.TRACE_UPROBE_MULTI)
        cookies = [point] * len(file_offsets)
        try:
            link = kernel_calls.link_uprobes(program.fd, path, file_offsets, cookies, semaphores=semaphores)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                raise CausalError(f"cannot probe {path}: {error.strerror}", "run as root") from None
            # Before Linux 6.6 (kernel commit 89ae89f53d20) there is no link that holds many uprobes.
            for i, file_offset in enumerate(file_offsets):
                self._attach_uprobe(point, path, file_offset, semaphores[i] if semaphores else 0)
            return
        self._links.append(link)

    @contextmanager
    def on_trial(self, path: str, file_offset: int) -> Iterator[None]:
        """One place as `attach_points` does it, for the length of the block; for engines that have points."""
        self.attach_points(_trial_point(self._options), path, [file_offset])
        link = self._links.pop()
        try:
            yield
        finally:
            os.close(link)

    def _attach_uprobe(self, point: int, path: str, file_offset: int, semaphore: int) -> None:
        from bcc import BPF
        from bcc.libbcc import lib

        program = self._bpf.load_func(f"on_visit_{point}", BPF.KPROBE)
        name = f"causal_{os.getpid()}_{point}_{len(self._links)}"
        with captured_output() as output:
            fd = lib.bpf_attach_uprobe(
                program.fd, 0, name.encode(), os.fsencode(path), file_offset, -1, semaphore
            )  # fmt: skip
        if fd < 0:
            raise CausalError(
                f"cannot attach a uprobe to {path}+{file_offset:#x}",
                f"the instruction may not allow it; choose another point. {output().strip()[-200:]}",
            )
        self._links.append(fd)

    def attach_event(self, point: int, category: str, event: str) -> None:
        """Count a kernel tracepoint, as often as it fires while a thread of the target is current."""
        from bcc import BPF
        from bcc.libbcc import lib

        with captured_output() as output:
            program = self._bpf.load_func(f"on_event_{point}", BPF.TRACEPOINT)
            fd = lib.bpf_attach_tracepoint(program.fd, category.encode(), event.encode())
        if fd < 0:
            raise CausalError(
                f"cannot attach to the tracepoint {category}:{event}", f"run as root. {output().strip()[-200:]}"
            )
        self._links.append(fd)

    def write_stretches(self, stretches: Sequence[tuple[int, int, int]], first: int = 0) -> None:
        """Sampled lines from index `first` on: (start, end, point) with file offsets, sorted within each file."""
        table = self._bpf["stretches"]
        if first + len(stretches) > self._options.max_stretches:
            raise CausalError(
                f"the sampled lines have more than {self._options.max_stretches} pieces of code",
                "choose lines with less code",
            )
        for i, (start, end, point) in enumerate(stretches, first):
            table[ctypes.c_int(i)] = table.Leaf(start, end, point, 0)

    def macros(self) -> npt.NDArray[Any]:
        """The counters that programs of the target have claimed so far (a copy, dtype MACRO, in the order claimed)."""
        # Programs can write here what they like: what was there once does not go away.
        self._claimed = max(self._claimed, int(np.count_nonzero(self._macros["state"])))
        return self._macros[: self._claimed].copy()

    def macros_ready(self) -> npt.NDArray[np.bool_]:
        """Which lines of `macros` can be read."""
        ready: npt.NDArray[np.bool_] = self._macros["state"] == 2
        return ready

    @property
    def macros_fd(self) -> int:
        """Descriptor of the table of counters that programs add to themselves."""
        return int(self._bpf["macros"].map_fd)

    def pair(self, latency: int, begin: int, end: int, macros: bool) -> None:
        """Follow the requests between two points, or two lines of `macros`. Pairs are numbered from 0 without gaps."""
        table = self._bpf["latencies"]
        if latency >= self._options.max_latencies:
            raise CausalError(f"more than {self._options.max_latencies} latencies", "name the ones that matter most")
        table[ctypes.c_int(latency)] = table.Leaf(begin, end, 2 if macros else 1)

    def start_counting_calls(
        self, path: str, file_offsets: Sequence[int], semaphores: Sequence[int] | None = None
    ) -> CallCounter:
        """Count how often the target executes the instructions at these offsets of one file, until closed; those that
        the kernel cannot probe count nothing.

        `semaphores` as for `attach_points`.

        Raises OSError where the kernel has no uprobe_multi links (they came with 6.6, kernel commit 89ae89f53d20).
        """
        from bcc import BPF

        bpf = self._bpf
        with captured_output():
            program = bpf.load_func("on_call", BPF.KPROBE, attach_type=kernel_calls.TRACE_UPROBE_MULTI)
        counts = bpf["calls"]
        counts.clear()
        links: list[int] = []

        def attach(first: int, end: int) -> None:
            """One link for all; halves of them where a place that the kernel refuses spoils the whole."""
            switches = None if semaphores is None else semaphores[first:end]
            places, cookies = file_offsets[first:end], range(first, end)
            try:
                links.append(kernel_calls.link_uprobes(program.fd, path, places, cookies, semaphores=switches))
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                if end - first > 1:
                    attach(first, (first + end) // 2)
                    attach((first + end) // 2, end)

        counter = CallCounter(links, lambda: [int(counts[i].value) for i in range(len(file_offsets))])
        try:
            attach(0, len(file_offsets))
        except BaseException:
            counter.close()
            raise
        return counter

    def visits(self, points: int) -> list[int]:
        """Visits of the first `points` progress points since loading."""
        table = self._bpf["points"]
        return [int(table[i].visits) for i in range(points)]
