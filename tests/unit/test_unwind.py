"""Unwind tables from call-frame information: what programs mean, what is left out, what the kernel side is given."""

import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causal.mappings import Mapping, read_maps
from causal.symbols.functions import Segment
from causal.unwind.image import NoImage, read_image
from causal.unwind.modules import Memory, Modules
from causal.unwind.rules import PAGE_BITS, ROW_DTYPE, Kind, pack, unpack
from causal.unwind.store import load_file, load_vdso
from causal.unwind.table import build_table
from tests.unit.elf_fixture import CODE_SIZE, CODE_VADDR, ElfFile

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.path.realpath(sys.executable)
BASE = CODE_VADDR  # of the fixture's first page
CODE = CODE_VADDR + 0x200
NOTHING, END, UNKNOWN = int(Kind.NOTHING), int(Kind.END), int(Kind.UNKNOWN)

# Instructions of call-frame programs.
REMEMBER, RESTORE, UNDEFINED_RA = b"\x0a", b"\x0b", b"\x07\x10"


def advance(n):
    return bytes([0x40 | n])


def cfa(register, offset):
    return bytes([0x0C, register, offset])


def cfa_offset(n):
    return bytes([0x0E, n])


def saved(register, words):
    return bytes([0x80 | register, words])


def block(code, *numbers):
    return bytes([code, *numbers])


COMMON = cfa(7, 8) + saved(16, 1)


class EhFrame:
    """A section at address 0: common entries and functions, `at` relative to the code."""

    def __init__(self):
        self.data = bytearray()
        self.common = None

    def cie(self, program=COMMON, augmentation=b"zR", version=1, encoding=b"\x1b"):
        self.common = len(self.data)
        head = bytes([version]) + augmentation + b"\0\x01\x78\x10"
        head += bytes([len(encoding)]) + encoding if augmentation else b""
        self._entry(struct.pack("<I", 0) + head + program)
        return self

    def fde(self, at, size, program=b""):
        here = len(self.data)
        where = struct.pack("<Ii", here + 4 - self.common, CODE + at - here - 8)
        self._entry(where + struct.pack("<I", size) + b"\0" + program)
        return self

    def _entry(self, body):
        body += bytes(-len(body) % 4)
        self.data += struct.pack("<I", len(body)) + body


def image_with(section, debug_frame=None):
    debug = {".eh_frame": (bytes(section.data) + bytes(4), 2)}
    if debug_frame is not None:
        debug[".debug_frame"] = debug_frame
    return ElfFile(debug=debug).build()


def table_of(data):
    return build_table(data, read_image(data))


def rules(data):
    """[(offset in the code, (kind, cfa, fp))]"""
    return [(pc - (CODE - BASE), unpack(rule)) for pc, rule in table_of(data).rows[1:].tolist()]


def test_the_rules_of_a_function():
    push = advance(1) + cfa_offset(16) + saved(6, 2) + advance(3) + block(0x0D, 6)
    body = push + advance(10) + REMEMBER + cfa(7, 8) + block(0xC6) + advance(1) + RESTORE
    assert rules(image_with(EhFrame().cie().fde(0x10, 0x40, body))) == [
        (0x10, (Kind.STACK_POINTER, 8, 0)),
        (0x11, (Kind.STACK_POINTER, 16, -16)),
        (0x14, (Kind.FRAME_POINTER, 16, -16)),
        (0x1E, (Kind.STACK_POINTER, 8, 0)),
        (0x1F, (Kind.FRAME_POINTER, 16, -16)),
        (0x50, (Kind.NOTHING, 0, 0)),
    ]


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        (UNDEFINED_RA, END),
        (block(0x0F, 11, 0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22), int(Kind.LINKAGE) | 11 << 16),
        (block(0x0F, 4, 0x77, 0xA0, 1, 6), int(Kind.SIGNAL)),  # *(rsp + 160)
        (block(0x0F, 4, 0x77, 0xA8, 1, 6), UNKNOWN),
        (block(0x0F, 6, 0x77, 0xA8, 1, 6, 0x23, 8), pack(Kind.SAVED, 168)),  # *(rsp + 168) + 8
        (block(0x0F, 6, 0x77, 0xA8, 1, 6, 0x23, 16), UNKNOWN),
        (block(0x0F, 5, 0x77, 0xA8, 1), UNKNOWN),  # ends in the middle
        (block(0x0F, 3, 0x76, 0x78, 6) + block(0x10, 6, 2, 0x76, 0), pack(Kind.REALIGNED, -8)),
        (cfa(10, 8), UNKNOWN),  # another register
        (cfa_offset(12), UNKNOWN),  # no whole words
        (block(0x09, 16, 2), UNKNOWN),  # the return address is in a register
        (block(0x14, 6, 1), UNKNOWN),
        (block(0x13, 0x7E), pack(Kind.STACK_POINTER, 16)),  # -2 times the factor of -8
    ],
)
def test_what_a_program_comes_to(program, rule):
    data = image_with(EhFrame().cie().fde(0, 0x20, program))
    assert table_of(data).rows["rule"].tolist() == [NOTHING, rule, NOTHING][(rule == NOTHING) :]


