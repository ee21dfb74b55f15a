"""Source lines: line programs of all versions, inlined calls, where debug information is found, and bad input."""

import ctypes
import http.server
import lzma
import os
import pwd
import random
import struct
import subprocess
import threading
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causal.errors import CausalError
from causal.symbols import cache, debugfile
from causal.symbols.debugfile import find_debug_path
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines, what_is_missing
from causal.symbols.native import CONTRIBUTION_DTYPE, Reader
from tests.unit.dwarf_fixture import COMP_DIR, End, Function, Row, debug_sections, split_sections
from tests.unit.elf_fixture import CODE_SIZE, CODE_VADDR, ElfFile, Symbol

MAIN = f"{COMP_DIR}/main.c"
LIB = "/usr/include/c++/12/vector"
VERSIONS = (2, 3, 4, 5)
BUILD_ID = bytes(range(20))
CODE = np.array([[CODE_VADDR, CODE_VADDR + CODE_SIZE]], np.uint64)

ROWS = (
    Row(0x10, "main.c", 10), Row(0x14, "main.c", 11), Row(0x20, "main.c", 300), Row(0x40, "sub/other.c", 7),
    Row(0x60, "main.c", 12), Row(0x260, "main.c", 2), End(0x300),
)  # fmt: skip
# main calls `push` of the library, which calls `grow` of the library, which calls `copy` of the program.
NESTED = (
    Function("main", 0x10, 0x300, (
        Function("push", 0x20, 0x60, (
            Function("grow", 0x30, 0x50, (Function("copy", 0x40, 0x48, call=(LIB, 99)),), call=(LIB, 50)),
        ), call=("main.c", 11)),
    )),
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)


@pytest.fixture
def write(tmp_path):
    def write(name="prog", **parts):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ElfFile(**{"symbols": [Symbol("main", 0x10, 0x2F0)]} | parts).build())
        return Binary.load(path)

    return write


def lines_at(lines, *offsets):
    return [lines.chain(CODE_VADDR + offset)[0] for offset in offsets]


# --- line programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_byte_has_its_line(write, version):
    lines = SourceLines.load(write(debug=debug_sections(ROWS, version=version)))
    assert lines_at(lines, 0x0F, 0x10, 0x13, 0x14, 0x1F, 0x20, 0x3F) == [
        ("", 0), (MAIN, 10), (MAIN, 10), (MAIN, 11), (MAIN, 11), (MAIN, 300), (MAIN, 300)
    ]  # fmt: skip
    assert lines_at(lines, 0x40, 0x5F, 0x60, 0x25F, 0x260, 0x2FF, 0x300) == [
        (f"{COMP_DIR}/sub/other.c", 7), (f"{COMP_DIR}/sub/other.c", 7), (MAIN, 12), (MAIN, 12), (MAIN, 2), (MAIN, 2),
        ("", 0),
    ]  # fmt: skip
    assert lines.losses.lines == lines.losses.entries == 0 and lines.losses.units == 1


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000), st.sampled_from(["main.c", "a/b.c", "/x/c.c"]))),
    st.sampled_from(VERSIONS),
)
def test_rows_as_by_reading_them_one_by_one(moves, version):
    at, rows, truth = 0, [], {}
    for advance, line, file in moves:
        at += advance
        rows.append(Row(at, file, line))
    rows.append(End(at + 5))
    for row, following in pairwise(rows):
        for byte in range(row.at, following.at):
            truth[byte] = (row.file, row.line) if row.line else None
    found, paths = Reader(debug_sections(rows, version=version), CODE).lines()
    assert (found["address"][1:] > found["address"][:-1]).all()
    for byte in range(at + 10):
        row = found[np.searchsorted(found["address"], CODE_VADDR + byte, side="right") - 1]
        wanted = truth.get(byte) if moves else None
        if wanted is None:
            assert row["line"] == 0
        else:
            assert (paths[row["file"] - 1], row["line"]) == (os.path.join(COMP_DIR, wanted[0]), wanted[1])


