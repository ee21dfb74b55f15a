"""Where arguments are when a function is called, as compilers pass them."""

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


@pytest.fixture(scope="module")
def find(tmp_path_factory):
    directory = tmp_path_factory.mktemp("parameters")
    (directory / "source.cpp").write_text(SOURCE)
    library = directory / "library.so"
    command = ["c++", "-g", "-O1", "-shared", "-fPIC", "-o", library, directory / "source.cpp"]
    subprocess.run(command, check=True, timeout=60)
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


def test_split_debug_information_is_named(tmp_path):
    (tmp_path / "source.c").write_text("int work(int size) { return size * 3; }\n")
    command = ["cc", "-g", "-O1", "-gsplit-dwarf", "-shared", "-fPIC", "-o", tmp_path / "split.so", "source.c"]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)
    binary = Binary.load(str(tmp_path / "split.so"))
    with pytest.raises(CausalError, match="gsplit-dwarf"):
        find_parameter(binary, int(binary.functions.start[binary.functions.names.index("work")]), "work", "size")
