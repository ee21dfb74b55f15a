"""Follows the requests of one process: `bpf/requests.bpf.c` as a Python object."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import kernel_calls
from causal.errors import CausalError
from causal.loading import captured_output, map_array
from causal.tracing.functions import Function
from causal.tracing.points import MAX_VALUES, Place, Reading, key_cookies
from causal.tracing.probes import Links, compile_program, read_source

_REQUEST_COUNTERS = ("begun", "finished", "nested", "unended", "no_room", "lost", "stray_ends")
# A number of 64 bits in bpf/requests.bpf.c.
_CELL = np.dtype([("calls", "<u4"), ("request", "<u4")])
# As struct request in bpf/requests.bpf.c.
_REQUEST = np.dtype(
    [("number", "<u8"), ("begin_ns", "<u8"), ("end_ns", "<u8"), ("waited_ns", "<u8"), ("left_ns", "<u8"),
     ("sp", "<u8"), ("values", "<u8", (MAX_VALUES,)), ("worked_ns", "<u8"), ("depth", "<u4"), ("known", "<u4")]
)  # fmt: skip
_MAX_CELLS = 1 << 24
_MAX_ROWS = 4096
_RING_PAGES = 64


class RequestProbes:
    """`on_request` gets each finished request and its calls.

    A request is a record of _REQUEST: number, begin_ns, end_ns, waited_ns, worked_ns (where `key` is given), values,
    known. Calls are (F,), or None where they were overwritten before they were read. `key` is the argument by which
    requests are told apart, None: by their threads. Raises CausalError.
    """

    def __init__(
        self,
        tgid: int,
        functions: Sequence[Function],
        readings: Sequence[Reading],
        key: str | None,
        on_request: Callable[[Any, NDArray[np.int64] | None], None],
    ) -> None:
        self._tgid = tgid
        self._functions = functions
        self._readings = readings
        self._key = key
        self._on_request = on_request
        rows = _MAX_ROWS
        while rows > 64 and rows * len(functions) > _MAX_CELLS:
            rows //= 2
        self._bpf = compile_program(
            request_source(readings),
            {"FUNCTIONS": len(functions), "ROWS": rows, "VALUES": MAX_VALUES, "MAX_REQUESTS": 65_536,
             "RING_PAGES": _RING_PAGES, "PAGE_SIZE": mmap.PAGESIZE, "TARGET": tgid, "KEYED": int(key is not None)},
        )  # fmt: skip
        self._maps: list[mmap.mmap] = []
        cells = map_array(self._bpf, "cells", _CELL, rows * len(functions), self._maps)
        self._cells = cells.reshape(rows, len(functions))
        self._totals = map_array(self._bpf, "totals", np.dtype("<u8"), len(functions), self._maps)
        names = ["on_call", "on_begin", "on_part", "on_leave", "on_end"]
        names += [f"on_value_{i}" for i, each in enumerate(readings) if each.places]
        with captured_output():
            attach_type = kernel_calls.TRACE_UPROBE_MULTI
            self._programs = {
                name: self._bpf.load_func(name, self._bpf.KPROBE, attach_type=attach_type).fd for name in names
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

    def attach_points(
        self, begin: Sequence[Place], end: Sequence[Place], end_is_return: bool, parts: Sequence[Place] = ()
    ) -> None:
        """Begin and end requests from now on; `parts` are further functions that work on a request, where keyed.

        Call it after attach_calls: what is attached last is called first, so a request counts the call that begins it.
        """
        self._attach("on_end", end, end_is_return)
        for number, each in enumerate(self._readings):
            self._attach(f"on_value_{number}", each.places, keyed=False)
        if self._key is not None:
            self._attach("on_leave", [*parts, *begin], at_return=True, keyed=False)
            self._attach("on_part", parts)
        self._attach("on_begin", begin)
        self._set_active(True)

    def _attach(self, program: str, places: Sequence[Place], at_return: bool = False, keyed: bool = True) -> None:
        for place in places:
            cookies = key_cookies(self._key, place) if keyed and self._key is not None else None
            try:
                link = kernel_calls.link_uprobes(
                    self._programs[program], place.path, place.offsets, cookies, self._tgid, at_return
                )
            except OSError as error:
                raise CausalError(
                    f"cannot probe {place.path}: {error.strerror}", "choose another function to begin or to end at"
                ) from None
            self._points.append(link)

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


def request_source(readings: Sequence[Reading]) -> str:
    """The BPF program with the lines that read these values filled in."""
    reads, programs = [], []
    for number, each in enumerate(readings):
        at = each.register
        words = (number, at.position, int(at.offset is not None), at.offset or 0, at.shift, at.unused_bits,
                 int(at.signed), int(at.is_text))  # fmt: skip
        call = f"read_value(ctx, r, {', '.join(map(str, words))});"
        if each.places:
            programs.append(
                f"int on_value_{number}(struct pt_regs *ctx)\n{{\n\tstruct request *r;\n\n"
                "\tif (!is_target() || !is_active())\n\t\treturn 0;\n\tr = current_request();\n"
                f"\tif (r && !(r->known & {1 << number}))\n\t\t{call}\n\treturn 0;\n}}"
            )
        else:
            reads.append("\t" + call)
    lines = {"\tREAD_VALUES": "\n".join(reads), "VALUE_PROGRAMS": "\n".join(programs)}
    return "\n".join(lines.get(line, line) for line in read_source("events.h", "requests.bpf.c").split("\n"))
