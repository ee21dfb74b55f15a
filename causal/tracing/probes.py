"""Counts the calls of thousands of functions in chosen processes: `bpf/calls.bpf.c` as a Python object.

Beside causal/engine.py the only module that imports bcc.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import kernel_calls
from causal.engine import BPF_DIRECTORY, captured_output, map_array
from causal.errors import CausalError
from causal.tracing.functions import Function
from causal.tracing.points import MAX_VALUES, Place, Value

_MAX_TRACED = 65_536
# What the kernel says of places where it cannot put a probe.
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EILSEQ, 524)


def possible_cpus() -> int:
    """One more than the highest number a CPU of this machine can have."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1


def compile_program(source: str, defines: dict[str, int]) -> Any:
    """Load a BPF program through bcc; raises CausalError with the kernel's words."""
    try:
        from bcc import BPF
    except ImportError:
        raise CausalError("the Python package bcc is missing", "sudo apt install python3-bpfcc") from None
    os.environ["BCC_KERNEL_SOURCE"] = str(BPF_DIRECTORY / "kernel")
    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in {"LINUX_VERSION_CODE": 0, **defines}.items())]
    with captured_output() as output:
        try:
            return BPF(text=source, cflags=flags)
        except Exception as error:  # bcc raises nothing more specific
            raise CausalError(
                f"the kernel refused to trace calls ({error})",
                f"run `causal-bpf doctor`; details: {output()[-1500:]}",
            ) from error


class Links:
    """Attached uprobe_multi links; those places that the kernel refuses are in `refused`."""

    def __init__(self, program: int, functions: Sequence[Function], numbers: Sequence[int], tgid: int = 0) -> None:
        self._program = program
        self._tgid = tgid
        self._links: list[int] = []
        self.refused: list[int] = []
        by_path: dict[str, list[int]] = {}
        for number in numbers:
            by_path.setdefault(functions[number].path, []).append(number)
        try:
            for path, these in by_path.items():
                self._attach(path, functions, these)
            if numbers and len(self.refused) == len(numbers):
                raise CausalError(
                    "the kernel refuses every single probe",
                    "many probes at once (uprobe_multi links) need Linux 6.6; run `causal-bpf doctor`",
                )
        except BaseException:
            self.close()
            raise

    def _attach(self, path: str, functions: Sequence[Function], numbers: list[int]) -> None:
        """One link for a file; halves of it where one place spoils the whole."""
        try:
            offsets = [functions[number].offset for number in numbers]
            self._links.append(kernel_calls.link_uprobes(self._program, path, offsets, numbers, self._tgid))
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise CausalError(f"cannot probe {path}: {error.strerror}", "run `causal-bpf doctor`") from None
            if len(numbers) == 1:
                self.refused += numbers
                return
            half = len(numbers) // 2
            self._attach(path, functions, numbers[:half])
            self._attach(path, functions, numbers[half:])

    def close(self) -> None:
        """Detach all of them."""
        while self._links:
            os.close(self._links.pop())


