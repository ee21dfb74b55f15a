"""Kernel type information: layouts read from a blob that is built here, byte by byte."""

import struct

import pytest

from causal.btf import TypeInfo, task_offsets
from causal.errors import CausalError

# Kinds of the BTF format (the kernel's Documentation/bpf/btf.rst).
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST = range(1, 11)
FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(12, 20)


class Btf:
    """A blob under construction; methods that add a type return its id."""

    def __init__(self):
        self._types = b""
        self._strings = b"\0"
        self._count = 0

    def add(self, kind, name="", size=0, elements=0, trailer=b"", flag=False):
        info = kind << 24 | elements | flag << 31
        self._types += struct.pack("<III", self._string(name), info, size) + trailer
        self._count += 1
        return self._count

    def integer(self, name="int", size=4):
        return self.add(INT, name, size, trailer=struct.pack("<I", size * 8))

    def record(self, name, size, *members, kind=STRUCT, bitfields=False):
        """`members`: (name, type, offset in bits), with bitfields also their width."""
        trailer = b""
        for member, of, bits, *width in members:
            trailer += struct.pack("<III", self._string(member), of, bits | (width[0] if width else 0) << 24)
        return self.add(kind, name, size, len(members), trailer, flag=bitfields)

    def _string(self, text):
        if not text:
            return 0
        at = len(self._strings)
        self._strings += text.encode() + b"\0"
        return at

    def build(self, extra_header=0):
        header_len = 24 + extra_header
        types, strings = len(self._types), len(self._strings)
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, header_len, 0, types, types, strings)
        return header + bytes(extra_header) + self._types + self._strings


def test_offsets_of_plain_members():
    btf = Btf()
    number = btf.integer()
    btf.record("point", 12, ("x", number, 0), ("y", number, 32), ("z", number, 64))
    info = TypeInfo(btf.build())
    assert [info.offset("point", name) for name in "xyz"] == [0, 4, 8]
    assert info.size("point") == 12


def test_a_longer_header_moves_everything():
    btf = Btf()
    btf.record("point", 8, ("x", btf.integer(), 32))
    assert TypeInfo(btf.build(extra_header=8)).offset("point", "x") == 4


def test_members_of_members_and_of_what_they_are_called():
    btf = Btf()
    number = btf.integer()
    inner = btf.record("inner", 8, ("a", number, 0), ("b", number, 32))
    wrapped = btf.add(CONST, size=btf.add(TYPEDEF, "inner_t", inner))
    btf.record("outer", 24, ("pad", number, 0), ("in", wrapped, 128))
    assert TypeInfo(btf.build()).offset("outer", "in.b") == 20


def test_nameless_structures_and_unions_are_looked_through():
    btf = Btf()
    number = btf.integer()
    deep = btf.record("", 8, ("c", number, 0), ("d", number, 32))
    choice = btf.record("", 8, ("whole", number, 0), ("", deep, 0), kind=UNION)
    btf.record("outer", 16, ("a", number, 0), ("", choice, 64), ("last", number, 32))
    info = TypeInfo(btf.build())
    assert info.offset("outer", "d") == 12
    assert info.offset("outer", "whole") == 8
    assert info.offset("outer", "last") == 4


def test_with_bit_fields_the_width_is_not_part_of_the_offset():
    btf = Btf()
    number = btf.integer()
    btf.record("flags", 8, ("few", number, 0, 3), ("rest", number, 3, 29), ("next", number, 32, 0), bitfields=True)
    info = TypeInfo(btf.build())
    assert info.offset("flags", "rest") == 0
    assert info.offset("flags", "next") == 4


def test_every_kind_of_type_is_stepped_over():
    btf = Btf()
    number = btf.integer()
    btf.add(PTR, size=number)
    btf.add(ARRAY, trailer=struct.pack("<III", number, number, 4))
    btf.add(ENUM, "colour", 4, 2, struct.pack("<IiIi", 0, 0, 0, 1))
    btf.add(FWD, "later")
    btf.add(VOLATILE, size=number)
    prototype = btf.add(FUNC_PROTO, size=number, elements=2, trailer=struct.pack("<IIII", 0, number, 0, number))
    btf.add(FUNC, "function", prototype)
    variable = btf.add(VAR, "variable", number, trailer=struct.pack("<I", 1))
    btf.add(DATASEC, ".data", 4, 1, struct.pack("<III", variable, 0, 4))
    btf.add(FLOAT, "double", 8)
    btf.add(DECL_TAG, "tag", number, trailer=struct.pack("<i", -1))
    btf.add(TYPE_TAG, "user", number)
    btf.add(ENUM64, "wide", 8, 1, struct.pack("<III", 0, 1, 0))
    btf.record("last", 16, ("member", number, 64))
    assert TypeInfo(btf.build()).offset("last", "member") == 8


