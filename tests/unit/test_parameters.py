"""Where arguments are when a function is called, as compilers pass them."""

import struct
import subprocess

import pytest

from causal.errors import CausalError
from causal.symbols.elf import Binary
from causal.symbols.parameters import Parameter, find_identity, find_parameter

SOURCE = """
struct Pair { int a; short b; };                 // one register
struct Long { long a, b; };                      // two registers
struct Big { long a, b, c; };                    // memory
struct Mixed { double x; long n; };              // a vector register and an integer register
struct Floats { float x, y; };
struct Empty {};
struct Array { char text[12]; };
struct Careful { Careful(const Careful &); ~Careful(); long n; unsigned bits : 3; }; // by reference
struct Simple { Simple(const Simple &) = default; Simple(int n) : n(n) {} ~Simple() = default; int n; };
struct Holder { Careful inside[1]; };            // by reference, because of what is in it
struct Moved { Moved(Moved &&) = default; Moved(const Moved &) = delete; long n; };
struct Stuck { Stuck(const Stuck &) = delete; long n; };
struct Virtual { virtual void f() {} long n; };
struct Base { int base; };
struct Derived : Base { union { int one; unsigned char other; }; Long *next; Long last; };
enum class Kind : unsigned char { A };

extern "C" {
volatile long sink;
void pair(char c, Pair p, long z) { sink = c + p.a + z; }
void two(Long p, long z) { sink = p.a + z; }
void big(Big p, long z) { sink = p.a + z; }
void mixed(Mixed m, long z) { sink = m.n + z; }
void floats(Floats f, float g, long double h, long z) { sink = f.x + g + h + z; }
void empty(Empty, long z) { sink = z; }
void array(Array t, long z) { sink = t.text[9] + z; }
void careful(Careful c, long z) { sink = c.n + z; }
void simple(Simple c, Moved m, long z) { sink = c.n + m.n + z; }
void holder(Holder c, Stuck s, long z) { sink = c.inside[0].n + s.n + z; }
void opaque(int a, Virtual v, long z) { sink = a + v.n + z; }
void crowded(long a, long b, long c, long d, long e, Long p, int z, int y) { sink = a + b + c + d + e + p.a + z + y; }
void derived(const Derived &d, Derived *p, const int &i, int *q, Kind k) { sink = d.base + p->one + i + *q + (int)k; }
Big result(long z) { return { z, z, z }; }
}
"""


def separate(library):
    """Move the debug information to a file of its own, as packages of distributions have it."""
    kept = library.with_suffix(".debug")
    for command in (
        ["objcopy", "--only-keep-debug", "--compress-debug-sections", library, kept],
        ["objcopy", "--strip-debug", f"--add-gnu-debuglink={kept}", library],
    ):
        subprocess.run(command, check=True, timeout=60)


@pytest.fixture(scope="module", params=["in the program", "in a file of its own"])
def find(tmp_path_factory, request):
    directory = tmp_path_factory.mktemp("parameters")
    (directory / "source.cpp").write_text(SOURCE)
    library = directory / "library.so"
    command = ["c++", "-g", "-O1", "-shared", "-fPIC", "-o", library, directory / "source.cpp"]
    subprocess.run(command, check=True, timeout=60)
    if request.param == "in a file of its own":
        separate(library)
    binary = Binary.load(str(library))
    offsets = dict(zip(binary.functions.names, binary.functions.start.tolist(), strict=True))

    def look(function, name, string=False, find=find_parameter):
        return find(binary, offsets[function], function, name, *([string] if find is find_parameter else []))

    return look


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        ("pair", "c", Parameter("c", 1, 1, True)),
        ("pair", "p.a", Parameter("p.a", 2, 4, True)),
        ("pair", "p.b", Parameter("p.b", 2, 2, True, shift=32)),
        ("pair", "z", Parameter("z", 3, 8, True)),
        ("two", "p.b", Parameter("p.b", 2, 8, True)),
        ("two", "z", Parameter("z", 3, 8, True)),
        ("big", "z", Parameter("z", 1, 8, True)),
        ("mixed", "m.n", Parameter("m.n", 1, 8, True)),
        ("mixed", "z", Parameter("z", 2, 8, True)),
        ("floats", "z", Parameter("z", 1, 8, True)),
        ("empty", "z", Parameter("z", 1, 8, True)),
        ("array", "z", Parameter("z", 3, 8, True)),
        ("careful", "c.n", Parameter("c.n", 1, 8, True, offset=0)),
        ("careful", "z", Parameter("z", 2, 8, True)),
        ("simple", "c.n", Parameter("c.n", 1, 4, True)),
        ("simple", "m.n", Parameter("m.n", 2, 8, True)),
        ("holder", "s.n", Parameter("s.n", 2, 8, True, offset=0)),
        ("holder", "z", Parameter("z", 3, 8, True)),
        ("opaque", "a", Parameter("a", 1, 4, True)),
        ("crowded", "e", Parameter("e", 5, 8, True)),
        ("crowded", "z", Parameter("z", 6, 4, True)),  # the structure before it had not enough registers
        ("derived", "d.base", Parameter("d.base", 1, 4, True, offset=0)),
        ("derived", "d.last.b", Parameter("d.last.b", 1, 8, True, offset=24)),
        ("derived", "p.other", Parameter("p.other", 2, 1, False, offset=4)),
        ("derived", "i", Parameter("i", 3, 4, True, offset=0)),
        ("derived", "q", Parameter("q", 4, 8, False)),
        ("derived", "k", Parameter("k", 5, 1, False)),
        ("result", "z", Parameter("z", 2, 8, True)),
    ],
)
def test_where_values_are(find, function, name, expected):
    assert find(function, name) == expected


