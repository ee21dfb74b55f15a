"""Regions: their names, the table for the kernel, and what the user selects."""

import itertools
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal.errors import CausalError, UsageError
from causal.regions import NO_REGION, RANGE_DTYPE, Region, RegionTable, Scope
from causal.symbols.elf import Binary
from causal.symbols.functions import FunctionTable
from tests.unit.elf_fixture import CODE_OFFSET, STB_LOCAL, ElfFile, Symbol, unit


@pytest.fixture
def write(tmp_path):
    def write(name, *symbols):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ElfFile(list(symbols)).build())
        return Binary.load(path)

    return write


def functions_of(*binaries):
    table = RegionTable("function")
    table.add_functions(binaries)
    return table


def names(table):
    return [region.name for region in table]


def local(name, at, size=16):
    return Symbol(name, at, size, bind=STB_LOCAL)


def test_functions_become_regions_with_dense_ids(write):
    binary = write("prog", Symbol("work", 0x20, 16), Symbol("main", 0, 16))
    table = functions_of(binary)
    assert list(table) == [Region(1, "main", "function", binary.path), Region(2, "work", "function", binary.path)]
    assert table.region(2).name == "work"
    for unknown in (NO_REGION, 3, -1):
        with pytest.raises(KeyError):
            table.region(unknown)


def test_table_for_the_kernel(write):
    one, two = write("one", Symbol("f", 0, 16), Symbol("g", 32, 16)), write("two", Symbol("h", 8, 8))
    table = functions_of(one, two)
    ranges = table.ranges
    assert ranges.dtype == RANGE_DTYPE and ranges.dtype.itemsize == 24
    assert ranges.tolist() == [
        (CODE_OFFSET, CODE_OFFSET + 16, 1, 0),
        (CODE_OFFSET + 32, CODE_OFFSET + 48, 2, 0),
        (CODE_OFFSET + 8, CODE_OFFSET + 16, 3, 0),
    ]
    assert table.slices == {one.path: (0, 2), two.path: (2, 3)}


def test_lookup_is_exact_at_the_edges(write):
    binary = write("prog", Symbol("f", 16, 16), Symbol("g", 64, 16))
    table = functions_of(binary)
    edges = {15: 0, 16: 1, 31: 1, 32: 0, 63: 0, 64: 2, 79: 2, 80: 0}
    assert {at: table.lookup(binary.path, CODE_OFFSET + at) for at in edges} == edges
    assert table.lookup("/other", CODE_OFFSET + 16) == NO_REGION


def test_files_added_later_change_nothing_for_earlier_ones(write):
    first, late = write("first", Symbol("work", 0, 16)), write("late.so", Symbol("work", 0, 16), Symbol("x", 32, 8))
    table = functions_of(first)
    before = (table.slices[first.path], table.ranges.tolist())
    table.add_functions([first, late])
    assert names(table) == ["work", "work@late.so", "x"]
    assert (table.slices[first.path], table.ranges[:1].tolist()) == before
    table.add_functions([late])
    assert len(table) == 3 and len(table.ranges) == 3


def test_file_without_symbols_has_an_empty_slice(write):
    binary = write("prog")
    table = functions_of(binary)
    assert table.slices == {binary.path: (0, 0)} and len(table) == 0
    assert table.lookup(binary.path, CODE_OFFSET) == NO_REGION


def test_innermost_function_wins(write):
    binary = write("prog", Symbol("outer", 0, 64), Symbol("inner", 16, 16), Symbol("tail", 56, 24))
    table = functions_of(binary)
    found = {at: table.lookup(binary.path, CODE_OFFSET + at) for at in (0, 15, 16, 31, 32, 55, 56, 79, 80)}
    name_of = {region.id: region.name for region in table} | {0: None}
    assert [name_of[region_id] for region_id in found.values()] == [
        "outer", "outer", "inner", "inner", "outer", "outer", "tail", "tail", None
    ]  # fmt: skip
    assert len(table.ranges) == 4


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=12, unique_by=lambda p: p[0]))
def test_overlaps_are_cut_as_by_looking_at_every_byte(placed):
    placed = sorted(placed)
    start = np.array([at for at, _ in placed], np.uint64)
    end = np.array([at + size for at, size in placed], np.uint64)
    plain = [f"f{row}" for row in range(len(placed))]
    functions = FunctionTable(start, end, plain, {}, [""] * len(placed), np.zeros(len(placed), np.bool_))
    table = RegionTable("function")
    table.add_functions([FakeBinary(functions)])
    ranges = table.ranges
    assert (ranges["start"] < ranges["end"]).all() and (ranges["end"][:-1] <= ranges["start"][1:]).all()
    for byte in range(100):
        around = [size for at, size in placed if at <= byte < at + size]
        found = table.lookup("fake", byte)
        assert (found == NO_REGION) == (not around)
        if around:
            assert placed[found - 1][1] == min(around)