@pytest.mark.parametrize("start", [-8, -(2**64 - 2), 0x4000])
def test_code_that_was_thrown_away(write, start):
    """--gc-sections and COMDAT leave line programs for addresses where no code is."""
    gone = (Row(start, "main.c", 5), End(start + 4 if start > 0 else start - 4 if start == -8 else start))
    lines = SourceLines.load(write(debug=debug_sections((*gone, *ROWS))))
    assert {int(row["line"]) for row in lines.rows} == {0, 2, 7, 10, 11, 12, 300}


def test_two_that_claim_the_same_code(write):
    rows = (Row(0x10, "main.c", 1), End(0x40), Row(0x30, "main.c", 2), Row(0x50, "main.c", 3), End(0x60))
    lines = SourceLines.load(write(debug=debug_sections(rows)))
    assert [line for _, line in lines_at(lines, 0x10, 0x3F, 0x40, 0x4F, 0x50, 0x60)] == [1, 1, 2, 2, 3, 0]


# --- inlined calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_call_is_followed_to_the_innermost_line_in_scope(write, version):
    rows = (Row(0x10, "main.c", 10), Row(0x20, LIB, 40), Row(0x40, "main.c", 77), Row(0x48, LIB, 41), End(0x300))
    lines = SourceLines.load(write(debug=debug_sections(rows, NESTED, version)))
    assert lines.chain(CODE_VADDR + 0x40) == [(MAIN, 77), (LIB, 99), (LIB, 50), (MAIN, 11)]
    assert lines.chain(CODE_VADDR + 0x30) == [(LIB, 40), (LIB, 50), (MAIN, 11)]
    places = lines.attribute(np.array([path == MAIN for path in lines.files]))
    found = [
        (int(p["start"]) - CODE_VADDR, int(p["end"]) - CODE_VADDR, int(p["line"]), name)
        for p, name in zip(places, lines.function_names(places["instance"]), strict=True)
    ]
    assert found == [
        (0x10, 0x20, 10, "main"), (0x20, 0x40, 11, "main"), (0x40, 0x48, 77, "copy"), (0x48, 0x60, 11, "main"),
    ]  # fmt: skip
    everything = lines.attribute(np.ones(len(lines.files), np.bool_))
    assert [int(p["line"]) for p in everything] == [10, 40, 40, 77, 41, 41, 41]


@pytest.mark.parametrize("version", VERSIONS)
def test_code_in_several_places(write, version):
    inlined = Function("twice", 0, 0, call=("main.c", 50), ranges=((0x20, 0x28), (0x60, 0x70)))
    functions = [Function("main", 0, 0, (inlined,), ranges=((0x10, 0x40), (0x60, 0x300)))]
    rows = (Row(0x10, LIB, 1), End(0x300))
    lines = SourceLines.load(write(debug=debug_sections(rows, functions, version)))
    chains = {at: lines.chain(CODE_VADDR + at)[1:] for at in (0x10, 0x20, 0x27, 0x28, 0x5F, 0x60, 0x6F, 0x70)}
    assert [at for at, calls in chains.items() if calls == [(MAIN, 50)]] == [0x20, 0x27, 0x60, 0x6F]


def test_a_call_at_no_line_is_passed_over(write):
    """Compilers give calls line 0 where they merged several: the call further out counts."""
    inner = Function("inner", 0x20, 0x30, call=("main.c", 0))
    functions = [Function("main", 0x10, 0x40, (Function("outer", 0x20, 0x30, (inner,), call=("main.c", 5)),))]
    lines = SourceLines.load(write(debug=debug_sections((Row(0x10, LIB, 1), End(0x40)), functions)))
    (place,) = lines.attribute(np.array([path == MAIN for path in lines.files]))
    assert (int(place["start"]) - CODE_VADDR, int(place["line"])) == (0x20, 5)


