"""Counts the calls of a few functions by their callers: `bpf/callers.bpf.c` as a Python object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from causal import kernel_calls
from causal.loading import captured_output
from causal.tracing.functions import Function
from causal.tracing.probes import MAX_TRACED, Links, compile_program, follow, read_source

# Calls of each function whose stack is walked, per run or second; all others are counted by caller alone.
STACKS = 2_000
_CHAINS = 32_768
_DEPTH = 16
# As struct chain in bpf/callers.bpf.c.
_CHAIN = np.dtype([("function", "<u4"), ("walked", "<u4"), ("ip", "<u8"), ("caller", "<u8"), ("ips", "<u8", (_DEPTH,))])


@dataclass(frozen=True)
class Chain:
    """`count` calls of one function from one place.

    Addresses are those of the process: `ip` where the function starts, `callers` the return addresses from its caller
    upwards; unless `walked` there is only the first.
    """

    function: int
    ip: int
    callers: tuple[int, ...]
    walked: bool
    count: int


class CallerCounts:
    """Counts for the processes given to `trace` and their children. Raises CausalError when the kernel refuses."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions
        defines = {"FUNCTIONS": len(functions), "STACKS": STACKS, "CHAINS": _CHAINS, "MAX_TRACED": MAX_TRACED}
        self._bpf = compile_program(read_source("events.h", "traced.h", "callers.bpf.c"), defines)
        with captured_output():
            attach_type = kernel_calls.TRACE_UPROBE_MULTI
            self._program = self._bpf.load_func("on_call", self._bpf.KPROBE, attach_type=attach_type)
        self._links: Links | None = None

    def __enter__(self) -> CallerCounts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach(self) -> list[int]:
        """Probe all functions; returns the numbers of those that cannot be probed."""
        self._links = Links(self._program.fd, self._functions, range(len(self._functions)))
        return self._links.refused

    def trace(self, tgid: int, from_exec: bool = False) -> None:
        """Count for this process (`from_exec`: once it executes its command) and its children, and for no other."""
        follow(self._bpf, tgid, from_exec)

    def detach(self) -> None:
        """Remove all probes; the counts stay."""
        if self._links:
            self._links.close()
            self._links = None

    def walk_again(self) -> None:
        """Walk the stacks of the next STACKS calls of each function."""
        self._bpf["walks"].clear()

    def take(self) -> list[Chain]:
        """What was counted since the last time, and begin anew; calls that happen meanwhile would be lost."""
        table = self._bpf["chains"]
        result = []
        for key, value in table.items():
            row = np.frombuffer(bytes(key), _CHAIN)[0]
            ips = [int(each) for each in row["ips"] if each][1:]
            caller = int(row["caller"])
            # From kernels 6.12 on the walk knows that a function has just been entered, where it begins with a push.
            above = ips[1:] if ips and ips[0] == caller else ips
            result.append(
                Chain(int(row["function"]), int(row["ip"]), (caller, *above), bool(row["walked"]), int(value.value))
            )
        table.clear()
        self.walk_again()
        return result

    def lost(self) -> int:
        """Calls that were not counted because there was no room for their chain."""
        return sum(int(value.value) for value in self._bpf["lost"].values())

    def close(self) -> None:
        """Detach and unload."""
        self.detach()
        with captured_output():
            self._bpf.cleanup()
