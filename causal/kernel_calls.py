"""The few raw system calls that Python has no name for: bpf(), perf_event_open(), mount().

Thin and typed, so that `capabilities` can try things without bcc. All raise OSError with the kernel's reason.
Layouts: `union bpf_attr` and `struct perf_event_attr` of the kernel's user-space interface.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS = 0, 0, 1
PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_TASK_CLOCK = 1, 0, 1
BPF_F_MMAPABLE = 1 << 10
PROG_TYPE_KPROBE, PROG_TYPE_PERF_EVENT = 2, 7
TRACE_UPROBE_MULTI = 48  # BPF_TRACE_UPROBE_MULTI
HELPER_SEND_SIGNAL_THREAD = 117
HELPER_GET_CURRENT_TASK_BTF = 158
HELPER_TASK_PT_REGS = 175

_NUMBERS = {"x86_64": {"bpf": 321, "perf_event_open": 298}, "aarch64": {"bpf": 280, "perf_event_open": 241}}
_CAPABILITY_BITS = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER = 47, 3
_MAP_CREATE, _PROG_LOAD, _LINK_CREATE = 0, 5, 28
_MAP_TYPE_ARRAY = 2
_ATTR_SIZE = 128
_PERF_FLAG_FD_CLOEXEC = 8
# Bits of struct perf_event_attr.
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _ENABLE_ON_EXEC = 1 << 0, 1 << 1, 1 << 5, 1 << 6, 1 << 12
_FORMAT_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _syscall(name: str, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    """Call by number; integers are passed as 64-bit values. Returns the result, raises OSError."""
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise OSError(38, f"no number for {name} on {platform.machine()}")
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    return _syscall("bpf", command, attributes, len(attributes))


def create_array_map(value_size: int, flags: int = 0) -> int:
    """A BPF array of one value of `value_size` bytes; returns its file descriptor."""
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into("=5I", attributes, 0, _MAP_TYPE_ARRAY, 4, value_size, 1, flags)
    return _bpf(_MAP_CREATE, attributes)


def set_register(register: int, value: int) -> bytes:
    """The BPF instruction that sets a register to a 32-bit constant."""
    return struct.pack("=BBhi", 0xB7, register, 0, value)


def copy_register(to: int, source: int) -> bytes:
    """The BPF instruction that copies one register to another."""
    return struct.pack("=BBhi", 0xBF, to | source << 4, 0, 0)


def call(helper: int) -> bytes:
    """The BPF instruction that calls the helper of that number."""
    return struct.pack("=BBhi", 0x85, 0, 0, helper)


def load_program(program_type: int, body: Iterable[bytes] = (), attach_type: int = 0) -> int:
    """Load `body` followed by `return 0` as a BPF program; returns its file descriptor."""
    leave = struct.pack("=BBhi", 0x95, 0, 0, 0)
    instructions = b"".join([*body, set_register(0, 0), leave])
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into(
        "=IIQQ", attributes, 0, program_type, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(licence)
    )
    struct.pack_into("=I", attributes, 68, attach_type)
    return _bpf(_PROG_LOAD, attributes)


def link_uprobes(
    program: int,
    path: str,
    file_offsets: Sequence[int],
    cookies: Sequence[int] | None = None,
    tgid: int = 0,
    at_return: bool = False,
    semaphores: Sequence[int] | None = None,
) -> int:
    """Attach a program to many places of a file with one link, whose descriptor is returned; closing it detaches.

    The program reads the cookie of the place, which is its index unless `cookies` are given. With a `tgid` only that
    process gets the probes; `at_return`: where the functions that begin at the places return. `semaphores`: file
    offsets of 16-bit counters that the kernel keeps above 0 as long as the probe is there, 0 for none.
    """
    count = len(file_offsets)
    name = ctypes.create_string_buffer(os.fsencode(path))
    offsets = (ctypes.c_uint64 * count)(*file_offsets)
    numbers = (ctypes.c_uint64 * count)(*(range(count) if cookies is None else cookies))
    counters = (ctypes.c_uint64 * count)(*(semaphores or ()))
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into("=4I", attributes, 0, program, 0, TRACE_UPROBE_MULTI, 0)
    switches = ctypes.addressof(counters) if semaphores else 0
    addresses = (ctypes.addressof(name), ctypes.addressof(offsets), switches, ctypes.addressof(numbers))
    struct.pack_into("=4Q3I", attributes, 16, *addresses, count, int(at_return), tgid)
    return _bpf(_LINK_CREATE, attributes)


def create_uprobe_multi_link(path: str) -> None:
    """Try to attach a program that does nothing at offset 0 of `path` with one uprobe_multi link; detaches at once."""
    program = load_program(PROG_TYPE_KPROBE, attach_type=TRACE_UPROBE_MULTI)
    try:
        os.close(link_uprobes(program, path, [0]))
    finally:
        os.close(program)


def open_perf_event(event_type: int, config: int, path: str | None = None) -> int:
    """Open one event on the first CPU we may use, for all its threads; returns its file descriptor.

    With `path`, event_type is that of the uprobe PMU and the event a uprobe at offset 0 of the file.
    """
    name = ctypes.create_string_buffer(os.fsencode(path or ""))
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into("=IIQ", attributes, 0, event_type, _ATTR_SIZE, config)
    if path is not None:
        struct.pack_into("=QQ", attributes, 56, ctypes.addressof(name), 0)  # config1: the path, config2: the offset
    else:
        struct.pack_into("=Q", attributes, 16, 1_000_003)  # sample period; the event starts disabled:
        struct.pack_into("=Q", attributes, 40, 1)
    cpu = min(os.sched_getaffinity(0))
    return _syscall("perf_event_open", attributes, -1, cpu, -1, _PERF_FLAG_FD_CLOEXEC)


def open_counter(event_type: int, config: int, pid: int) -> int:
    """Count an event in a process, its threads and children, from its next exec on; a descriptor.

    Events of the CPU count in user mode only, times in the kernel, too.
    """
    attributes = ctypes.create_string_buffer(_ATTR_SIZE)
    struct.pack_into("=IIQ", attributes, 0, event_type, _ATTR_SIZE, config)
    struct.pack_into("=Q", attributes, 32, _FORMAT_TIMES)
    flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV | _ENABLE_ON_EXEC
    struct.pack_into("=Q", attributes, 40, flags)
    return _syscall("perf_event_open", attributes, pid, -1, -1, _PERF_FLAG_FD_CLOEXEC)


def read_counter(descriptor: int) -> tuple[int, int, int]:
    """What was counted, in how many ns, and in how many of these the CPU's counter was ours."""
    value, enabled_ns, running_ns = struct.unpack("=3Q", os.read(descriptor, 24))
    return value, enabled_ns, running_ns


def mount(source: str, target: Path, kind: str) -> None:
    """Mount a file system of that kind; raises OSError."""
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(0), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))


def lower_ambient_capabilities() -> None:
    """Keep what is executed from here on from having the capabilities that profiling needs."""
    for bit in _CAPABILITY_BITS.values():
        words = (_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, bit, 0, 0)
        _libc.prctl(*map(ctypes.c_ulong, words))


def effective_capabilities() -> frozenset[str]:
    """Those of CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF that this process holds now."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("CapEff:"))
    mask = int(line.split()[1], 16)
    return frozenset(name for name, bit in _CAPABILITY_BITS.items() if mask >> bit & 1)