def compiled(directory, source, *flags, compiler="gcc"):
    path = directory / "real.c"
    path.write_text(source)
    subprocess.run([compiler, *flags, path, "-o", directory / "real"], check=True, cwd=directory)
    return Binary.load(directory / "real")


REAL = """
static inline __attribute__((always_inline)) int inner(int x) { return x * 3 + 1; }
static inline __attribute__((always_inline)) int outer(int x) { return inner(x) ^ 5; }
__attribute__((noinline)) int work(int x) { return outer(x) + outer(x + 7); }
int main(int n, char **v) { return work(n); }
"""


@pytest.mark.parametrize("flags", [("-gdwarf-4",), ("-gdwarf-5", "-no-pie"), ("-gdwarf-5", "-gz=zlib")])
def test_what_a_compiler_writes(tmp_path, flags):
    """Agrees with addr2line on every address of a real program."""
    binary = compiled(tmp_path, REAL, "-O2", "-g", *flags)
    lines = SourceLines.load(binary)
    addresses = np.union1d(lines.rows["address"], lines.pieces["address"])[1:-1].tolist()
    words = ["addr2line", "-a", "-i", "-e", binary.path]
    told = subprocess.run(words, input="\n".join(map(hex, addresses)), capture_output=True, text=True, check=True)
    chains = {}
    for line in told.stdout.splitlines():
        if line.startswith("0x"):
            chain = chains[int(line, 16)] = []
        else:
            path, _, number = line.partition(" ")[0].rpartition(":")
            chain.append(("", 0) if number in ("?", "0") else (os.path.normpath(path), int(number)))
    assert len(chains) > 5 and max(map(len, chains.values())) == 3
    assert {at: lines.chain(at) for at in chains} == chains


# --- where it is found -----------------------------------------------------------------------------------------------


def zlib_section(content):
    return struct.pack("<IIQQ", 1, 0, len(content), 1) + zlib.compress(content), 0x800


def test_compressed_sections(write):
    plain = debug_sections(ROWS, NESTED)
    wanted = SourceLines.load(write(debug=plain)).chain(CODE_VADDR + 0x40)
    new = {name: zlib_section(content) for name, content in plain.items()}
    assert SourceLines.load(write(debug=new)).chain(CODE_VADDR + 0x40) == wanted
    old = {
        name.replace(".debug", ".zdebug"): b"ZLIB" + struct.pack(">Q", len(content)) + zlib.compress(content)
        for name, content in plain.items()
    }
    assert SourceLines.load(write(debug=old)).chain(CODE_VADDR + 0x40) == wanted


def test_zstd_sections(write, tmp_path):
    def zstd(content):
        library = ctypes.CDLL("libzstd.so.1")
        room = ctypes.create_string_buffer(len(content) + 1000)
        library.ZSTD_compress.restype = ctypes.c_size_t
        words = (room, ctypes.c_size_t(len(room)), content, ctypes.c_size_t(len(content)), 3)
        size = library.ZSTD_compress(*words)
        return struct.pack("<IIQQ", 2, 0, len(content), 1) + room.raw[:size], 0x800

    plain = debug_sections(ROWS)
    packed = {name: zstd(content) for name, content in plain.items()}
    assert lines_at(SourceLines.load(write(debug=packed)), 0x40) == [(f"{COMP_DIR}/sub/other.c", 7)]


@pytest.mark.parametrize("claim", [10**6, 2**62, 3])
def test_sections_that_lie_about_their_size(write, claim):
    plain = debug_sections(ROWS)
    content = struct.pack("<IIQQ", 1, 0, claim, 1) + zlib.compress(plain[".debug_line"])
    with pytest.raises(CausalError, match="damaged"):
        SourceLines.load(write(debug=plain | {".debug_line": (content, 0x800)}))


@pytest.fixture
def debug_directory(tmp_path, monkeypatch):
    directory = tmp_path / "debug"
    monkeypatch.setattr(debugfile, "DEBUG_DIRECTORIES", (str(directory),))
    return directory