def test_the_definition_counts_and_not_what_has_only_the_name():
    btf = Btf()
    number = btf.integer()
    btf.add(FWD, "thing")
    btf.add(TYPEDEF, "thing", number)
    btf.record("thing", 0)
    btf.record("thing", 8, ("real", number, 32))
    assert TypeInfo(btf.build()).offset("thing", "real") == 4


@pytest.mark.parametrize(("struct_name", "path"), [("point", "w"), ("point", "x.y"), ("circle", "x")])
def test_what_does_not_exist(struct_name, path):
    btf = Btf()
    btf.record("point", 4, ("x", btf.integer(), 0))
    with pytest.raises(KeyError):
        TypeInfo(btf.build()).offset(struct_name, path)


def test_tracepoints_and_what_they_hand_over():
    btf = Btf()
    btf.add(TYPEDEF, "btf_trace_other", btf.add(PTR, size=btf.integer()))
    number = btf.integer()
    add_tracepoint(btf, "sched_waking", number)
    add_tracepoint(btf, "sched_switch", number, number, number)
    info = TypeInfo(btf.build())
    assert info.has_tracepoint("sched_switch") and not info.has_tracepoint("sched_swit")
    assert [info.tracepoint_parameters(name) for name in ("sched_waking", "sched_switch")] == [1, 3]
    with pytest.raises(KeyError):
        info.tracepoint_parameters("nothing")


def add_tracepoint(btf, name, *parameters):
    trailer = b"".join(struct.pack("<II", 0, of) for of in (btf.add(PTR), *parameters))  # the first is void *
    prototype = btf.add(FUNC_PROTO, elements=1 + len(parameters), trailer=trailer)
    btf.add(TYPEDEF, f"btf_trace_{name}", btf.add(PTR, size=prototype))


def kernel(seccomp=True, blocked=True, parameters=4):
    """The structures the engine asks for, at offsets that tell them apart."""
    btf = Btf()
    number = btf.integer("unsigned long", 8)
    mode = btf.record("seccomp", 8, ("mode", number, 0))
    members = [("pad", number, 0), ("sighand", number, 64), ("sas_ss_sp", number, 192), ("sas_ss_size", number, 256)]
    members += [("vfork_done", number, 320), ("flags", number, 384), ("nr_cpus_allowed", number, 448)]
    members += [("thread_pid", number, 576), ("pid", number, 640), ("exit_state", number, 672)]
    members.append(("__state", number, 704))
    if blocked:
        members.append(("blocked", number, 128))
    if seccomp:
        members.append(("seccomp", mode, 512))
    btf.record("task_struct", 128, *members)
    action = btf.record("sigaction", 32, ("sa_flags", number, 64), ("sa_handler", number, 0))
    btf.record("k_sigaction", 40, ("sa", action, 64))
    upid = btf.record("upid", 16, ("nr", number, 0), ("ns", number, 64))
    btf.record("pid", 112, ("level", number, 32), ("numbers", upid, 768))
    btf.record("sighand_struct", 2080, ("lock", number, 0), ("action", number, 128))
    add_tracepoint(btf, "sched_switch", *[number] * parameters)
    return btf.build()


def test_constants_for_the_engine(tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(kernel())
    offsets = task_offsets(path)
    assert offsets["TASK_SIGHAND"] == 8
    assert offsets["TASK_BLOCKED"] == 16
    assert offsets["TASK_SECCOMP"] == 64
    assert offsets["SIGHAND_ACTION"] == 16
    assert offsets["ACTION_HANDLER"] == 8
    assert offsets["ACTION_SIZE"] == 40
    assert (offsets["TASK_THREAD_PID"], offsets["PID_LEVEL"], offsets["PID_NUMBERS"]) == (72, 4, 96)
    assert (offsets["UPID_NR"], offsets["UPID_SIZE"]) == (0, 16)
    assert (offsets["TASK_PID"], offsets["TASK_EXIT_STATE"]) == (80, 84)
    assert offsets["SWITCH_HAS_STATE"] == 1 and "TASK_STATE" not in offsets


def test_an_older_kernel_keeps_the_state_to_itself(tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(kernel(parameters=3))
    offsets = task_offsets(path)
    assert offsets["TASK_STATE"] == 88 and "SWITCH_HAS_STATE" not in offsets


def test_a_kernel_without_seccomp_has_no_constant_for_it(tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(kernel(seccomp=False))
    assert "TASK_SECCOMP" not in task_offsets(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read the kernel's type information"),
        (b"", "cannot read the kernel's type information"),
        (b"\x7fELF" + bytes(60), "not BTF"),
        (kernel(blocked=False), "no task_struct.blocked"),
    ],
)
def test_a_kernel_that_cannot_be_used(tmp_path, content, complaint):
    path = tmp_path / "vmlinux"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CausalError) as caught:
        task_offsets(path)
    assert complaint in caught.value.message and caught.value.hint
