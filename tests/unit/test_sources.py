"""Which source files and binaries count, how files are called, and lines as regions."""

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal.errors import CausalError, UsageError
from causal.project import ProjectScope
from causal.regions import NO_REGION, RegionTable
from causal.sources import SourceScope, project_directory, short_names
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines
from tests.unit.dwarf_fixture import COMP_DIR, End, Function, Row, debug_sections
from tests.unit.elf_fixture import CODE_OFFSET, ElfFile, Symbol

LIB = "/usr/include/c++/12/vector"
ROWS = (
    Row(0x10, "main.c", 10), Row(0x20, LIB, 40), Row(0x40, "main.c", 10), Row(0x50, "sub/util.c", 7),
    Row(0x60, "main.c", 0), Row(0x70, LIB, 9), End(0x80),
)  # fmt: skip
FUNCTIONS = (
    Function("main", 0x10, 0x70, (Function("push", 0x20, 0x40, call=("main.c", 11)),)),
    Function("only_library", 0x70, 0x80),
)


@pytest.mark.parametrize(
    ("path", "patterns", "counts"),
    [
        ("/home/me/p/src/a.c", [], True),
        ("/usr/include/stdio.h", [], False),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/include/emmintrin.h", [], False),
        ("/usr/include/c++/12/bits/stl_vector.h", [], False),
        ("/rustc/9fc6b43/library/core/src/slice/mod.rs", [], False),
        ("/rust/deps/hashbrown-0.15.5/src/raw/mod.rs", [], False),
        ("/home/me/.cargo/registry/src/index.crates.io-1/serde-1.0/src/lib.rs", [], False),
        ("/home/me/.rustup/toolchains/stable/lib/rustlib/src/rust/library/std/src/io.rs", [], False),
        ("<artificial>", [], False),
        ("/usr/include/stdio.h", ["*"], True),
        ("/usr/include/stdio.h", ["/usr/include"], True),
        ("/home/me/p/src/a.c", ["src/*"], True),
        ("/home/me/p/src/a.c", ["src"], True),
        ("/home/me/p/src/deep/a.c", ["src/"], True),
        ("/home/me/p/lib/a.c", ["src"], False),
        ("/home/me/p/mysrc/a.c", ["src"], False),
        ("/home/me/p/src/a.c", ["a.c"], True),
        ("/home/me/p/src/a.cc", ["a.c"], False),
        ("/home/me/p/src/a.c", ["*.c", "!src"], False),
        ("/home/me/p/vendor/a.c", ["!vendor"], False),
        ("/home/me/p/src/a.c", ["!vendor/*"], True),
        ("/usr/include/stdio.h", ["!vendor/*"], False),
        ("p/rel.c", ["p/*.c"], True),
    ],
)
def test_source_patterns(path, patterns, counts):
    assert SourceScope(patterns).includes(path) is counts


@pytest.mark.parametrize("empty", ["", "!", " ", "/"])
def test_an_empty_source_pattern(empty):
    with pytest.raises(UsageError, match="empty"):
        SourceScope([empty])


def test_the_directory_of_a_project():
    assert project_directory(["/home/me/p/a.c", "/home/me/p/x/b.c", "rel.c"]) == "/home/me/p"
    for shared in (["/tmp/a.c"], ["/home/me/a.c"], ["/home/me/p/a.c", "/opt/x/b.c"], ["rel.c"], []):
        assert project_directory(shared) is None