def test_a_separate_file_by_build_id(write, debug_directory):
    identity = BUILD_ID.hex()
    stripped = write(build_id=BUILD_ID)
    assert find_debug_path(stripped) is None
    place = f"debug/.build-id/{identity[:2]}/{identity[2:]}.debug"
    write(place, debug=debug_sections(ROWS), build_id=bytes(20))  # of another build
    assert find_debug_path(stripped) is None
    separate = write(place, debug=debug_sections(ROWS), build_id=BUILD_ID)
    assert find_debug_path(stripped) == separate.path
    assert lines_at(SourceLines.load(stripped), 0x10) == [(MAIN, 10)]


def test_names_of_a_stripped_program(write, debug_directory, tmp_path):
    """From its debug file, or from the compressed symbol table that Fedora leaves in it."""
    exported = [Symbol("exported", 0x40, 8)]
    whole = ElfFile(symbols=[Symbol("hidden", 0x10, 16)], build_id=BUILD_ID, debug=debug_sections(ROWS)).build()
    stripped = write(symbols=[], dynamic_symbols=exported, build_id=BUILD_ID)
    assert stripped.is_stripped and stripped.functions.names == ["exported"]
    packed = write("packed", symbols=[], dynamic_symbols=exported, debug={".gnu_debugdata": lzma.compress(whole)})
    assert packed.functions.names == ["hidden", "exported"] and not packed.is_stripped
    damaged = write("damaged", symbols=[], dynamic_symbols=exported, debug={".gnu_debugdata": b"\xfd7zXZ..."})
    assert damaged.is_stripped and damaged.functions.names == ["exported"]
    place = debug_directory / ".build-id" / BUILD_ID.hex()[:2] / f"{BUILD_ID.hex()[2:]}.debug"
    place.parent.mkdir(parents=True)
    place.write_bytes(whole)
    again = Binary.load(stripped.path)
    assert again.functions.names == ["hidden", "exported"] and not again.is_stripped


@pytest.mark.parametrize("place", ["prog.debug", ".debug/prog.debug", "below"])
def test_a_separate_file_by_link(write, tmp_path, debug_directory, place):
    place = f"debug{tmp_path}/prog.debug" if place == "below" else place
    separate = write(place, debug=debug_sections(ROWS))
    crc = zlib.crc32((tmp_path / place).read_bytes())
    linked = write(debug={".gnu_debuglink": b"prog.debug\0\0" + struct.pack("<I", crc)})
    assert os.path.realpath(find_debug_path(linked)) == separate.path
    wrong = write(debug={".gnu_debuglink": b"prog.debug\0\0" + struct.pack("<I", crc ^ 1)})
    assert find_debug_path(wrong) is None


def test_an_alternate_file(write, tmp_path):
    """dwz moves strings that several files share to a file of their own."""
    sections = debug_sections(ROWS, NESTED)
    # The name of `main` becomes a reference (DW_FORM_GNU_strp_alt) into the other file.
    sections[".debug_info"] = sections[".debug_info"].replace(b"main\0", struct.pack("<I", 3), 1)
    length = struct.unpack_from("<I", sections[".debug_info"])[0] - 1
    sections[".debug_info"] = struct.pack("<I", length) + sections[".debug_info"][4:]
    form = b"\x02\x2e\x01\x03"
    assert sections[".debug_abbrev"].count(form + b"\x08") == 1
    sections[".debug_abbrev"] = sections[".debug_abbrev"].replace(form + b"\x08", form + b"\xa1\x3e")
    sections[".gnu_debugaltlink"] = b"alternate\0" + BUILD_ID
    write("alternate", build_id=BUILD_ID, debug={".debug_str": b"xx\0shared_name\0"})
    lines = SourceLines.load(write(debug=sections))
    # Abstract entries moved by a byte less each: only the outermost name is asked for.
    outermost = np.flatnonzero(lines.instances["parent"] == 0xFFFFFFFF).astype(np.uint32)
    assert lines.function_names(outermost) == ["shared_name"]


