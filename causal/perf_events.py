"""Sampling ticks: the software event `cpu-clock` on each CPU, with a period and a phase of its own.

bcc's own attach keys events by their kind and loses the first of two, so the descriptors are owned here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

from causal.errors import CausalError

_PERF_EVENT_OPEN = 298  # x86-64
_ATTR_SIZE = 128
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_DISABLED = 1
_FLAG_CLOEXEC = 8
_IOC_ENABLE, _IOC_DISABLE, _IOC_PERIOD, _IOC_SET_BPF = 0x2400, 0x2401, 0x40082404, 0x40042408

_libc = ctypes.CDLL(None, use_errno=True)


class CpuClock:
    """Calls a BPF program on one CPU every `period_ns` of that CPU's clock, also when the CPU is idle."""

    def __init__(self, cpu: int, period_ns: int, program_fd: int) -> None:
        self.cpu = cpu
        self.period_ns = period_ns
        attributes = ctypes.create_string_buffer(_ATTR_SIZE)
        struct.pack_into("=IIQQ", attributes, 0, _TYPE_SOFTWARE, _ATTR_SIZE, _CPU_CLOCK, period_ns)
        struct.pack_into("=Q", attributes, 40, _DISABLED)
        self._fd = _libc.syscall(_PERF_EVENT_OPEN, attributes, -1, cpu, -1, _FLAG_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            raise CausalError(f"cannot sample CPU {cpu}: {os.strerror(code)}", "run `causal-bpf doctor`")
        fcntl.ioctl(self._fd, _IOC_SET_BPF, program_fd)

    def start(self) -> None:
        """Begin a new phase: the first tick comes one period from now."""
        fcntl.ioctl(self._fd, _IOC_ENABLE, 0)

    def set_period(self, period_ns: int) -> None:
        """Tick at this period from now on; `period_ns` as asked for at first stays known."""
        fcntl.ioctl(self._fd, _IOC_PERIOD, struct.pack("=Q", period_ns))

    def stop(self) -> None:
        fcntl.ioctl(self._fd, _IOC_DISABLE, 0)

    def close(self) -> None:
        os.close(self._fd)


def online_cpus(text: str | None = None) -> list[int]:
    """The CPUs of the kernel's list format, as in `0-3,8`; those online when no text is given."""
    if text is None:
        with open("/sys/devices/system/cpu/online") as file:
            text = file.read()
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def spread_periods(period_ns: int, cpus: int) -> list[int]:
    """Odd, mutually different periods near the one asked for, so that cores never sample in lock step."""
    step_ns = max(period_ns * 3 // 100 // cpus, 2) & ~1
    return [(period_ns | 1) + step_ns * i for i in range(cpus)]
