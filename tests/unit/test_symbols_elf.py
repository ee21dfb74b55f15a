"""Reading ELF files: on files written byte by byte, on files from the compiler, and on damaged ones."""

import dataclasses
import os
import stat
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from causal.errors import CausalError
from causal.symbols.elf import Binary
from tests.unit.elf_fixture import (
    CODE_OFFSET,
    CODE_SIZE,
    CODE_VADDR,
    ET_DYN,
    ET_REL,
    SHN_UNDEF,
    STB_LOCAL,
    STB_WEAK,
    STT_GNU_IFUNC,
    STT_NOTYPE,
    STT_OBJECT,
    ElfFile,
    Symbol,
    unit,
)

PROGRAM = """
#include <stdio.h>
static __attribute__((noinline)) int twice(int x) { __asm__ volatile(""); return 2 * x; }
__attribute__((noinline)) int work(int x) { __asm__ volatile(""); return twice(x) + 1; }
int main(int argc, char **argv) { (void)argv; return work(argc) == 3 ? 0 : 1; }
"""


def load(tmp_path, elf):
    path = tmp_path / "program"
    path.write_bytes(elf.build())
    return Binary.load(path)


def table(functions):
    return {
        name: (int(start) - CODE_OFFSET, int(end) - CODE_OFFSET)
        for name, start, end in zip(functions.names, functions.start, functions.end, strict=True)
    }


def test_functions_are_in_file_offsets_and_sorted(tmp_path):
    binary = load(tmp_path, ElfFile([Symbol("late", 0x200, 32), Symbol("early", 0x10, 16)]))
    assert binary.functions.names == ["early", "late"]
    assert table(binary.functions) == {"early": (0x10, 0x20), "late": (0x200, 0x220)}
    assert len(binary.functions) == 2


def test_only_defined_functions_count(tmp_path):
    symbols = [
        Symbol("work", 0, 16),
        Symbol("label", 4, 4, kind=STT_NOTYPE),
        Symbol("table", 32, 8, kind=STT_OBJECT),
        Symbol("imported", 0, 0, section=SHN_UNDEF),
        Symbol("elsewhere", CODE_SIZE + 0x100, 16),
        Symbol("", 64, 16),
    ]
    assert load(tmp_path, ElfFile(symbols)).functions.names == ["work"]


def test_function_without_size_lasts_until_the_next(tmp_path):
    symbols = [Symbol("assembly", 0x10), Symbol("next", 0x50, 16), Symbol("last", 0x100)]
    assert table(load(tmp_path, ElfFile(symbols)).functions) == {
        "assembly": (0x10, 0x50),
        "next": (0x50, 0x60),
        "last": (0x100, CODE_SIZE),
    }


def test_size_beyond_the_segment_is_cut(tmp_path):
    functions = load(tmp_path, ElfFile([Symbol("huge", 0x10, 2**64 - 1)])).functions
    assert table(functions) == {"huge": (0x10, CODE_SIZE)}


@pytest.mark.parametrize(
    ("symbols", "name"),
    [
        ([Symbol("__write", 0, 16), Symbol("write", 0, 16, bind=STB_WEAK)], "write"),
        ([Symbol("a", 0, 16, bind=STB_LOCAL), Symbol("exported", 0, 16)], "exported"),
        ([Symbol("a", 0, 16, bind=STB_LOCAL), Symbol("_exported", 0, 16)], "_exported"),
        ([Symbol("handler_v2", 0, 16), Symbol("handler", 0, 16)], "handler"),
        ([Symbol("_ZN3fooC2Ev", 0, 16), Symbol("_ZN3fooC1Ev", 0, 16)], "_ZN3fooC1Ev"),
        ([Symbol("_start", 0, 0), Symbol("begin", 0, 16)], "begin"),
    ],
)
def test_aliases_are_one_function(tmp_path, symbols, name):
    functions = load(tmp_path, ElfFile(symbols)).functions
    assert functions.names == [name]
    assert table(functions) == {name: (0, 16)}
    assert set(functions.aliases[0]) == {symbol.name for symbol in symbols} - {name}
    assert sorted(functions.all_names()) == sorted((symbol.name, 0) for symbol in symbols)


def test_the_same_symbol_in_both_tables_is_no_alias(tmp_path):
    symbols = [Symbol("work", 0, 16)]
    functions = load(tmp_path, ElfFile(symbols, dynamic_symbols=[*symbols, Symbol("more", 32, 8)])).functions
    assert functions.names == ["work", "more"]
    assert functions.aliases == {}


def test_local_functions_know_their_source_file(tmp_path):
    symbols = [
        unit("a.c"),
        Symbol("init", 0, 16, bind=STB_LOCAL),
        unit("b.c"),
        Symbol("init", 32, 16, bind=STB_LOCAL),
        unit(""),
        Symbol("stray", 64, 16, bind=STB_LOCAL),
        Symbol("main", 96, 16),
    ]
    functions = load(tmp_path, ElfFile(symbols)).functions
    assert functions.names == ["init", "init", "stray", "main"]
    assert functions.sources == ["a.c", "b.c", "", ""]


