"""Progress points: the grammar after -p, and the places it leads to."""

import subprocess

import pytest

from causal.errors import CausalError, UsageError
from causal.progress import PointSpec, Probe, first_instruction_is_cheap, parse_spec, resolve
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
    ("text", "kind"),
    [
        ("main.c:123", "source line"),
        ("loop=src/main.c:1", "source line"),
        ("usdt:postgres:query", "USDT"),
        ("tracepoint:sched:sched_switch", "tracepoint"),
        ("sampled:main.c:12", "sampled line"),
    ],
)
def test_kinds_to_come_are_refused_by_name(text, kind):
    with pytest.raises(CausalError) as caught:
        parse_spec(text)
    assert kind in caught.value.message and "not available yet" in caught.value.message
    assert caught.value.exit_code == 1 and "FUNCTION" in caught.value.hint


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
