"""Progress points: the grammar after -p, and the places it leads to."""

import subprocess

import pytest

from causal.errors import CausalError, UsageError
from causal.points import find_points, locate, split_pair
from causal.progress import PointSpec, Probe, find_stretches, first_instruction_is_cheap, parse_spec, resolve
from causal.symbols.elf import Binary
from causal.symbols.libraries import libraries_of
from tests.unit.elf_fixture import CODE_OFFSET, CODE_VADDR, STB_WEAK, STT_GNU_IFUNC, ElfFile, Symbol


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("work", PointSpec("work", "work", "function", "work", None)),
        (" work ", PointSpec("work", "work", "function", "work", None)),
        ("write@libc", PointSpec("write@libc", "write@libc", "function", "write", "libc")),
        ("requests=handle", PointSpec("requests", "handle", "function", "handle", None)),
        ("my point = put@/opt/libq.so", PointSpec("my point", "put@/opt/libq.so", "function", "put", "/opt/libq.so")),
        ("ns::work(int)", PointSpec("ns::work(int)", "ns::work(int)", "function", "ns::work(int)", None)),
        ("A::operator=", PointSpec("A::operator=", "A::operator=", "function", "A::operator=", None)),
        ("operator==", PointSpec("operator==", "operator==", "function", "operator==", None)),
        ("eq=A::operator==", PointSpec("eq", "A::operator==", "function", "A::operator==", None)),
    ],
)
def test_specs(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize("text", ["", "  ", "name=", "@libc", "work@"])
def test_specs_without_sense(text):
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("main.c:123", PointSpec("main.c:123", "main.c:123", "line", "main.c:123", None)),
        ("loop=src/main.c:1@libq", PointSpec("loop", "src/main.c:1@libq", "line", "src/main.c:1", "libq")),
        ("q=usdt:postgres:query", PointSpec("q", "usdt:postgres:query", "usdt", "postgres:query", None)),
        ("e=tracepoint:a:b_c", PointSpec("e", "tracepoint:a:b_c", "tracepoint", "a:b_c", None)),
        ("s=sampled:m.c:12", PointSpec("s", "sampled:m.c:12", "sampled", "m.c:12", None)),
        ("a=0x4f@libq", PointSpec("a", "0x4f@libq", "address", "0x4f", "libq")),
        ("usdt::work", PointSpec("usdt::work", "usdt::work", "function", "usdt::work", None)),
    ],
)
def test_other_kinds(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize("text", ["usdt:postgres", "tracepoint:x", "sampled:main.c", "tracepoint:a:b@libc"])
def test_kinds_without_what_they_need(text):
    with pytest.raises(UsageError):
        parse_spec(text)


def test_a_tracepoint_that_does_not_exist(write, monkeypatch):
    known = frozenset({"syscalls:sys_exit_sendto", "sched:sched_switch"})
    monkeypatch.setattr("causal.progress.available_events", lambda: known)
    error = error_of("tracepoint:syscalls:sys_exit_sento", write("prog"))
    assert "no tracepoint" in error.message and "syscalls:sys_exit_sendto" in error.hint
    assert resolve(parse_spec("tracepoint:sched:sched_switch"), write("prog"), []) == []


def test_two_points_and_many_places(write):
    main = write("prog", *(Symbol(f"work_{i}", i * 16, 16) for i in range(20)))

    def find(points, latencies=(), many=False):
        return find_points(points, latencies, many, lambda spec: locate(spec, main, [], may_load=False))

    with pytest.raises(UsageError) as caught:
        find(["work_*"])
    assert "20 places" in caught.value.message and "--all" in caught.value.hint
    assert len(find(["work_*"], many=True).points[0].probes) == 20
    found = find(["work_1"], ["wait=work_2,work_3"])
    assert [place.spec.what for place in found.places] == ["work_1", "work_2", "work_3"]
    for latency in ("wait=work_2", "work_2,work_3", "wait=,work_2", "wait="):
        with pytest.raises(UsageError):
            find([], [latency])
    with pytest.raises(UsageError):
        find(["wait=work_1"], ["wait=work_2,work_3"])


def test_pairs_are_split_outside_of_brackets():
    assert split_pair("f<a, b>(int, int), g(a,b)") == ("f<a, b>(int, int)", "g(a,b)")
    assert split_pair("f(a,b)") == ("f(a,b)", "")


SOURCE = """
static inline __attribute__((always_inline)) int twice(int x) { return x * 2 +
    x / 3; }
int one(int x) { return twice(x); }
int two(int x) { return twice(x + 1) + 5; }

int main(int c, char **v) { return one(c) + two(c); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lines")
    (directory / "copies.c").write_text(SOURCE)
    words = ["cc", "-g", "-O1", "-fno-inline-functions", "-o", "copies", "copies.c"]
    subprocess.run(words, cwd=directory, check=True, timeout=60)
    return Binary.load(str(directory / "copies"))


def test_a_line_is_found_in_all_its_inlined_copies(compiled):
    probes = resolve(parse_spec("copies.c:3"), compiled, [])
    functions = {name: row for name, row in compiled.functions.all_names()}
    rows = [functions["one"], functions["two"]]
    start, end = compiled.functions.start, compiled.functions.end
    inside = [sum(start[row] <= probe.file_offset < end[row] for probe in probes) for row in rows]
    assert min(inside) == 1 and {probe.symbol for probe in probes} == {"copies.c:3"}
    assert find_stretches(parse_spec("sampled:copies.c:3"), compiled, [])


def test_lines_without_code_and_unknown_files(compiled):
    assert "nearest lines with code: 3, 4, 5, 7" in error_of("copies.c:6", compiled).hint
    assert "copies.c" in error_of("copis.c:6", compiled).hint


def test_an_address_must_be_where_an_instruction_begins(compiled):
    row = next(row for name, row in compiled.functions.all_names() if name == "two")
    start = compiled.vaddr(int(compiled.functions.start[row]))
    assert [probe.vaddr for probe in resolve(parse_spec(f"{start:#x}"), compiled, [])] == [start]
    assert "no code" in error_of("0x7fffffff", compiled).message
    code = compiled.read(int(compiled.functions.start[row]), 3)
    assert code[0] not in (0x90, 0x55)  # longer than a byte
    assert "middle" in error_of(f"{start + 1:#x}", compiled).message


@pytest.fixture
def write(tmp_path):
    def write(name, *symbols, **attributes):
        path = tmp_path / name
        path.write_bytes(ElfFile(list(symbols), **attributes).build())
        return Binary.load(path)

    return write


def found(text, main, libraries=()):
    return [probe.symbol for probe in resolve(parse_spec(text), main, libraries)]


def error_of(text, main, libraries=()):
    with pytest.raises(CausalError) as caught:
        resolve(parse_spec(text), main, libraries)
    return caught.value


def test_function_of_the_program(write):
    main = write("prog", Symbol("work", 0x40, 16), code=bytes(0x40) + b"\xc3")
    assert resolve(parse_spec("work"), main, []) == [
        Probe(main.path, CODE_OFFSET + 0x40, CODE_VADDR + 0x40, "work", False)
    ]


def test_every_alias_leads_to_the_function_under_the_name_asked_for(write):
    main = write("prog", Symbol("write", 0, 16, bind=STB_WEAK), Symbol("__write", 0, 16))
    assert found("write", main) == ["write"]
    assert found("__write", main) == ["__write"]


def test_library_functions(write):
    main = write("prog", Symbol("put", 0, 16))
    one, two = write("libone.so.1", Symbol("put", 0, 16)), write("libtwo.so", Symbol("put", 0, 16))
    libraries = [one, two.path]  # loaded, and still a path

    def paths(text):
        return [probe.path for probe in resolve(parse_spec(text), main, libraries)]

    assert paths("put") == [main.path]
    assert paths("put@libone") == paths("put@libone.so.1") == paths(f"put@{one.path}") == [one.path]
    assert paths("put@lib*") == [one.path, two.path]
    assert paths("put@prog") == [main.path]
    assert paths(f"put@{two.path}") == [two.path]


def test_library_that_will_be_loaded_later_is_named_by_its_path(write):
    main, plugin = write("prog"), write("plugin.so", Symbol("put", 0, 16))
    assert [probe.path for probe in resolve(parse_spec(f"put@{plugin.path}"), main, [])] == [plugin.path]
    assert "does not exist" in error_of("put@/no/such.so", main).message


CPP = [
    Symbol("_Z4worki", 0x00, 16),
    Symbol("_Z4workid", 0x20, 16),
    Symbol("_ZN2ns3putIiEEvT_", 0x40, 16),
    Symbol("_ZN2ns3putIcEEvT_", 0x60, 16),
    Symbol("_ZN2ns3putIcEEvT_.cold", 0x80, 16),
    Symbol("_ZN7mycrate4work17h0123456789abcdefE", 0xA0, 16),
    Symbol("_RINvC7mycrate3getdE", 0xC0, 16),
    Symbol("compress.constprop.0", 0xE0, 16),
    Symbol("compress.part.0", 0x100, 16),
    Symbol("compress.isra.0.cold", 0x120, 16),
    Symbol("compress", 0x140, 16),
]


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("work", ["_Z4worki", "_Z4workid"]),
        ("work(int)", ["_Z4worki"]),
        ("_Z4workid", ["_Z4workid"]),
        ("ns::put", ["_ZN2ns3putIiEEvT_", "_ZN2ns3putIcEEvT_"]),
        ("ns::put<int>", ["_ZN2ns3putIiEEvT_"]),
        ("void ns::put<int>(int)", ["_ZN2ns3putIiEEvT_"]),
        ("mycrate::work", ["_ZN7mycrate4work17h0123456789abcdefE"]),
        ("mycrate::get", ["_RINvC7mycrate3getdE"]),
        ("mycrate::get::<f64>", ["_RINvC7mycrate3getdE"]),
        ("compress", ["compress.constprop.0", "compress"]),
        ("compress.part.0", ["compress.part.0"]),
    ],
)
def test_readable_names(write, text, symbols):
    assert found(text, write("prog", *CPP)) == symbols


def test_unknown_function_suggests_near_names(write):
    main = write("prog", *CPP, Symbol("handle_request", 0x200, 16))
    error = error_of("handle_reqest", main)
    assert "no function handle_reqest in prog" in error.message
    assert error.hint == "did you mean handle_request?"
    assert "ns::put" in error_of("ns::putt", main).hint
    assert "inlined" in error_of("qqqqqqqq", main).hint


def test_unknown_function_of_a_stripped_program_says_so(write):
    main = write("prog", dynamic_symbols=[Symbol("exported", 0, 16)])
    error = error_of("export", main)
    assert "exported" in error.hint and "stripped" in error.hint
    assert found("exported", main) == ["exported"]


def test_function_that_a_library_has_is_pointed_at(write, tmp_path):
    main, library = write("prog", Symbol("main", 0, 16)), write("libq.so", Symbol("enqueue", 0, 16))
    hint = error_of("enqueue", main, [str(tmp_path / "gone.so"), library.path]).hint
    assert hint == "libq.so has it: -p enqueue@libq.so"


def test_unknown_library_lists_those_in_use(write):
    main, library = write("prog", Symbol("main", 0, 16)), write("libqueue.so", Symbol("enqueue", 0, 16))
    error = error_of("enqueue@libqeue", main, [library])
    assert "no library that matches libqeue" in error.message and "libqueue.so" in error.hint


def test_indirect_functions_are_refused_even_beside_an_old_version(write):
    resolver = Symbol("memcpy", 0, 16, kind=STT_GNU_IFUNC)
    old, real = Symbol("memcpy", 0x20, 16), Symbol("__memcpy_avx_unaligned", 0x40, 16)
    error = error_of("memcpy", write("prog", resolver, old, real))
    assert "IFUNC" in error.message and "__memcpy_avx_unaligned" in error.hint
    assert error_of("memcpy", write("alone", resolver)).hint == "choose the function that calls it"


@pytest.mark.parametrize(
    ("code", "cheap"),
    [
        ("f30f1efa", True),  # endbr64
        ("55", True),  # push %rbp
        ("4157", True),  # push %r15
        ("90", True),
        ("0f1f440000", True),  # nop
        ("e800000000", True),  # call
        ("eb10", True),  # jmp
        ("7410", True),  # je
        ("0f8410000000", True),  # je, far
        ("c3", False),  # ret
        ("0f05", False),  # syscall
        ("4883ec08", False),  # sub $8,%rsp
        ("4889e5", False),  # mov
        ("0f", False),
        ("41", False),
        ("", False),
    ],
)
def test_cheap_instructions_of_x86(code, cheap):
    assert first_instruction_is_cheap(bytes.fromhex(code), "x86_64") is cheap


@pytest.mark.parametrize(
    ("word", "cheap"),
    [(0xD503245F, True), (0xD503201F, True), (0x14000001, True), (0x94000001, True), (0xA9BF7BFD, False)],
    ids=["bti", "nop", "b", "bl", "stp"],
)
def test_cheap_instructions_of_arm(word, cheap):
    assert first_instruction_is_cheap(word.to_bytes(4, "little"), "aarch64") is cheap


def test_points_of_a_compiled_program(tmp_path):
    source = """
    #include <unistd.h>
    static __attribute__((noinline, noclone)) void progress(void) { __asm__ volatile(""); }
    int main(void) { progress(); return (int)write(1, "", 0); }
    """
    (tmp_path / "prog.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "prog", tmp_path / "prog.c"], check=True, capture_output=True)
    main = Binary.load(tmp_path / "prog")
    listed = subprocess.run(["nm", main.path], check=True, capture_output=True, text=True).stdout
    address = next(int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" t progress"))
    (probe,) = resolve(parse_spec("progress"), main, libraries_of(main))
    assert (probe.vaddr, probe.file_offset) == (address, main.file_offset(address))
    (probe,) = resolve(parse_spec("write@libc"), main, libraries_of(main))
    assert probe.path.endswith("libc.so.6") and probe.symbol == "write"
