"""Counts the calls of thousands of functions in chosen processes: `bpf/calls.bpf.c` as a Python object.

Beside causal/engine.py the only module that imports bcc.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal import kernel_calls
from causal.engine import BPF_DIRECTORY, captured_output, map_array
from causal.errors import CausalError
from causal.tracing.functions import Function

MAX_TRACED = 65_536
# What the kernel says of places where it cannot put a probe.
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EILSEQ, 524)


def possible_cpus() -> int:
    """One more than the highest number a CPU of this machine can have."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").split("-")[-1]) + 1


def read_source(*names: str) -> str:
    """The text of a BPF program in several files; bcc wants all of it in one."""
    return "\n".join((BPF_DIRECTORY / name).read_text() for name in names)


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
        defines = {"FUNCTIONS": len(functions), "CALL_SLOTS": slots, "MAX_TRACED": MAX_TRACED}
        self._bpf = compile_program(read_source("traced.h", "calls.bpf.c"), defines)
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