@pytest.mark.parametrize("file", ["bpf/unwind.h", "causal/symbols/native/frames.h"])
def test_everybody_has_the_same_kinds(file):
    names = re.search(r"enum rule_kind \{(.*?)\}", (ROOT / file).read_text(), re.DOTALL)[1]
    assert re.findall(r"K_(\w+)", names) == [kind.name for kind in Kind]


def test_equal_neighbours_are_one_row_and_padding_is_none():
    frames = EhFrame().cie().fde(0, 0x11).fde(0x20, 0x20).fde(0x60, 0x20).fde(0x40, 0x20, cfa_offset(32))
    assert [at for at, _ in rules(image_with(frames))] == [0, 0x40, 0x60, 0x80]
    # A gap where a function may be of which nothing is known is one.
    frames = EhFrame().cie().fde(0, 0x10).fde(0x20, 0x10)
    assert [at for at, _ in rules(image_with(frames))] == [0, 0x10, 0x20, 0x30]


def test_what_makes_no_sense_is_left_out_and_counted():
    good = EhFrame().cie().fde(0, 0x20)
    broken = EhFrame().cie().fde(0, 0x20).fde(0x40, 0x20, advance(4) + b"\x3f").fde(0x80, 0x20)
    assert table_of(image_with(good)).lost == 0
    table = table_of(image_with(broken))
    assert (table.functions, table.lost) == (3, 1)
    found = dict(rules(image_with(broken)))
    assert found[0x40] == found[0x80] == (Kind.STACK_POINTER, 8, 0)
    assert found[0x44] == (Kind.NOTHING, 0, 0)  # nothing is known from there on
    for common in ({"version": 9}, {"augmentation": b"zX"}, {"encoding": b"\x2b"}):
        table = table_of(image_with(EhFrame().cie(**common).fde(0, 0x20)))
        assert table.lost and len(table.rows) == 1
    assert table_of(image_with(EhFrame().cie().fde(0, 0x20, RESTORE))).lost == 1
    assert table_of(image_with(EhFrame().cie().fde(0, 0x20, b"\x0e" + b"\x80" * 20))).lost == 1
    # Functions that the linker threw away stay behind at address 0.
    assert len(table_of(image_with(EhFrame().cie().fde(-CODE, 0x20))).rows) == 1


def test_debug_frame_fills_what_eh_frame_leaves_out():
    common = struct.pack("<I", 0xFFFFFFFF) + b"\x04\0\x08\0\x01\x78\x10" + cfa(7, 8) + saved(16, 1)
    common += bytes(-len(common) % 4)
    data = struct.pack("<I", len(common)) + common
    for at, program in ((0, cfa_offset(24)), (0x100, cfa_offset(48))):
        body = struct.pack("<IQQ", 0, CODE + at, 0x20) + program
        body += bytes(-len(body) % 4)
        data += struct.pack("<I", len(body)) + body
    found = dict(rules(image_with(EhFrame().cie().fde(0, 0x20), debug_frame=data)))
    assert found[0] == (Kind.STACK_POINTER, 8, 0) and found[0x100] == (Kind.STACK_POINTER, 48, 0)