def test_debuginfod_only_when_asked(write, tmp_path, monkeypatch):
    separate = write("separate", debug=debug_sections(ROWS), build_id=BUILD_ID)
    stripped = write(build_id=BUILD_ID)
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = Path(separate.path).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert SourceLines.load(stripped) is None and not asked
        monkeypatch.setenv("DEBUGINFOD_URLS", f"ftp://no http://127.0.0.1:{server.server_port}")
        for _ in range(2):  # the second time from the cache
            assert lines_at(SourceLines.load(stripped), 0x10) == [(MAIN, 10)]
        server.shutdown()
        thread.join()
    assert asked == [f"/buildid/{BUILD_ID.hex()}/debuginfo"]


def test_what_is_missing_is_said(write):
    functions_only = write()
    assert "no line information" in what_is_missing(functions_only, SourceLines.load(functions_only))
    nothing = write(symbols=[])
    assert "no symbols at all" in what_is_missing(nothing, None)
    whole = write(debug=debug_sections(ROWS))
    assert what_is_missing(whole, SourceLines.load(whole)) is None
    damaged = debug_sections(ROWS)
    damaged[".debug_info"] = damaged[".debug_info"][:-30]
    cut = write(debug=damaged)
    assert "damaged" in what_is_missing(cut, SourceLines.load(cut))


# --- split debug information -----------------------------------------------------------------------------------------

INLINED_ROWS = (Row(0x10, "main.c", 10), Row(0x20, LIB, 40), Row(0x40, "main.c", 77), Row(0x48, LIB, 41), End(0x300))
PUSH = NESTED[0].inside[0]
RANGED = (
    Function("main", 0, 0, (Function("push", 0, 0, PUSH.inside, PUSH.call, ((0x20, 0x60),)),), None, ((0x10, 0x300),)),
)


def packed(split, split_id, other, version):
    """The sections of a .dwp file with this one unit behind another one."""
    columns = {1: ".debug_info.dwo", 3: ".debug_abbrev.dwo"} | ({8: ".debug_rnglists.dwo"} if version == 5 else {})
    index = struct.pack("<4I", 5 if version == 5 else 2, len(columns), 2, 4)
    index += struct.pack("<4Q", 0, split_id ^ 1, 0, split_id) + struct.pack("<4I", 0, 1, 0, 2)
    sizes = [[len(part[name]) for name in columns.values()] for part in (other, split)]
    for row in (list(columns), [0] * len(columns), sizes[0], *sizes):
        index += struct.pack(f"<{len(columns)}I", *row)
    whole = {name: other[name] + split[name] for name in columns.values()}
    return whole | {".debug_cu_index": index}


@pytest.mark.parametrize("functions", [NESTED, RANGED], ids=["one range", "range lists"])
@pytest.mark.parametrize("version", [4, 5])
def test_entries_in_other_files(write, tmp_path, monkeypatch, version, functions):
    monkeypatch.setattr("causal.symbols.lines._WORTH_CACHING", 0)
    whole = SourceLines.load(write("whole", debug=debug_sections(INLINED_ROWS, functions, version)))
    dwo = tmp_path / "sub" / "main.dwo"
    main, split = split_sections(INLINED_ROWS, functions, version, name=str(dwo))
    binary = write(debug=main)
    alone = SourceLines.load(binary)
    assert alone.chain(CODE_VADDR + 0x40) == [(MAIN, 77)] and not len(alone.instances)
    assert (alone.losses.split, alone.losses.units, alone.missing) == (1, 1, str(dwo))
    assert str(dwo) in what_is_missing(binary, alone)
    _, wrong = split_sections(INLINED_ROWS, functions, version, split_id=5)
    write("sub/main.dwo", debug=wrong)
    assert "of another build" in what_is_missing(binary, SourceLines.load(binary))

    def is_whole():
        lines = SourceLines.load(binary)
        assert lines.losses == whole.losses and what_is_missing(binary, lines) is None
        assert np.array_equal(lines.rows, whole.rows) and np.array_equal(lines.pieces, whole.pieces)
        assert lines.chain(CODE_VADDR + 0x40) == [(MAIN, 77), (LIB, 99), (LIB, 50), (MAIN, 11)]
        numbers = np.arange(4, dtype=np.uint32)
        assert lines.function_names(numbers) == ["main", "push", "grow", "copy"]
        lines.release()
        assert lines.function_names(numbers[:1]) == ["main"]

    write("prog.dwp", debug=packed(split, 0x1122334455667788, wrong, version))
    is_whole()
    (tmp_path / "prog.dwp").unlink()
    write("sub/main.dwo", debug=split)
    is_whole()