@pytest.mark.parametrize(
    ("function", "name", "message", "hint"),
    [
        ("big", "p", "not in an integer register", "another"),
        ("mixed", "m.x", "is no integer", "another"),
        ("floats", "f.x", "is no integer", "another"),
        ("holder", "c.inside", "is no integer", "another"),
        ("opaque", "z", "does not say enough to find z of opaque", "arg1"),  # Virtual is declared only, by GCC
        ("crowded", "p.a", "not in an integer register", "another"),
        ("crowded", "y", "not in an integer register", "another"),
        ("careful", "c.bits", "bit field", "another"),
        ("derived", "d.next.a", "is a pointer in memory", "NAME@FUNCTION"),
        ("derived", "d", "is no number", "its members: base, one, other, next, last"),
        ("derived", "d.last", "is no number", "its members: a, b"),
        ("derived", "i.x", "is no structure", "alone"),
        ("derived", "d.none", "has no member none", "its members: base"),
        ("derived", "none", "derived has no parameter none", "d, p, i, q, k"),
    ],
)
def test_what_cannot_be_read(find, function, name, message, hint):
    with pytest.raises(CausalError, match=message) as caught:
        find(function, name)
    assert hint in caught.value.hint


def test_texts_have_lengths_and_objects_have_addresses(find):
    assert find("derived", "q", string=True) == Parameter("q", 4, 8, False, is_text=True)
    with pytest.raises(CausalError, match="where Derived keeps the length of its text is not known"):
        find("derived", "d", string=True)
    with pytest.raises(CausalError, match="c of pair is no string"):
        find("pair", "c", string=True)
    assert find("derived", "d", find=find_identity) == Parameter("d", 1)
    assert find("derived", "i", find=find_identity) == Parameter("i", 3)
    assert find("pair", "c", find=find_identity) == Parameter("c", 1, 1)


SPLIT = """
struct Shape { int kind; long width; };
int work(struct Shape *shape, int size) { return shape->width * size; }
"""


def build(directory, *options):
    """`look(name)` finds a parameter of `work`, in a program built with these options."""
    (directory / "source.c").write_text(SPLIT)
    command = ["cc", "-g", "-O1", *options, "-shared", "-fPIC", "-o", "split.so", "source.c"]
    subprocess.run(command, check=True, timeout=60, cwd=directory)
    binary = Binary.load(str(directory / "split.so"))
    offset = int(binary.functions.start[binary.functions.names.index("work")])
    return lambda name: find_parameter(binary, offset, "work", name)


def test_split_debug_information(tmp_path):
    look = build(tmp_path, "-gsplit-dwarf", "-gdwarf-5")
    assert look("size") == Parameter("size", 2, 4, True)
    assert look("shape.width") == Parameter("shape.width", 1, 8, True, offset=8)
    with pytest.raises(CausalError, match="work has no parameter none") as caught:
        look("none")
    assert "shape, size" in caught.value.hint
    (found,) = tmp_path.glob("*.dwo")
    found.rename(tmp_path / "elsewhere")
    with pytest.raises(CausalError, match=f"gsplit-dwarf.*{found.name} is not there"):
        look("size")


def test_packed_split_debug_information(tmp_path):
    """A .dwp file of one unit: its .dwo file with an index (DWARF 5, section 7.3.5)."""
    look = build(tmp_path, "-gsplit-dwarf", "-gdwarf-5")
    (loose,) = tmp_path.glob("*.dwo")
    names = {1: "info", 3: "abbrev", 6: "str_offsets"}
    sizes = []
    for name in names.values():
        section = tmp_path / name
        dump = ["objcopy", "--dump-section", f".debug_{name}.dwo={section}", loose, tmp_path / "copy"]
        subprocess.run(dump, check=True, timeout=60)
        sizes.append(section.stat().st_size)
    identity = (tmp_path / "info").read_bytes()[12:20]
    rows = struct.pack("<9I", *names, *([0] * len(names)), *sizes)
    index = struct.pack("<4I", 5, len(names), 1, 2) + identity + bytes(8) + struct.pack("<2I", 1, 0) + rows
    (tmp_path / "index").write_bytes(index)
    pack = ["objcopy", f"--add-section=.debug_cu_index={tmp_path / 'index'}", loose, tmp_path / "split.so.dwp"]
    subprocess.run(pack, check=True, timeout=60)
    loose.unlink()
    assert look("shape.width") == Parameter("shape.width", 1, 8, True, offset=8)


def test_split_debug_information_of_another_kind(tmp_path):
    look = build(tmp_path, "-gsplit-dwarf", "-gdwarf-4")
    with pytest.raises(CausalError, match=r"gsplit-dwarf.*where it is DWARF 5"):
        look("size")


def test_types_in_units_of_their_own(tmp_path):
    look = build(tmp_path, "-fdebug-types-section", "-gdwarf-4")
    assert look("shape.width") == Parameter("shape.width", 1, 8, True, offset=8)


def test_damaged_debug_information(tmp_path):
    look = build(tmp_path, "-gdwarf-5")
    library = tmp_path / "split.so"
    subprocess.run(["objcopy", "--dump-section", f".debug_abbrev={tmp_path}/abbrev", library], check=True, timeout=60)
    content = library.read_bytes()
    abbrev = (tmp_path / "abbrev").read_bytes()
    library.write_bytes(content.replace(abbrev, b"\xff" * len(abbrev)))
    with pytest.raises(CausalError, match=r"split\.so is damaged"):
        look("size")