def test_program_headers_suffice():
    data = bytearray(Path(PROGRAM).read_bytes())
    whole = table_of(bytes(data))
    data[40:48], data[58:64] = bytes(8), bytes(6)  # e_shoff; e_shentsize, e_shnum, e_shstrndx
    assert len(whole.rows) > 10_000 and whole.lost == 0
    assert np.array_equal(table_of(bytes(data)).rows, whole.rows)


def is_sound(rows):
    pc = rows["pc"].astype(np.int64)
    return rows.dtype == ROW_DTYPE and pc[0] == 0 and bool(np.all(np.diff(pc) > 0))


VARIED = image_with(
    EhFrame()
    .cie()
    .fde(0, 0x40, advance(1) + cfa_offset(16) + saved(6, 2) + block(2, 9) + REMEMBER + cfa(6, 16) + RESTORE)
    .fde(0x40, 0x20, block(0x0F, 4, 0x77, 0xA0, 1, 6) + block(0x10, 6, 2, 0x76, 0))
    .cie(augmentation=b"zPLR", encoding=b"\x9b\0\0\0\0\x1b\x1b")
    .fde(0x100, 0x400, block(0x11, 6, 2) + block(0x2E, 16) + block(3, 1, 1) + UNDEFINED_RA)
)
FRAMES_AT = VARIED.index(b"\x01zR\0")


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(-8, 200), st.integers(0, 255), min_size=1, max_size=6), st.booleans())
def test_any_bytes_give_a_table(changes, in_frames):
    data = bytearray(VARIED)
    for at, value in changes.items():
        data[(FRAMES_AT + at) if in_frames else at % 400] = value
    try:
        table = table_of(bytes(data))
    except NoImage:
        return
    assert is_sound(table.rows)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(VARIED)))
def test_a_file_may_be_cut_off(size):
    try:
        assert is_sound(table_of(VARIED[:size]).rows)
    except NoImage:
        assert size < len(VARIED)


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path, monkeypatch):
    program, cache = tmp_path / "program", tmp_path / "cache"
    program.write_bytes(Path(PROGRAM).read_bytes())

    def cut_off_first(data, image):
        os.truncate(program, 4096)
        return build_table(data, image)

    monkeypatch.setattr("causal.unwind.store.build_table", cut_off_first)
    assert is_sound(load_file(str(program), cache).rows)
    monkeypatch.undo()
    # Nothing of it was kept under the name of the whole file.
    program.write_bytes(Path(PROGRAM).read_bytes())
    assert len(load_file(str(program), cache).rows) == len(load_file(PROGRAM, tmp_path / "other").rows)


def test_tables_are_kept(tmp_path, monkeypatch):
    first = load_file(PROGRAM, tmp_path)
    monkeypatch.setattr("causal.unwind.store.build_table", None)
    assert np.array_equal(load_file(PROGRAM, tmp_path).rows, first.rows)
    with pytest.raises(NoImage):
        load_file(__file__, tmp_path)


# --- what the kernel searches ---------------------------------------------------------------------------------------


def memory(rows=1 << 20, pages=1 << 16, modules=64):
    dtype = [("first_page", "<u4"), ("pages", "<u4"), ("page", "<u4"), ("pad", "<u4")]
    return Memory(np.zeros(rows, ROW_DTYPE), np.zeros(pages, np.uint64), np.zeros(modules, dtype))


def search(memory, number, pc):
    """As find_rule in bpf/unwind.h."""
    module = memory.modules[number]
    page = (pc >> PAGE_BITS) - int(module["first_page"])
    if not 0 <= page < module["pages"]:
        return NOTHING
    page += int(module["page"])
    low, high, steps = int(memory.pages[page]) - 1, int(memory.pages[page + 1]), 0
    while low + 1 < high:
        middle, steps = (low + high) // 2, steps + 1
        low, high = (middle, high) if memory.rows["pc"][middle] <= pc else (low, middle)
    assert steps <= 11
    return int(memory.rows["rule"][low])