@pytest.mark.parametrize("version", [4, 5])
def test_split_files_of_a_compiler(tmp_path, version):
    for directory, flags in (("whole", ()), ("split", ("-gsplit-dwarf",))):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "real.c").write_text(REAL)
        words = ["gcc", "-O2", "-g", f"-gdwarf-{version}", "-ffile-prefix-map=../=/x/", *flags, "-c", "real.c"]
        subprocess.run(words, check=True, cwd=tmp_path / directory)
        subprocess.run(["gcc", "real.o", "-o", "real"], check=True, cwd=tmp_path / directory)
    whole, split = (SourceLines.load(Binary.load(tmp_path / name / "real")) for name in ("whole", "split"))
    assert not split.losses.split and len(split.instances) == len(whole.instances) > 4
    addresses = np.union1d(whole.rows["address"], whole.pieces["address"]).tolist()

    def chains(lines):
        return [[(os.path.basename(path), line) for path, line in lines.chain(at)] for at in addresses]

    assert chains(split) == chains(whole) and max(map(len, chains(whole))) == 3
    numbers = np.arange(len(whole.instances), dtype=np.uint32)
    assert sorted(split.function_names(numbers)) == sorted(whole.function_names(numbers))


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "", "a" * 5000])
def test_names_of_split_files_that_are_a_trap(write, tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    main, _ = split_sections(ROWS, NESTED, name=str(tmp_path / name) if name == "pipe" else name)
    assert SourceLines.load(write(debug=main)).losses.split == 1


# --- the cache -------------------------------------------------------------------------------------------------------


def test_results_are_kept_and_damage_is_noticed(write, tmp_path, monkeypatch):
    monkeypatch.setattr("causal.symbols.lines._WORTH_CACHING", 0)
    binary = write(debug=debug_sections(ROWS, NESTED), build_id=BUILD_ID)
    first = SourceLines.load(binary)
    monkeypatch.setattr("causal.symbols.lines.read_debug_file", lambda path: pytest.fail("read again"))
    again = SourceLines.load(binary)
    assert again.files == first.files and np.array_equal(again.rows, first.rows) and again.losses == first.losses
    assert np.array_equal(again.pieces, first.pieces) and np.array_equal(again.instances, first.instances)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (entry,) = (tmp_path / "cache/causal-bpf/lines").iterdir()
    (entry / "rows.npy").write_bytes((entry / "rows.npy").read_bytes()[:-8])
    assert np.array_equal(SourceLines.load(binary).rows, first.rows)


def test_a_cache_that_cannot_be_written_does_no_harm(write, tmp_path, monkeypatch):
    monkeypatch.setattr("causal.symbols.lines._WORTH_CACHING", 0)
    (tmp_path / "cache").write_text("a file")
    assert lines_at(SourceLines.load(write(debug=debug_sections(ROWS))), 0x10) == [(MAIN, 10)]


def test_old_entries_give_way(tmp_path):
    array = np.zeros(3, np.dtype([("x", "<u4")]))
    for number in range(4):
        assert cache.store(f"k{number}", {"a": array}, number, tmp_path, max_entries=2)
        os.utime(tmp_path / f"k{number}", (number, number))
    dtypes = {"a": array.dtype}
    assert [cache.load(f"k{number}", dtypes, tmp_path) is not None for number in range(4)] == [False, False, True, True]


# --- bad input -------------------------------------------------------------------------------------------------------

SEEDS = [debug_sections(ROWS, NESTED, version) for version in VERSIONS]
SEEDS += [main | split for main, split in (split_sections(ROWS, NESTED, version) for version in (4, 5))]


@settings(max_examples=400)
@given(st.randoms(use_true_random=False), st.sampled_from(SEEDS))
def test_damaged_sections_are_read_or_counted(rng, sections):
    damaged = {name: _damage(rng, content) for name, content in sections.items()}
    reader = Reader(damaged, CODE)
    if any(name.endswith(".dwo") for name in damaged):
        contributions = np.zeros(2, CONTRIBUTION_DTYPE)
        contributions["info_size"] = len(damaged[".debug_info.dwo"])
        for column in CONTRIBUTION_DTYPE.names:
            contributions[column][1] = rng.choice((0, 5, 2**32 - 1, 2**64 - 1))
        reader.add_split(damaged, contributions[rng.randrange(2) :])
        assert len(reader.skeletons()) <= 2
    rows, _ = reader.lines()
    instances, pieces = reader.inlines()
    for table in (rows, pieces):
        assert (table["address"][1:] > table["address"][:-1]).all()
    assert not len(instances) or (instances["parent"][instances["parent"] != 0xFFFFFFFF] < len(instances)).all()
    assert len(reader.names(instances["die"])) == len(instances)
    assert reader.losses.units <= 2


def _damage(rng, content):
    data = bytearray(content)
    for _ in range(rng.choice((0, 1, 1, 2, 6))):
        at = rng.randrange(len(data))
        how = rng.random()
        if how < 0.7:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how < 0.85:
            data[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8)))
        else:
            del data[at + 1 :]
    return bytes(data)


