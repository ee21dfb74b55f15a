"""What a visit of a uprobe costs on this machine, measured before the target starts, in this process.

It depends on the machine, above all on whether that is a virtual one, and is many times as much where the kernel cannot
emulate the first instruction, so it cannot be a constant.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from causal.engine import Engine
from causal.errors import CausalError
from causal.loading import BPF_DIRECTORY
from causal.progress import Probe
from causal.symbols.elf import Binary
from causal.tracefs import events_if_readable

LIBRARY = BPF_DIRECTORY / "stub" / "libcausal-probed.so"
_VISITS = {False: 400, True: 100}  # a few ms together
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """`ns` is what a visit costs; `stepped`: the kernel must single-step the instruction, else it emulates it.

    `instead`: a tracepoint that counts the same, "" where there is none.
    """

    ns: int
    stepped: bool
    instead: str = ""


def measure_probe_costs(engine: Engine, kinds: Collection[bool]) -> dict[bool, int]:
    """Nanoseconds that a visit takes with its uprobe, by whether the instruction is stepped; only `kinds` are measured.

    Takes some milliseconds for each. {} where it cannot be done.
    """
    if not kinds:
        return {}
    try:
        library, binary = ctypes.CDLL(str(LIBRARY)), Binary.load(LIBRARY)
    except (OSError, CausalError):
        return {}
    library.causal_time_calls.argtypes = (ctypes.c_int, ctypes.c_long)
    library.causal_time_calls.restype = ctypes.c_long
    offsets = {name: int(binary.functions.start[row]) for name, row in binary.functions.all_names()}
    engine.add_process(os.getpid(), follow=False)
    try:
        return {kind: _measure(engine, library, offsets, kind) for kind in sorted(kinds)}
    except CausalError:  # attaching the real points says what is the matter
        return {}
    finally:
        engine.remove_process(os.getpid())
        engine.reset()


def _measure(engine: Engine, library: ctypes.CDLL, offsets: dict[str, int], stepped: bool) -> int:
    offset = offsets["causal_probed_stepped" if stepped else "causal_probed_emulated"]

    def fastest() -> float:
        times = [int(library.causal_time_calls(int(stepped), _VISITS[stepped])) for _ in range(_ROUNDS)]
        return min(times) / _VISITS[stepped]

    bare = fastest()
    with engine.probes.on_trial(str(LIBRARY), offset):
        return max(round(fastest() - bare), 0)


def cost_of(probes: Iterable[Probe], measured: dict[bool, int]) -> ProbeCost | None:
    """The cost of a point: that of its dearest place. None for points without uprobes, or when nothing was measured."""
    found = [probe for probe in probes if (not probe.cheap) in measured]
    if not found:
        return None
    dearest = max(found, key=lambda probe: measured[not probe.cheap])
    return ProbeCost(measured[not dearest.cheap], not dearest.cheap, _tracepoint_for(dearest))


def _tracepoint_for(probe: Probe) -> str:
    event = f"syscalls:sys_exit_{probe.symbol.strip('_')}"
    is_libc = os.path.basename(probe.path).startswith("libc.so")
    return f"tracepoint:{event}" if is_libc and event in events_if_readable() else ""