class CallCounts:
    """Counts calls of `functions` by the processes given to `trace` and by their children; close() ends it.

    Nothing is probed until `attach`. Raises CausalError when the kernel refuses.
    """

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions
        self._cpus = possible_cpus()
        slots = self._cpus * len(functions)
        source = (BPF_DIRECTORY / "calls.bpf.c").read_text()
        defines = {"FUNCTIONS": len(functions), "CALL_SLOTS": slots, "MAX_TRACED": _MAX_TRACED}
        self._bpf = compile_program(source, defines)
        self._maps: list[mmap.mmap] = []
        self._calls = map_array(self._bpf, "calls", np.dtype("<u8"), slots, self._maps)
        with captured_output():
            attach_type = kernel_calls.TRACE_UPROBE_MULTI
            self._program = self._bpf.load_func("on_call", self._bpf.KPROBE, attach_type=attach_type)
        self._links: Links | None = None

    def __enter__(self) -> CallCounts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach(self, without: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Probe all functions but those numbers; returns the numbers of functions that cannot be probed."""
        self.detach()
        numbers = [number for number in range(len(self._functions)) if number not in without]
        self._links = Links(self._program.fd, self._functions, numbers)
        return self._links.refused

    def detach(self) -> None:
        """Remove all probes; the counts stay."""
        if self._links:
            self._links.close()
            self._links = None

    def trace(self, tgid: int) -> None:
        """Forget all processes and counts, and count for this process and its future children."""
        table = self._bpf["traced"]
        table.clear()
        self._calls[:] = 0
        table[ctypes.c_uint32(tgid)] = ctypes.c_uint32(1)

    def counts(self) -> NDArray[np.int64]:
        """Calls of each function since `trace`, (F,)."""
        totals: NDArray[np.int64] = self._calls.reshape(self._cpus, -1).sum(axis=0).astype(np.int64)
        return totals

    @property
    def untraced(self) -> int:
        """Child processes that were not counted because the table was full."""
        return int(self._bpf["untraced"][ctypes.c_int(0)].value)

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        with captured_output():
            self._bpf.cleanup()


_REQUEST_COUNTERS = ("begun", "finished", "nested", "unended", "no_room", "lost", "stray_ends")
_CELL = np.dtype([("request", "<u4"), ("calls", "<u4")])
# As struct request in bpf/requests.bpf.c.
_REQUEST = np.dtype(
    [("number", "<u8"), ("begin_ns", "<u8"), ("end_ns", "<u8"), ("waited_ns", "<u8"), ("left_ns", "<u8"),
     ("sp", "<u8"), ("values", "<u8", (MAX_VALUES,)), ("tid", "<u4"), ("depth", "<u4"), ("known", "<u4"),
     ("pad", "<u4")]
)  # fmt: skip
_MAX_CELLS = 1 << 24
_MAX_ROWS = 4096
_RING_PAGES = 64


class RequestProbes:
    """Follows the requests of one process: `bpf/requests.bpf.c` as a Python object.

    `on_request` gets each finished request (a record of _REQUEST: number, begin_ns, end_ns, waited_ns, values, known)
    and its calls (F,), or None for calls that were overwritten before they were read. Raises CausalError.
    """

    def __init__(
        self,
        tgid: int,
        functions: Sequence[Function],
        values: Sequence[Value],
        on_request: Callable[[Any, NDArray[np.int64] | None], None],
    ) -> None:
        self._tgid = tgid
        self._functions = functions
        self._on_request = on_request
        rows = _MAX_ROWS
        while rows > 64 and rows * len(functions) > _MAX_CELLS:
            rows //= 2
        reads = "".join(f"read_value(ctx, r, {i}, {v.position}, {int(v.string)});" for i, v in enumerate(values))
        source = (BPF_DIRECTORY / "requests.bpf.c").read_text()
        source = re.sub(r"^\tREAD_VALUES$", "\t" + reads, source, flags=re.MULTILINE)
        self._bpf = compile_program(
            source,
            {"FUNCTIONS": len(functions), "ROWS": rows, "VALUES": MAX_VALUES, "MAX_REQUESTS": 65_536,
             "RING_PAGES": _RING_PAGES, "PAGE_SIZE": mmap.PAGESIZE, "TARGET": tgid},
        )  # fmt: skip
        self._maps: list[mmap.mmap] = []
        cells = map_array(self._bpf, "cells", _CELL, rows * len(functions), self._maps)
        self._cells = cells.reshape(rows, len(functions))
        self._totals = map_array(self._bpf, "totals", np.dtype("<u8"), len(functions), self._maps)
        with captured_output():
            attach_type = kernel_calls.TRACE_UPROBE_MULTI
            self._programs = {
                name: self._bpf.load_func(name, self._bpf.KPROBE, attach_type=attach_type).fd
                for name in ("on_call", "on_begin", "on_end")
            }
        self._bpf["finished"].open_ring_buffer(self._receive)
        self._calls: Links | None = None
        self._points: list[int] = []

    def __enter__(self) -> RequestProbes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach_calls(self, without: frozenset[int] | set[int] = frozenset()) -> list[int]:
        """Probe all functions but those numbers; returns the numbers of functions that cannot be probed."""
        self.detach()
        self._totals[:] = 0
        numbers = [number for number in range(len(self._functions)) if number not in without]
        self._calls = Links(self._programs["on_call"], self._functions, numbers, self._tgid) if numbers else None
        return self._calls.refused if self._calls else []

    def attach_points(self, begin: Sequence[Place], end: Sequence[Place], end_is_return: bool) -> None:
        """Begin and end requests from now on.

        Call it after attach_calls: what is attached last is called first, so a request counts the call that begins it.
        """
        for name, places, at_return in (("on_end", end, end_is_return), ("on_begin", begin, False)):
            for place in places:
                try:
                    self._points.append(
                        kernel_calls.link_uprobes(
                            self._programs[name], place.path, place.offsets, None, self._tgid, at_return
                        )
                    )
                except OSError as error:
                    raise CausalError(
                        f"cannot probe {place.path}: {error.strerror}", "choose another function to begin or to end at"
                    ) from None

        self._set_active(True)

    def stop(self) -> None:
        """No request begins or ends from now on; the probes stay."""
        self._set_active(False)

    def _set_active(self, on: bool) -> None:
        self._bpf["active"][ctypes.c_int(0)] = ctypes.c_uint32(int(on))

    def detach(self) -> None:
        """Remove all probes."""
        self._set_active(False)
        while self._points:
            os.close(self._points.pop())
        if self._calls:
            self._calls.close()
            self._calls = None

    def totals(self) -> NDArray[np.int64]:
        """Calls of each function since attach_calls, in requests or not, (F,)."""
        totals: NDArray[np.int64] = self._totals.astype(np.int64)
        return totals

    def poll(self, timeout_ms: int) -> None:
        """Hand over the requests that have finished, waiting for some at most so long."""
        self._bpf.ring_buffer_poll(timeout_ms)

    def counters(self) -> dict[str, int]:
        """What became of requests, by the names in _REQUEST_COUNTERS."""
        table = self._bpf["counters"]
        return {name: int(table[ctypes.c_int(i)].value) for i, name in enumerate(_REQUEST_COUNTERS)}

    def in_flight(self) -> int:
        """Requests that have begun and not ended."""
        return len(list(self._bpf["running"].items()))

    def _receive(self, context: Any, data: Any, size: int) -> None:
        record = np.frombuffer(ctypes.string_at(data, _REQUEST.itemsize), _REQUEST)[0]
        number = int(record["number"])
        row = self._cells[number % len(self._cells)]
        mine = row["request"] == number & 0xFFFFFFFF
        # A newer request has begun to use the row: some calls may be gone.
        ahead = (row["request"].astype(np.int64) - number) % (1 << 32)
        overwritten = bool(((ahead > 0) & (ahead < 1 << 31)).any())
        calls = None if overwritten else np.where(mine, row["calls"], 0).astype(np.int64)
        self._on_request(record, calls)

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        with captured_output():
            self._bpf.cleanup()