def test_names_are_as_short_as_they_can_be():
    paths = ["/p/a/util.c", "/p/b/util.c", "/p/main.c", "/q/a/util.c"]
    names = short_names(paths)
    assert names == {"/p/a/util.c": "p/a/util.c", "/p/b/util.c": "b/util.c", "/p/main.c": "main.c",
                     "/q/a/util.c": "q/a/util.c"}  # fmt: skip
    late = short_names(["/lib/main.c", "/p/main.c"], {"main.c": "/p/main.c"})
    assert late == {"/lib/main.c": "lib/main.c", "/p/main.c": "main.c"}


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), unique=True, max_size=12))
def test_names_tell_files_apart(paths):
    half = short_names(paths[: len(paths) // 2])
    names = short_names(paths, {name: path for path, name in half.items()})
    assert names.items() >= half.items()
    assert len(set(names.values())) == len(paths)
    assert all(path.endswith(name) or name == f"{path}#2" for path, name in names.items())


# --- regions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name="prog", rows=ROWS, functions=FUNCTIONS, **parts):
        path = tmp_path / name
        symbols = [Symbol("from_symbols", 0, 0x100)]
        path.write_bytes(ElfFile(**{"symbols": symbols, "debug": debug_sections(rows, functions)} | parts).build())
        return Binary.load(path)

    return write


def table_of(binary, unit="line", patterns=()):
    table = RegionTable(unit)
    table.add_lines(binary, SourceLines.load(binary), SourceScope(patterns).includes)
    return table


def at(table, binary, *offsets):
    names = {region.id: region.name for region in table} | {NO_REGION: None}
    return [names[table.lookup(binary.path, CODE_OFFSET + offset)] for offset in offsets]


def test_lines_become_regions(write):
    binary = write()
    table = table_of(binary)
    assert sorted((r.name, r.source, r.line, r.function, r.unit) for r in table) == [
        ("main.c:10", f"{COMP_DIR}/main.c", 10, "main", "line"),
        ("main.c:11", f"{COMP_DIR}/main.c", 11, "main", "line"),
        ("util.c:7", f"{COMP_DIR}/sub/util.c", 7, "main", "line"),
    ]
    # Time in the library counts for the call; line 0 and functions of the library alone belong to no line.
    assert at(table, binary, 0x0F, 0x10, 0x1F, 0x20, 0x3F, 0x40, 0x50, 0x60, 0x70, 0x80) == [
        None, "main.c:10", "main.c:10", "main.c:11", "main.c:11", "main.c:10", "util.c:7", None, None, None
    ]  # fmt: skip
    ranges = table.ranges
    assert len(ranges) == 4 and (ranges["end"][:-1] <= ranges["start"][1:]).all()


def test_files_become_regions(write):
    binary = write()
    table = table_of(binary, "file")
    assert [(r.name, r.line, r.function) for r in table] == [("main.c", 0, ""), ("util.c", 0, "")]
    assert at(table, binary, 0x10, 0x20, 0x4F, 0x50, 0x70) == ["main.c", "main.c", "main.c", "util.c", None]
    assert len(table.ranges) == 2  # neighbours are one


def test_what_is_asked_for_counts(write):
    binary = write()
    table = table_of(binary, patterns=["*"])
    assert at(table, binary, 0x20, 0x70) == ["vector:40", "vector:9"]
    table = table_of(binary, patterns=["!sub"])
    assert at(table, binary, 0x10, 0x50) == ["main.c:10", None]


def test_functions_from_the_symbol_table(write):
    binary = write(functions=())
    assert {region.function for region in table_of(binary)} == {"from_symbols"}


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("main.c:10", ["main.c:10"]),
        ("main.c:10-11", ["main.c:10", "main.c:11"]),
        (f"{COMP_DIR}/main.c:11", ["main.c:11"]),
        ("main.c", ["main.c:10", "main.c:11"]),
        ("sub", ["util.c:7"]),
        ("main", ["main.c:10", "main.c:11", "util.c:7"]),
        ("util*", ["util.c:7"]),
        ("main.c:1", None),
        ("no_such", None),
    ],
)
def test_lines_are_selected(write, pattern, chosen):
    table = table_of(write())
    if chosen is None:
        with pytest.raises(CausalError, match="no line in scope"):
            table.select([pattern])
    else:
        assert sorted(region.name for region in table.select([pattern])) == chosen


def test_a_line_of_two_binaries_is_one_region(write):
    one, two = write("one"), write("two")
    table = RegionTable("line")
    for binary in (one, two, one):
        table.add_lines(binary, SourceLines.load(binary), SourceScope().includes)
    assert len(table) == 3 and at(table, one, 0x10) == at(table, two, 0x10) == ["main.c:10"]


def test_binaries_of_the_project_count(write):
    main = write()
    friend = write("libfriend.so", [Row(0, f"{COMP_DIR}/lib/x.c", 1), End(8)], has_debug_info=False)
    stranger = write("libother.so", [Row(0, "/elsewhere/x.c", 1), End(8)], ())
    bare = write("libbare.so", debug={})
    scope = ProjectScope([main])
    assert [scope.includes(b.path) for b in (main, friend, stranger, bare)] == [True, True, False, False]
    assert not scope.includes("/no/such/file")
    table = RegionTable("line")
    scope.add_code(table, [main, bare])
    assert table.slices[bare.path][0] == table.slices[bare.path][1]
    assert list(scope.notes) == [bare.path] and "no line information" in scope.notes[bare.path]
    chosen = ProjectScope([main], ["libother"])
    assert [chosen.includes(b.path) for b in (main, friend, stranger)] == [False, False, True]


def test_a_damaged_binary_is_a_note(write):
    sections = debug_sections(ROWS)
    main = write(debug=sections | {".debug_line": (sections[".debug_line"], 0x800)})
    scope = ProjectScope([main])
    table = RegionTable("line")
    scope.add_code(table, [main])
    assert len(table) == 0 and "no usable line information" in scope.notes[main.path]


def test_a_function_of_many_lines(tmp_path, monkeypatch):
    """A real program with as many lines as it likes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "many.c"
    lines = "\n".join(f"  x = x * {n} + 1;" for n in range(3, 2000))
    source.write_text(f"volatile int x;\nint main(void) {{\n{lines}\n  return 0; }}\n")
    subprocess.run(["gcc", "-g", "-O1", source, "-o", tmp_path / "many", "-Wl,-z,separate-code"], check=True)
    binary = Binary.load(tmp_path / "many")
    table = table_of(binary)
    numbers = np.array([region.line for region in table])
    assert set(range(3, 2000)) <= set(numbers.tolist())
    assert {region.function for region in table} == {"main"}