class FakeBinary:
    path = "fake"

    def __init__(self, functions):
        self.functions = functions


def test_table_has_a_size(write):
    binary = write("prog", *(Symbol(f"f{n}", 32 * n, 16) for n in range(5)))
    RegionTable("function", max_ranges=5).add_functions([binary])
    with pytest.raises(CausalError) as caught:
        RegionTable("function", max_ranges=4).add_functions([binary])
    assert "5 ranges" in caught.value.message and "--unit module" in caught.value.hint


def test_same_name_in_one_file_is_told_apart(write):
    binary = write(
        "prog",
        unit("a.c"), local("init", 0), local("only", 0x20), unit("b.c"), local("init", 0x40),
        unit("b.c"), local("init", 0x60), unit(""), local("init", 0x80), local("init", 0xA0),
    )  # fmt: skip
    assert names(functions_of(binary)) == [
        "init (a.c)", "only", "init (b.c)", "init (b.c)#2", "init", "init#2"
    ]  # fmt: skip


def test_same_name_in_several_files_gets_the_file(write):
    one, two = write("one", Symbol("f", 0, 16), Symbol("g", 32, 16)), write("libtwo.so", Symbol("f", 0, 16))
    assert names(functions_of(one, two)) == ["f@one", "g", "f@libtwo.so"]
    same = [write(f"{place}/libx.so", Symbol("f", 0, 16)) for place in "ab"]
    assert names(functions_of(*same)) == ["f@libx.so", f"f@{same[1].path}"]


def test_names_are_readable_and_still_unique(write):
    hashed = "_ZN4core3ptr4drop17h{}E"
    binary = write(
        "prog",
        Symbol("_Z4workid", 0, 16),
        Symbol("_Z4worki", 32, 16),
        Symbol(hashed.format("0" * 16), 64, 16),
        Symbol(hashed.format("1" * 16), 96, 16),
    )
    assert names(functions_of(binary)) == ["work(int, double)", "work(int)", "core::ptr::drop", "core::ptr::drop#2"]


def test_cold_part_belongs_to_its_function(write):
    binary = write(
        "prog",
        unit("a.c"), local("init", 0), local("init.cold", 0x20), unit("b.c"), local("init", 0x40),
        local("init.cold", 0x60), local("gone.cold", 0x80), Symbol("work", 0xA0, 16), local("work.cold.3", 0xC0),
    )  # fmt: skip
    table = functions_of(binary)
    assert names(table) == ["init (a.c)", "init (b.c)", "gone.cold", "work"]
    found = [table.lookup(binary.path, CODE_OFFSET + at) for at in range(0, 0xE0, 0x20)]
    assert found == [1, 1, 2, 2, 3, 4, 4]


def test_modules():
    table = RegionTable("module")
    prog, libc = table.add_module("/opt/prog"), table.add_module("/lib/libc.so.6")
    other = table.add_module("/container/lib/libc.so.6")
    assert names(table) == ["prog", "libc.so.6", "/container/lib/libc.so.6"]
    assert table.add_module("/lib/libc.so.6") is libc and len(table) == 3
    assert table.add_module("[vdso]").name == "[vdso]"
    assert table.lookup("/opt/prog", 0) == prog.id and table.lookup("/opt/prog", 2**40) == prog.id
    assert table.slices["/container/lib/libc.so.6"] == (2, 3) and other.binary == "/container/lib/libc.so.6"
    assert table.select(["libc"]) == [libc, other]


def test_threads_are_regions_by_label():
    table = RegionTable("thread")
    worker = table.region_for_thread("worker-1")
    assert worker == Region(1, "worker-1", "thread", "")
    assert table.region_for_thread("worker-1") is worker
    assert table.region_for_thread("main").id == 2
    assert table.matches(worker, ["worker-*"]) and not table.matches(worker, ["main", "Worker-*"])
    assert len(table.ranges) == 0


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["main"], ["main"]),
        (["work"], ["work(int)", "work(int, double)"]),
        (["work(int)"], ["work(int)"]),
        (["ns::put"], ["void ns::put<int>(int)"]),
        (["ns::put<int>"], ["void ns::put<int>(int)"]),
        (["ns::*"], ["void ns::put<int>(int)"]),
        (["init"], ["init (a.c)", "init (b.c)"]),
        (["init (b.c)", "main"], ["main", "init (b.c)"]),
        (["*"], ["main", "work(int)", "work(int, double)", "void ns::put<int>(int)", "init (a.c)", "init (b.c)"]),
    ],
)
def test_selection(write, patterns, chosen):
    symbols = [Symbol("main", 0, 16), Symbol("_Z4worki", 32, 16), Symbol("_Z4workid", 64, 16)]
    symbols += [Symbol("_ZN2ns3putIiEEvT_", 96, 16)]
    symbols += [unit("a.c"), local("init", 128), unit("b.c"), local("init", 160)]
    assert [region.name for region in functions_of(write("prog", *symbols)).select(patterns)] == chosen