def test_the_kernel_finds_every_rule(tmp_path):
    ours = [mapping for mapping in read_maps(os.getpid()) if mapping.path in (PROGRAM, "[vdso]")]
    kernel = memory()
    modules = Modules(kernel, tmp_path)
    found = {mapping.path: modules.find(os.getpid(), mapping) for mapping in ours}
    assert found[PROGRAM][0] and found["[vdso]"][0]
    for path in (PROGRAM, "[vdso]"):
        rows = load_vdso().rows if path == "[vdso]" else load_file(path, tmp_path).rows
        pc = np.concatenate([rows["pc"][1::37], rows["pc"][1::37] + 1, rows["pc"][1::41] - 1]).astype(np.int64)
        expected = rows["rule"][np.searchsorted(rows["pc"].astype(np.int64), pc, side="right") - 1]
        assert [search(kernel, found[path][0], at) for at in pc.tolist()] == expected.tolist()
    for at in (0, 0xFFFFFFFF):
        assert search(kernel, found[PROGRAM][0], at) == NOTHING


def test_a_module_is_there_once_and_what_does_not_fit_is_named(tmp_path):
    program = next(mapping for mapping in read_maps(os.getpid()) if mapping.path == PROGRAM)
    copy = tmp_path / "copy"
    copy.write_bytes(Path(PROGRAM).read_bytes())
    elsewhere = Mapping(program.start, program.end, program.offset, str(copy), 1, "0:1", "file", False)
    anonymous = Mapping(1, 2, 0, "[anonymous]", 0, "0:0", "anonymous", False)
    modules = Modules(memory(), tmp_path)
    assert not modules.is_known(program)
    assert modules.find(1, program) == modules.find(1, elsewhere) and modules.is_known(elsewhere)
    assert modules.used[0] == 1
    assert not modules.lacking and modules.find(1, anonymous) == (0, 0)
    assert modules.lacking == {"[anonymous]": "code that is made at run time"}
    full = Modules(memory(rows=100), tmp_path)
    assert full.find(1, program) == (0, 0)
    assert "full" in full.lacking[PROGRAM] and full.used == (0, 0)


def test_where_the_kernel_steps_through_probed_instructions(tmp_path):
    """At the entry of a function, that is: the return address is on top of the stack."""
    probed = Mapping(2**47 - 8192, 2**47 - 4096, 0, "[uprobes]", 0, "0:0", "anonymous", False)
    kernel = memory()
    modules = Modules(kernel, tmp_path)
    assert modules.is_known(probed)
    number, pc = modules.find(1, probed)
    assert modules.find(2, probed) == (number, pc) and modules.used[0] == 1 and not modules.lacking
    assert {search(kernel, number, pc + at) for at in (0, 7, 128, 4095)} == {pack(Kind.STACK_POINTER, 8)}
    assert search(kernel, number, pc - 1) == search(kernel, number, pc + 4096) == NOTHING


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 400), st.integers(0, 255), min_size=1, max_size=6))
def test_wherever_headers_say_code_is_its_address_fits_the_row(changes):
    data = bytearray(VARIED)
    for at, value in changes.items():
        data[at] = value
    try:
        image = read_image(bytes(data))
    except NoImage:
        return
    for offset in {0, 0x1000} | {segment.offset & -0x1000 for segment in image.segments}:
        address = image.table_address(offset)
        assert address is None or 0 <= address < 1 << 32


def test_where_a_mapping_begins_in_the_table():
    image = read_image(VARIED)
    assert image.base == BASE and image.table_address(0x1000) == CODE_VADDR - BASE
    assert image.table_address(0x1000 + CODE_SIZE) is None
    assert Segment(CODE_VADDR, 0x1000, CODE_SIZE, True) in image.segments
