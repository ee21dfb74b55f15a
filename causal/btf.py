"""Where the running kernel keeps the few fields the engine reads, taken from the kernel's own type information.

bcc cannot relocate field accesses and we ship no kernel headers, so the byte offsets of task fields (the blocked
signals, the handler of one signal, ...) are looked up in `/sys/kernel/btf/vmlinux` and compiled in as constants.
Reading them at the moment of a decision beats following system calls that change them: there is nothing to miss.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path

from causal.errors import CausalError

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_SWITCH_PARAMETERS = 3  # before Linux 5.18: preempted, previous, next

_MAGIC = 0xEB9F
_STRUCT, _UNION = 4, 5
_ENUM, _FUNC_PROTO, _VAR, _DATASEC, _DECL_TAG, _ENUM64, _INT, _ARRAY = 6, 13, 14, 15, 17, 19, 1, 3
# Bytes that follow the 12-byte type header: (fixed, per element), by kind; kinds not listed have none.
_TRAILER = {
    _INT: (4, 0), _ARRAY: (12, 0), _STRUCT: (0, 12), _UNION: (0, 12), _ENUM: (0, 8),
    _FUNC_PROTO: (0, 8), _VAR: (4, 0), _DATASEC: (0, 12), _DECL_TAG: (4, 0), _ENUM64: (0, 12),
}  # fmt: skip
_TYPEDEF = 8
_POINTER_LIKE = {_TYPEDEF, 9, 10, 11, 18}  # typedef, volatile, const, restrict, type tag
_TRACEPOINT = "btf_trace_"  # what the type of a tracepoint's functions is called


class TypeInfo:
    """Struct layouts of one BTF blob. Offsets and sizes are in bytes."""

    def __init__(self, blob: bytes) -> None:
        magic, _, _, header_len, type_off, type_len, str_off, str_len = struct.unpack_from("<HBBIIIII", blob)
        if magic != _MAGIC:
            raise ValueError("not BTF")
        self._blob = blob
        self._strings = blob[header_len + str_off : header_len + str_off + str_len]
        self._starts = self._index(header_len + type_off, header_len + type_off + type_len)
        self._structs: dict[str, int] | None = None

    def _index(self, at: int, end: int) -> list[int]:
        starts = [0]
        unpack, blob = struct.Struct("<II").unpack_from, self._blob
        while at < end:
            starts.append(at)
            info = unpack(blob, at)[1]
            fixed, each = _TRAILER.get((info >> 24) & 0x1F, (0, 0))
            at += 12 + fixed + each * (info & 0xFFFF)
        return starts

    def _type(self, type_id: int) -> tuple[int, int, int, int]:
        """Name offset, kind, number of elements, size or referenced type."""
        name, info, size = struct.unpack_from("<III", self._blob, self._starts[type_id])
        return name, (info >> 24) & 0x1F, info & 0xFFFF, size

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _find(self, name: str) -> int:
        if self._structs is None:
            self._structs = {}
            for type_id in range(1, len(self._starts)):
                name_off, kind, elements, _ = self._type(type_id)
                if kind == _STRUCT and elements and name_off:
                    self._structs.setdefault(self._name(name_off), type_id)
        return self._structs[name]

    def has_tracepoint(self, name: str) -> bool:
        """Whether the kernel has a tracepoint of this name (without its category)."""
        return f"\0{_TRACEPOINT}{name}\0".encode() in self._strings

    def tracepoint_parameters(self, name: str) -> int:
        """How many values a raw tracepoint hands over. Raises KeyError when there is no such tracepoint."""
        wanted = f"{_TRACEPOINT}{name}"
        for type_id in range(1, len(self._starts)):
            name_off, kind, _, refers_to = self._type(type_id)
            if kind == _TYPEDEF and name_off and self._name(name_off) == wanted:
                pointer = self._type(self._strip(refers_to))
                return self._type(self._strip(pointer[3]))[2] - 1  # the first is the kernel's own
        raise KeyError(name)

    def _strip(self, type_id: int) -> int:
        while self._type(type_id)[1] in _POINTER_LIKE:
            type_id = self._type(type_id)[3]
        return type_id

    def _member(self, type_id: int, field: str) -> tuple[int, int] | None:
        """Byte offset and type of a member, looking through anonymous structs and unions."""
        _, kind, elements, _ = self._type(type_id)
        if kind not in (_STRUCT, _UNION):
            return None
        kind_flag = struct.unpack_from("<I", self._blob, self._starts[type_id] + 4)[0] >> 31
        for i in range(elements):
            name, of, offset = struct.unpack_from("<III", self._blob, self._starts[type_id] + 12 + 12 * i)
            bits = offset & 0xFFFFFF if kind_flag else offset
            if name and self._name(name) == field:
                return bits // 8, of
            if not name and (inner := self._member(self._strip(of), field)):
                return bits // 8 + inner[0], inner[1]
        return None

    def offset(self, struct_name: str, path: str) -> int:
        """Byte offset of a member such as `seccomp.mode`. Raises KeyError when it does not exist."""
        type_id, total = self._find(struct_name), 0
        for field in path.split("."):
            found = self._member(self._strip(type_id), field)
            if found is None:
                raise KeyError(f"{struct_name}.{path}")
            total, type_id = total + found[0], found[1]
        return total

    def size(self, struct_name: str) -> int:
        return self._type(self._find(struct_name))[3]


@functools.cache
def kernel_types(path: Path = VMLINUX) -> TypeInfo:
    """The running kernel's. Raises CausalError when there are none."""
    try:
        return TypeInfo(path.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise CausalError(
            f"cannot read the kernel's type information ({path}: {error})",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y; all current distribution kernels are",
        ) from None


def task_offsets(path: Path = VMLINUX) -> dict[str, int]:
    """Constants for the engine: macro name -> byte offset in `task_struct` (or the structure it names).

    SWITCH_HAS_STATE is there when sched_switch hands over the state. Raises CausalError when the kernel has no type
    information or lacks a field.
    """
    info = kernel_types(path)
    wanted = {
        "TASK_BLOCKED": ("task_struct", "blocked"),
        "TASK_SIGHAND": ("task_struct", "sighand"),
        "TASK_ALT_SP": ("task_struct", "sas_ss_sp"),
        "TASK_ALT_SIZE": ("task_struct", "sas_ss_size"),
        "TASK_VFORK_DONE": ("task_struct", "vfork_done"),
        "TASK_SECCOMP": ("task_struct", "seccomp.mode"),
        "TASK_FLAGS": ("task_struct", "flags"),
        "TASK_PID": ("task_struct", "pid"),
        "TASK_EXIT_STATE": ("task_struct", "exit_state"),
        "TASK_CPUS_ALLOWED": ("task_struct", "nr_cpus_allowed"),
        "SIGHAND_ACTION": ("sighand_struct", "action"),
        "ACTION_HANDLER": ("k_sigaction", "sa.sa_handler"),
        "TASK_THREAD_PID": ("task_struct", "thread_pid"),
        "PID_LEVEL": ("pid", "level"),
        "PID_NUMBERS": ("pid", "numbers"),
        "UPID_NR": ("upid", "nr"),
    }
    offsets = {}
    for macro, (name, field) in wanted.items():
        try:
            offsets[macro] = info.offset(name, field)
        except KeyError:
            # seccomp may be configured out; everything else is needed.
            if macro != "TASK_SECCOMP":
                raise CausalError(f"this kernel has no {name}.{field}", "please report the kernel version") from None
    try:
        if info.tracepoint_parameters("sched_switch") > _SWITCH_PARAMETERS:
            offsets["SWITCH_HAS_STATE"] = 1
        else:
            offsets["TASK_STATE"] = info.offset("task_struct", "__state")
    except KeyError:
        raise CausalError("this kernel does not show why a thread stops running", "please report its version") from None
    offsets["ACTION_SIZE"] = info.size("k_sigaction")
    offsets["UPID_SIZE"] = info.size("upid")
    return offsets