def test_full_name_selects_itself_only(write):
    table = functions_of(write("prog", Symbol("f", 0, 16)))
    table.add_functions([write("libx.so", Symbol("f", 0, 16))])
    assert [region.name for region in table.select(["f"])] == ["f"]
    assert [region.name for region in table.select(["f@*"])] == ["f@libx.so"]


def test_unknown_selection_suggests_near_names(write):
    table = functions_of(write("prog", Symbol("work_a", 0, 16), Symbol("_Z6work_bi", 32, 16)))
    with pytest.raises(CausalError) as caught:
        table.select(["work_a", "wrok_b"])
    assert "wrok_b" in caught.value.message
    assert "work_b" in caught.value.hint
    with pytest.raises(CausalError) as caught:
        RegionTable("module").select(["libz"])
    assert caught.value.hint


def test_scope_is_the_program_unless_told_otherwise(tmp_path):
    program = tmp_path / "prog"
    program.write_bytes(b"")
    (tmp_path / "link").symlink_to(program)
    paths = [str(program), "/lib/libc.so.6", "/lib/libcrypto.so.3", "/opt/vendor/libv.so"]

    def included(*patterns):
        scope = Scope(str(tmp_path / "link"), patterns)
        return [path.rpartition("/")[2] for path in paths if scope.includes(path)]

    assert included() == ["prog"]
    assert included("libc") == ["libc.so.6"]
    assert included("prog", "lib*", "!/opt/vendor/*") == ["prog", "libc.so.6", "libcrypto.so.3"]
    assert included("!libc") == ["prog", "libcrypto.so.3", "libv.so"]
    for empty in ("", "!", " "):
        with pytest.raises(UsageError):
            Scope(str(program), [empty])


def test_regions_of_a_compiled_program(tmp_path):
    # C that defines the symbols a C++ compiler would, so that no C++ compiler is needed.
    source = """
    #define FUNCTION(type, name, symbol) type name(type x) __asm__(symbol); \\
        __attribute__((noinline)) type name(type x) { __asm__ volatile(""); return x + x; }
    FUNCTION(int, work_int, "_Z4worki")
    FUNCTION(double, work_double, "_Z4workd")
    FUNCTION(int, twice_int, "_Z5twiceIiET_S0_")
    int main(int argc, char **argv) { (void)argv; return twice_int(work_int(argc)) + (int)work_double(argc); }
    """
    (tmp_path / "prog.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "prog", tmp_path / "prog.c"], check=True, capture_output=True)
    binary = Binary.load(tmp_path / "prog")
    table = functions_of(binary)
    assert {"main", "work(int)", "work(double)", "int twice<int>(int)"} <= set(names(table))
    assert [region.name for region in table.select(["work", "twice<int>"])] == [
        "work(int)", "work(double)", "int twice<int>(int)"
    ]  # fmt: skip
    assert len(set(names(table))) == len(table)
    ranges = table.ranges
    assert all(int(a["end"]) <= int(b["start"]) for a, b in itertools.pairwise(ranges))
    for name, start in zip(binary.functions.names, binary.functions.start, strict=True):
        assert table.lookup(binary.path, int(start)) != NO_REGION, name


def test_call_sites_turn_up_as_regions(write):
    table = functions_of(write("prog", Symbol("parse", 0, 16), Symbol("load", 32, 16)))
    parse, load = (table.select([name])[0].id for name in ("parse", "load"))
    table.add_site(1000, parse, load)
    table.add_site(1001, parse, 0)
    table.add_site(1000, load, parse)  # known already
    assert [table.region(number).name for number in (1000, 1001)] == ["parse from load", "parse"]
    assert 1000 in table and 999 not in table and parse in table and 0 not in table
    site = table.region(1000)
    assert all(table.matches(site, [pattern]) for pattern in ("parse", "parse from load", "parse from *"))
    assert not table.matches(site, ["load"]) and not table.matches(table.region(1001), ["parse from *"])
    assert len(list(table)) == 4
