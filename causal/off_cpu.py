"""Waits in the kernel's tables: reading them, and the threads that waited already when we came."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from causal.loading import import_bcc
from causal.waiting import CALL_REGIONS, CLASS_BITS, WaitClass, WaitMode, Waits, class_of_call

_PROC = Path("/proc")
_BPF_NOEXIST = 1
IDLE_NS = 1_000_000_000


def finished_waits(bpf: Any) -> Counter[tuple[int, WaitClass]]:
    """Thread time off the CPU since loading, of waits that are over."""
    found: Counter[tuple[int, WaitClass]] = Counter()
    for key, spent in bpf["waits"].items():
        place, kind = divmod(key.value, 1 << CLASS_BITS)
        found[place, WaitClass(kind)] = int(spent.value)
    return found


def read_waits(bpf: Any) -> Waits:
    """Thread time off the CPU since loading: of waits that are over, and of those that go on so far."""
    found = finished_waits(bpf)
    now_ns = time.monotonic_ns()
    for _, thread in bpf["threads"].items():
        if thread.wait_class:
            found[thread.wait_place, WaitClass(thread.wait_class)] += max(now_ns - thread.wait_ns, 0)
    return found


def waiting_since(bpf: Any, region: int) -> list[int]:
    """When each thread that waits in a region began to, in monotonic ns. Takes long where there are many threads."""
    if not region:
        return []
    return [each.wait_ns for _, each in bpf["threads"].items() if each.waits_in == region]


def count_idle(since: Iterable[int], began_ns: int) -> int:
    """Of threads that wait since then, those that, as a window begins, do so for so long that it is for nothing which
    happens in it."""
    return sum(wait_ns + IDLE_NS < began_ns for wait_ns in since)


def add_blocked(bpf: Any, tgid: int, mode: WaitMode) -> None:
    """Put the threads of a process that wait now into the table of threads.

    What code they are in is not known, only their system call where those are the regions.
    """
    table, now_ns = bpf["threads"], time.monotonic_ns()
    for tid, kind, call in blocked_threads(tgid):
        leaf = table.Leaf()
        leaf.tgid, leaf.block_ns, leaf.wait_ns, leaf.wait_class = tgid, now_ns, now_ns, int(kind)
        leaf.wait_place = call + 1 if call is not None and mode is WaitMode.BY_CALL else 0
        # One that has moved meanwhile is known already, and better.
        import_bcc().lib.bpf_update_elem(
            table.map_fd, ctypes.byref(ctypes.c_uint32(tid)), ctypes.byref(leaf), _BPF_NOEXIST
        )


def blocked_threads(tgid: int, proc: Path = _PROC) -> Iterator[tuple[int, WaitClass, int | None]]:
    """(tid, what it waits for, number of its system call) of those threads of a process that do not run now."""
    tids: list[str] = []
    with contextlib.suppress(OSError):
        tids = os.listdir(proc / str(tgid) / "task")
    for tid in tids:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it may have ended meanwhile
            task = proc / str(tgid) / "task" / tid
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "SDI":
                continue
            call = _call_of(task)
            kind = WaitClass.IO if state == "D" or call is None else class_of_call(call)
            yield int(tid), kind, call


def _call_of(task: Path) -> int | None:
    # A number, -1 outside of system calls (a page fault), or "running".
    word = (task / "syscall").read_text().split()[0]
    return int(word) if word.isdigit() and int(word) < CALL_REGIONS else None
