"""Counts the calls of thousands of functions in chosen processes: `bpf/calls.bpf.c` as a Python object."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import kernel_calls
from causal.btf import task_offsets
from causal.drt.traces import FIRST_THREAD
from causal.errors import CausalError
from causal.loading import BPF_DIRECTORY, captured_output, import_bcc, map_array, refusals
from causal.tracing.functions import Function

MAX_TRACED = 65_536
_TRACED, _TRACED_FROM_EXEC = 1, 2  # as in bpf/traced.h
# Cells of calls by thread and function, and the bounds of the rows (threads) that they are shared out to.
_MAX_CELLS, _LEAST_ROWS, _MOST_ROWS = 1 << 22, 64, 4096
_SHARED_ROW = 0
FURTHER_THREADS = "[further threads]"
# As struct row_owner in bpf/calls.bpf.c.
_OWNER = np.dtype([("tid", "<u4"), ("name", "S16"), ("unused", "<u4")])
# What the kernel says of places where it cannot put a probe.
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EILSEQ, 524)


def read_source(*names: str) -> str:
    """The text of a BPF program in several files; bcc wants all of it in one."""
    return "\n".join((BPF_DIRECTORY / name).read_text() for name in names)


def compile_program(source: str, defines: dict[str, int]) -> Any:
    """Load a BPF program through bcc; raises CausalError with the kernel's words."""
    bcc = import_bcc()
    values = {"LINUX_VERSION_CODE": 0, **task_offsets(), **defines}
    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in values.items())]
    with refusals("to trace calls"):
        return bcc.BPF(text=source, cflags=flags)


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


@dataclass(frozen=True)
class ThreadCalls:
    """Calls of each function, (F,), by the `threads` that have one name (0: nobody knows how many)."""

    threads: int
    calls: NDArray[np.int64]


def follow(bpf: Any, tgid: int, from_exec: bool) -> None:
    """Trace one process and its children, and no other; `from_exec`: when it has executed its command."""
    table = bpf["traced"]
    table.clear()
    table[ctypes.c_uint32(tgid)] = ctypes.c_uint32(_TRACED_FROM_EXEC if from_exec else _TRACED)


class CallCounts:
    """Counts calls of `functions` by the processes given to `trace` and by their children; close() ends it.

    `rows` is one more than the threads that are told apart. Nothing is probed until `attach`. Raises CausalError when
    the kernel refuses.
    """

    def __init__(self, functions: Sequence[Function], rows: int | None = None) -> None:
        self._functions = functions
        rows = rows or min(max(_MAX_CELLS // len(functions), _LEAST_ROWS), _MOST_ROWS)
        cells = rows * len(functions)
        defines = {"FUNCTIONS": len(functions), "ROWS": rows, "CALL_CELLS": cells, "MAX_TRACED": MAX_TRACED}
        source = read_source("events.h", "traced.h", "calls.bpf.c")
        self._bpf = compile_program("#define THREAD_ENDS leave_row\n" + source, defines)
        self._maps: list[mmap.mmap] = []
        self._calls = map_array(self._bpf, "calls", np.dtype("<u8"), cells, self._maps).reshape(rows, -1)
        self._owners = map_array(self._bpf, "owners", _OWNER, rows, self._maps)
        self._tgid = 0
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
        """Forget all processes and counts, and count for this process, once it executes, and its future children."""
        self._bpf["rows"].clear()
        used = self._used()
        self._calls[used] = 0
        self._owners[used] = 0
        self._bpf["next_row"][ctypes.c_int(0)] = ctypes.c_uint64(_SHARED_ROW + 1)
        self._tgid = tgid
        follow(self._bpf, tgid, from_exec=True)

    def _used(self) -> slice:
        return slice(0, min(int(self._bpf["next_row"][ctypes.c_int(0)].value), len(self._calls)) or 1)

    def counts(self) -> NDArray[np.int64]:
        """Calls of each function since `trace`, (F,)."""
        totals: NDArray[np.int64] = self._calls[self._used()].sum(axis=0).astype(np.int64)
        return totals

    def by_thread(self) -> dict[str, ThreadCalls]:
        """The same by the names of the threads, once they have ended; the first one is called FIRST_THREAD."""
        found: dict[str, ThreadCalls] = {}
        for row, (calls, owner) in enumerate(zip(self._calls[self._used()], self._owners, strict=False)):
            if not calls.any():
                continue
            name = FURTHER_THREADS if row == _SHARED_ROW else owner["name"].decode(errors="replace") or "[unnamed]"
            if owner["tid"] == self._tgid:
                name = FIRST_THREAD
            before = found.get(name, ThreadCalls(0, np.zeros(len(calls), dtype=np.int64)))
            found[name] = ThreadCalls(before.threads + (row != _SHARED_ROW), before.calls + calls.astype(np.int64))
        return found

    @property
    def untraced(self) -> int:
        """Child processes that were not counted because the table was full."""
        return int(self._bpf["untraced"][ctypes.c_int(0)].value)

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        with captured_output():
            self._bpf.cleanup()