def test_indirect_functions_are_marked(tmp_path):
    functions = load(tmp_path, ElfFile([Symbol("memcpy", 0, 16, kind=STT_GNU_IFUNC), Symbol("f", 32, 8)])).functions
    assert functions.ifunc.tolist() == [True, False]


def test_addresses_convert_both_ways(tmp_path):
    binary = load(tmp_path, ElfFile([Symbol("work", 0, 16)]))
    assert binary.file_offset(CODE_VADDR + 5) == CODE_OFFSET + 5
    assert binary.vaddr(CODE_OFFSET + 5) == CODE_VADDR + 5
    assert binary.file_offset(CODE_VADDR + CODE_SIZE) is None
    assert binary.vaddr(0) is None
    assert binary.read(CODE_OFFSET, 3) == b"\x55\x55\x55"


def test_headers_of_a_dynamic_program(tmp_path):
    elf = ElfFile(
        [Symbol("work", 0, 16)],
        needed=("libone.so.1", "libc.so.6"),
        interpreter="/lib64/ld-linux-x86-64.so.2",
        runpath="$ORIGIN/lib",
        build_id=bytes(range(20)),
        kind=ET_DYN,
        has_debug_info=True,
    )
    binary = load(tmp_path, elf)
    assert binary.kind == "pie" and binary.is_pie and not binary.is_library and not binary.is_static
    assert binary.needed == ("libone.so.1", "libc.so.6")
    assert binary.interpreter == "/lib64/ld-linux-x86-64.so.2"
    assert (binary.runpath, binary.rpath, binary.soname) == ("$ORIGIN/lib", None, None)
    assert binary.build_id == bytes(range(20)).hex()
    assert binary.has_debug_info and binary.has_symtab and not binary.is_stripped
    assert binary.bits == 64 and binary.name == "program"


def test_headers_of_a_library_and_of_a_static_program(tmp_path):
    library = load(tmp_path, ElfFile(soname="libx.so.1", needed=("libc.so.6",), kind=ET_DYN))
    assert library.is_library and library.soname == "libx.so.1"
    assert library.is_stripped and library.build_id is None and not library.has_debug_info
    static = load(tmp_path, ElfFile([Symbol("work", 0, 16)]))
    assert static.kind == "executable" and static.is_static
    static_pie = load(tmp_path, ElfFile([Symbol("work", 0, 16)], kind=ET_DYN, flags_1=0x08000000))
    assert static_pie.is_pie and static_pie.is_static


