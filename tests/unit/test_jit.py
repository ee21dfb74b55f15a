"""Maps of just-in-time compiled functions: what is believed, how they grow, what later lines overwrite."""

import os
from types import SimpleNamespace

import pytest

from causal.jit import JitCode
from causal.mappings import Mapping
from causal.regions import RegionTable, Scope
from causal.symbols.perf_map import JitFunction, PerfMap, parse_line, why_distrusted

PID = 4321
ANONYMOUS = Mapping(0x1000, 0x9000, 0, "[anonymous]", 0, "00:00", "anonymous", False)


@pytest.fixture
def proc(tmp_path):
    directory = tmp_path / "proc" / str(PID)
    (directory / "root/tmp").mkdir(parents=True)
    ids = "\t".join([str(os.getuid())] * 4)
    (directory / "status").write_text(f"Name:\tx\nNSpid:\t{PID}\t7\nUid:\t{ids}\nGid:\t{ids}\n")
    (directory / "stat").write_text(f"{PID} (x) S " + "0 " * 18 + "100 0\n")
    (tmp_path / "proc/stat").write_text("btime 1000\n")
    return tmp_path / "proc"


@pytest.fixture
def written(proc):
    path = proc / str(PID) / "root/tmp/perf-7.map"

    def write(text, mode="a"):
        with open(path, mode) as file:
            file.write(text)
        path.chmod(0o644)
        return path

    return write


def test_a_map_is_read_as_it_grows(proc, written):
    found = PerfMap(PID, str(proc))
    assert not found.read_on()
    written("1000 20 py::f:/a b.py\n0x2000 10 JS:*g x.js:1:1\n3000 1")
    assert found.read_on() and not found.read_on()
    assert found.functions == [
        JitFunction(0x1000, 0x1020, "py::f:/a b.py"),
        JitFunction(0x2000, 0x2010, "JS:g x.js:1:1"),
    ]
    written("0 h\n")
    assert found.read_on() and found.functions[2] == JitFunction(0x3000, 0x3010, "h")
    written("1000 8 again\n", "w")
    assert found.read_on() and found.functions == [JitFunction(0x1000, 0x1008, "again")]


@pytest.mark.parametrize(
    "line", [b"", b"1000 20", b"x 20 f", b"1000 0 f", b"-5 20 f", b"ffffffffffff0000 10 f", b"10 20  "]
)
def test_lines_without_sense(line):
    assert parse_line(line) is None


def test_names_are_made_harmless():
    assert parse_line(b"10 20 a\x1b[31m\xff").name == "a?[31m\ufffd"


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_a_map_that_is_written_anew(proc, written, size):
    """As jcmd does: whether it becomes shorter, longer or neither, what it said before does not hold."""
    found = PerfMap(PID, str(proc))
    path = written("1000 20 f\n2000 10 g\n")
    assert found.read_on()
    written("3000 20 f\n4000 10 g" + {-1: "\n", 0: "\n", 1: "\n5000 10 h\n"}[size], "w")
    if size < 0:
        written("3000 20 f\n", "w")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000_000))
    assert found.read_on() and not found.read_on()
    assert found.functions[0] == JitFunction(0x3000, 0x3020, "f") and len(found.functions) == 2 + size


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"st_uid": 0}, ""),
        ({"st_mode": 0o100664}, ""),
        ({"st_uid": 6}, "user 6"),
        ({"st_mode": 0o100646}, "others"),
        ({"st_mode": 0o100664, "st_gid": 50}, "others"),
        ({"st_mode": 0o010644}, "regular"),
        ({"st_mtime": 90.0}, "older"),
    ],
)
def test_who_is_believed(change, why):
    fields = {"st_uid": 5, "st_gid": 5, "st_mode": 0o100644, "st_mtime": 100.0} | change
    found = why_distrusted(SimpleNamespace(**fields), {5}, {5}, 100.0)
    assert why in found and bool(found) == bool(why)


def test_a_link_is_not_followed(proc, tmp_path):
    (tmp_path / "elsewhere").write_text("10 20 f\n")
    (proc / str(PID) / "root/tmp/perf-7.map").symlink_to(tmp_path / "elsewhere")
    assert not PerfMap(PID, str(proc)).read_on()


def test_a_map_others_may_write_is_reported_and_not_used(proc, written, monkeypatch):
    monkeypatch.setattr("causal.jit.PerfMap", lambda pid: PerfMap(pid, str(proc)))
    written("1000 20 f\n").chmod(0o666)
    table, notes = RegionTable("function"), {}
    assert not JitCode(table, Scope("/bin/x"), notes).refresh(PID, [ANONYMOUS])
    assert len(table) == 0 and "chmod" in next(iter(notes.values()))


def test_later_lines_hold_and_old_slices_stay(proc, written, monkeypatch):
    monkeypatch.setattr("causal.jit.PerfMap", lambda pid: PerfMap(pid, str(proc)))
    now = [0.0]
    table = RegionTable("function")
    jit = JitCode(table, Scope("/bin/x"), {}, lambda: now[0])
    written("1000 100 f\n2000 10 g\n")
    assert jit.refresh(PID, [ANONYMOUS])
    first = jit.slice_of(PID)
    written("1040 20 h\n1000 10 f\n")
    assert not jit.refresh(PID, [ANONYMOUS])  # too soon
    now[0] = 1.0
    assert jit.refresh(PID, [ANONYMOUS])
    low, high = jit.slice_of(PID)
    assert (low, high) != first
    rows = [(row["start"], row["end"], table.region(int(row["region"])).name) for row in table.ranges[low:high]]
    assert rows == [(0x1000, 0x1040, "f"), (0x1040, 0x1060, "h"), (0x1060, 0x1100, "f"), (0x2000, 0x2010, "g")]
    assert table.ranges[slice(*first)]["end"].tolist() == [0x1100, 0x2010]
    jit.forget(PID)
    assert jit.slice_of(PID) == (0, 0)


@pytest.mark.parametrize(
    ("patterns", "counts"), [((), True), (["!jit"], False), (["!libz"], True), (["libz"], False), (["jit"], True)]
)
def test_whether_compiled_code_is_in_scope(patterns, counts):
    assert Scope("/bin/x", patterns).includes_jit() is counts


def test_compiled_code_counts_beside_the_programs_named_by_default():
    assert Scope("/bin/x", ["/bin/x"], jit=True).includes_jit()
    assert not Scope("/bin/x", ["/bin/x", "!jit"], jit=True).includes_jit()