def test_damaged_files_give_errors_or_lines(write, tmp_path):
    """Every kind of damage to the file itself: headers, section table, compressed data."""
    debug = {name: zlib_section(content) for name, content in debug_sections(ROWS, NESTED).items()}
    whole = ElfFile(symbols=[Symbol("main", 0x10, 0x2F0)], debug=debug, build_id=BUILD_ID).build()
    rng, outcomes = random.Random(7), {"read": 0, "refused": 0}
    for _ in range(300):
        path = tmp_path / "bad"
        path.write_bytes(_damage(rng, whole[:200]) + _damage(rng, whole[200:]))
        try:
            lines = SourceLines.load(Binary.load(path))
            if lines:
                lines.attribute(np.ones(len(lines.files), np.bool_))
            outcomes["read"] += 1
        except CausalError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_deep_nesting_and_shared_tables_end(write):
    """Entries nested as deeply as there are bytes, and every unit with the same large table."""
    sections = debug_sections(ROWS, NESTED)
    deep = sections[".debug_info"][:-6] + b"\x03x\0" * 3 + bytes([5, 0, 0, 0, 0, 0][:2]) * 20000
    deep = struct.pack("<I", len(deep) - 4) + deep[4:]
    reader = Reader(sections | {".debug_info": deep}, CODE)
    reader.inlines()
    many = Reader(sections | {".debug_info": sections[".debug_info"] * 5000}, CODE)
    many.lines()
    many.inlines()
    assert many.losses.units == 5000


def test_a_cache_in_the_home_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    chosen = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert cache.cache_directory(chosen) == tmp_path / "cache" / "causal-bpf"
    monkeypatch.setattr(cache, "_is_ours", lambda path: False)
    assert cache.cache_directory(chosen) == Path(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "causal-bpf")
    monkeypatch.undo()
    monkeypatch.setattr(os, "stat", lambda path, **options: SimpleNamespace(st_uid=os.geteuid() + 1))
    assert not cache._is_ours(tmp_path)