def test_a_file_of_debug_information_has_something_else_where_the_interpreter_was(tmp_path):
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    subprocess.run(["cc", "-x", "c", "-", "-g", "-o", program], input=b"int main(void) { return 0; }", check=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    with open(debug, "rb") as file:
        at = next(s["p_offset"] for s in ELFFile(file).iter_segments() if s["p_type"] == "PT_INTERP")
    content = bytearray(debug.read_bytes())
    content[at : at + 8] = b"\xd5" * 8
    debug.write_bytes(content)
    assert Binary.load(debug).build_id == Binary.load(program).build_id is not None


def test_file_without_any_symbol_has_no_functions(tmp_path):
    assert len(load(tmp_path, ElfFile()).functions) == 0


@pytest.mark.parametrize(("entry", "name"), [("__asan_init", "address"), ("__tsan_init", "thread"), ("main", None)])
def test_sanitizers_are_recognised(tmp_path, entry, name):
    assert load(tmp_path, ElfFile(dynamic_symbols=[Symbol(entry, 0, 0, section=SHN_UNDEF)])).sanitizer == name


@pytest.mark.parametrize(
    ("mode", "privileged"), [(0o755, False), (0o4755, True), (0o2755, True), (0o2745, False)], ids=oct
)
def test_privilege_comes_from_the_mode(tmp_path, mode, privileged):
    path = tmp_path / "program"
    path.write_bytes(ElfFile().build())
    path.chmod(mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert Binary.load(path).is_privileged is privileged


def error_of(path):
    with pytest.raises(CausalError) as caught:
        Binary.load(path)
    assert caught.value.hint
    return caught.value.message


def test_what_is_no_program_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "file"
    assert "does not exist" in error_of(path)
    assert "not a regular file" in error_of(tmp_path)
    assert "not a regular file" in error_of("/dev/null")
    path.write_bytes(b"")
    assert "not an ELF" in error_of(path)
    path.write_bytes(b"#!/bin/sh\n")
    assert "not an ELF" in error_of(path)
    path.write_bytes(ElfFile().build()[:10])
    assert "cut off" in error_of(path)
    path.write_bytes(ElfFile(kind=ET_REL).build())
    assert "not linked" in error_of(path)


def test_other_architectures_are_refused(tmp_path):
    path = tmp_path / "program"
    path.write_bytes(ElfFile(machine=243).build())
    assert "riscv" in error_of(path)
    path.write_bytes(ElfFile(machine=9999).build())
    assert "architecture 9999" in error_of(path)
    content = bytearray(ElfFile(machine=40).build())
    content[4] = 1
    path.write_bytes(content)
    assert "arm" in error_of(path)


def test_a_32_bit_program(tmp_path):
    """Without a C library for it: `-m32 -nostdlib` needs none."""
    source, path = tmp_path / "program.c", tmp_path / "program"
    source.write_text("void work(void) {}\nvoid _start(void) { work(); }\n")
    options = ["-m32", "-g", "-O0", "-ffreestanding", "-nostdlib", "-static"]
    subprocess.run(["cc", *options, "-o", path, source], check=True)
    binary = Binary.load(path)
    assert (binary.bits, binary.machine, binary.has_debug_info) == (32, "x86_64", True)
    assert {"work", "_start"} <= set(binary.functions.names)
    row = binary.functions.names.index("work")
    assert 5 <= binary.functions.end[row] - binary.functions.start[row] <= 64


def test_every_way_of_cutting_a_file_is_an_error(tmp_path):
    content = ElfFile([Symbol("work", 0, 16)], needed=("libc.so.6",), build_id=b"12345678").build()
    path = tmp_path / "program"
    # The last section header is all zero up to its end, so a parser may do without its last bytes.
    for size in [*range(0, 800, 7), *range(CODE_OFFSET, len(content) - 64, 61)]:
        path.write_bytes(content[:size])
        error_of(path)


def test_file_that_shrinks_between_headers_and_symbols(tmp_path):
    binary = load(tmp_path, ElfFile([Symbol("work", 0, 16)]))
    os.truncate(binary.path, CODE_OFFSET + CODE_SIZE)
    with pytest.raises(CausalError, match="damaged"):
        _ = binary.functions


RICH = ElfFile(
    [unit("a.c"), Symbol("f", 0, 16, bind=STB_LOCAL), Symbol("g", 8, 64), Symbol("h", 96)],
    dynamic_symbols=[Symbol("g", 8, 64)],
    needed=("libc.so.6",),
    interpreter="/lib/ld.so",
    build_id=b"12345678",
    runpath="/opt",
).build()
STRUCTURE = [position for position in range(len(RICH)) if not CODE_OFFSET <= position < CODE_OFFSET + CODE_SIZE]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.sampled_from(STRUCTURE), st.integers(1, 255)), min_size=1, max_size=4),
    size=st.one_of(st.just(len(RICH)), st.integers(0, len(RICH))),
)
def test_damaged_files_are_read_or_refused(tmp_path, flips, size):
    content = bytearray(RICH)
    for position, change in flips:
        content[position] ^= change
    path = tmp_path / "program"
    path.write_bytes(content[:size])
    try:
        binary = Binary.load(path)
        functions = binary.functions
    except CausalError:
        return
    assert (functions.start < functions.end).all()
    assert (functions.start[1:] > functions.start[:-1]).all()
    assert all(int(end) <= size for end in functions.end)


@pytest.fixture
def compile_program(tmp_path):
    def compile_program(name, *options, source=PROGRAM, suffix=".c", compiler="gcc"):
        (tmp_path / f"{name}{suffix}").write_text(source)
        program = tmp_path / name
        command = [compiler, "-O1", "-o", program, tmp_path / f"{name}{suffix}", *options]
        subprocess.run(command, check=True, capture_output=True)
        return program

    return compile_program


@pytest.mark.parametrize(
    ("options", "kind", "static"),
    [
        (("-pie", "-fPIE"), "pie", False),
        (("-no-pie", "-fno-pie"), "executable", False),
        (("-static", "-no-pie"), "executable", True),
        (("-static-pie", "-fPIE"), "pie", True),
        (("-shared", "-fPIC", "-Wl,--no-as-needed", "-lc"), "library", False),
    ],
    ids=["pie", "fixed", "static", "static-pie", "shared"],
)
def test_compiled_programs(compile_program, options, kind, static):
    binary = Binary.load(compile_program("prog", "-g", "-Wl,--build-id", *options))
    assert (binary.kind, binary.is_static) == (kind, static)
    assert binary.has_symtab and binary.has_debug_info and len(binary.build_id) == 40
    functions = binary.functions
    assert {"work", "twice", "main"} <= set(functions.names)
    assert functions.sources[functions.names.index("twice")] == "prog.c"
    listed = subprocess.run(["nm", binary.path], check=True, capture_output=True, text=True).stdout
    address = next(int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" T work"))
    assert int(functions.start[functions.names.index("work")]) == binary.file_offset(address)


def test_stripped_program_keeps_only_dynamic_functions(compile_program):
    program = compile_program("prog", "-rdynamic", "-s")
    binary = Binary.load(program)
    assert binary.is_stripped and not binary.has_debug_info
    assert "work" in binary.functions.names and "twice" not in binary.functions.names


def test_sanitized_program(compile_program):
    assert Binary.load(compile_program("prog", "-fsanitize=address")).sanitizer == "address"
    assert Binary.load(compile_program("plain")).sanitizer is None


def test_loading_runs_on_this_python():
    binary = Binary.load(os.path.realpath("/proc/self/exe"))
    assert binary.interpreter is not None
    assert dataclasses.is_dataclass(binary)
