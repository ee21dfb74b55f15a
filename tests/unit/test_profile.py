"""The profile file: what is written can be read, whatever ended the writing."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest

from causal.errors import CausalError
from causal.profile import End, Header, ProfileWriter, ProgressPoint, Region, Visits, Window, read_profile

HEADER = Header(
    program="causal-bpf 0.1.0",
    command=("./prog", "--size", "3"),
    pid=1234,
    started="2024-01-02T03:04:05+00:00",
    machine={"kernel": "6.1", "cpus": 2, "model": "test"},
    options={"unit": "function", "period_ns": 1_000_003, "seed": 1},
    progress_points=(ProgressPoint("done", "done@prog", "throughput"),),
)
WINDOW = Window(
    region="foo[abi:cxx11]",
    arm="treated",
    pair=7,
    level=0.25,
    speedup=0.25,
    effective_ns=400_000_000,
    wall_ns=500_000_000,
    delay_ns=100_000_000,
    start_ns=5,
    settle_ns=6,
    selected_samples=100,
    samples=400,
    cpus=0.2,
    points=(Visits("done", 12, 1000, 399_000_000, 6), Visits("other", 0)),
    half_effective_ns=200_000_000,
    audit={"owed_ns": 10, "signals": 3},
)
END = End("duration", 0, 500, 400, 1_000_003, 9, {"signals_lost": 1}, ("a message",))


def write(path):
    with ProfileWriter(path) as writer:
        writer.header(HEADER)
        writer.startup(42)
        writer.region(Region("foo[abi:cxx11]", "function", "/bin/prog"))
        writer.region(Region("foo[abi:cxx11]", "function", "/bin/prog"))
        writer.window(WINDOW)
        writer.runtime(43)
        writer.samples("foo[abi:cxx11]", 300, 210.123)
        writer.samples("other", 5)
        writer.end(END)
    return path


def test_what_is_written_is_read(tmp_path):
    profile = read_profile(write(tmp_path / "p.jsonl"))
    assert profile.header == HEADER
    assert profile.windows == (WINDOW,)
    assert profile.regions == (Region("foo[abi:cxx11]", "function", "/bin/prog"),)
    assert profile.samples == {"foo[abi:cxx11]": 300, "other": 5}
    assert profile.serial == {"foo[abi:cxx11]": 210.12}
    assert (profile.startup_ns, profile.runtime_ns, profile.end) == (42, 43, END)
    assert not profile.truncated


@pytest.mark.parametrize("name", ["größe", "a\udcffb", 'quote"\n', "main.c:100:7", "[unknown]"])
def test_any_name_survives(tmp_path, name):
    with ProfileWriter(tmp_path / "p") as writer:
        writer.header(HEADER)
        writer.samples(name, 1)
    assert read_profile(tmp_path / "p").samples == {name: 1}


@pytest.mark.parametrize(
    ("arm", "void", "expected"),
    [
        ("treated", None, ["experiment", "throughput-point", "throughput-point"]),
        ("placebo", None, ["experiment", "throughput-point", "throughput-point"]),
        ("dilation", None, ["window"]),
        ("plain", None, ["window"]),
        ("treated", "throttled", ["window"]),
    ],
)
def test_only_what_coz_knows_has_its_record_names(tmp_path, arm, void, expected):
    from dataclasses import replace

    window = replace(WINDOW, arm=arm, void=void)
    with ProfileWriter(tmp_path / "p") as writer:
        writer.header(HEADER)
        writer.window(window)
    records = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    assert [record["type"] for record in records[1:]] == expected
    assert records[1]["duration"] == 400_000_000 and records[1]["selected"] == "foo[abi:cxx11]"
    assert read_profile(tmp_path / "p").windows == (window,)


def test_a_file_cut_off_anywhere_can_be_read(tmp_path):
    whole = write(tmp_path / "p").read_bytes()
    first = whole.index(b"\n") + 1
    cut = tmp_path / "cut"
    for size in range(first, len(whole) - 1):
        cut.write_bytes(whole[:size])
        profile = read_profile(cut)
        assert profile.header == HEADER and profile.end is None
        # Cut at either side of a newline nothing is lost, else one record is.
        complete = whole[:size].endswith(b"\n") or whole[size : size + 1] == b"\n"
        assert profile.truncated is not complete


def test_zeros_at_the_end_count_as_cut_off(tmp_path):
    path = write(tmp_path / "p")
    with path.open("ab") as file:
        file.write(b"\0" * 4096)
    assert read_profile(path).truncated


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_a_killed_writer_leaves_everything_it_wrote(tmp_path, signal):
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        from causal.profile import Header, ProfileWriter
        writer = ProfileWriter(sys.argv[1])
        writer.header(Header("x", ("y",), 1, ""))
        for n in range(1000):
            writer.samples("a", 1)
        os.kill(os.getpid(), signal.SIG{signal})
        """
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "p")], check=False)
    assert read_profile(tmp_path / "p").samples == {"a": 1000}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\x7fELF\x02\x01\x01\x00" + bytes(100), "not a causal-bpf profile"),
        (b'{"type":"startup","time":1}\n', "not a causal-bpf profile"),
        (b"startup\ttime=1\n", "not a causal-bpf profile"),
        (b"[1, 2]\n", "not a causal-bpf profile"),
        (b'{"type":"causal-bpf","version":99,"program":"causal-bpf 7.0"}\n', "format version 99"),
        (b'{"type":"causal-bpf"}\n', "damaged at line 1"),
        (b'{"type":"causal-bpf","version":1}\n', "damaged at line 1"),
    ],
)
def test_other_files_are_refused_with_a_remedy(tmp_path, content, message):
    path = tmp_path / "p"
    path.write_bytes(content)
    with pytest.raises(CausalError, match=message) as caught:
        read_profile(path)
    assert caught.value.hint and caught.value.exit_code == 1


@pytest.mark.parametrize(
    "line",
    [b"garbage", b'{"type":"experiment","arm":"treated"}', b'{"type":"samples","location":"a","count":"many"}', b"{}"],
)
def test_damage_before_the_end_names_the_line(tmp_path, line):
    path = write(tmp_path / "p")
    lines = path.read_bytes().splitlines()
    lines.insert(2, line)
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(CausalError, match="line 3"):
        read_profile(path)


def test_records_of_later_programs_are_skipped(tmp_path):
    path = write(tmp_path / "p")
    lines = path.read_bytes().splitlines()
    lines.insert(2, b'{"type":"latency-point","name":"x","arrivals":1}')
    path.write_bytes(b"\n".join(lines))
    assert read_profile(path).end == END


def test_missing_file_and_directory(tmp_path):
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(CausalError, match="cannot read"):
            read_profile(path)


def test_an_existing_file_is_refused_unless_forced(tmp_path):
    path = tmp_path / "p"
    path.write_text("precious")
    with pytest.raises(CausalError, match="exists") as caught:
        ProfileWriter(path)
    assert "--force" in caught.value.hint and path.read_text() == "precious"
    with ProfileWriter(path, force=True) as writer:
        writer.header(HEADER)
    assert read_profile(path).header == HEADER


def test_force_replaces_a_link_and_not_what_it_points_to(tmp_path):
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("precious")
    link.symlink_to(precious)
    with ProfileWriter(link, force=True) as writer:
        writer.header(HEADER)
    assert precious.read_text() == "precious" and not link.is_symlink()


def test_a_missing_directory_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(CausalError, match="cannot create") as caught:
        ProfileWriter(tmp_path / "no" / "p")
    assert caught.value.hint


def test_a_full_disk_names_the_file():
    with ProfileWriter("/dev/full") as writer, pytest.raises(CausalError, match=r"/dev/full.*disk is full") as caught:
        writer.header(HEADER)
    assert caught.value.hint


def test_a_record_that_did_not_fit_is_cut_off_again(tmp_path, monkeypatch):
    real_write = os.write
    room = 40

    def short_of_space(fd, data):
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[:room])

    path = tmp_path / "p"
    with ProfileWriter(path) as writer:
        writer.header(HEADER)
        size = path.stat().st_size
        monkeypatch.setattr("causal.profile.os.write", lambda fd, data: _once(short_of_space, fd, data))
        with pytest.raises(CausalError, match="full"):
            writer.window(WINDOW)
        monkeypatch.undo()
        assert path.stat().st_size == size
        writer.end(END)
    assert read_profile(path).end == END


def _once(write, fd, data):
    # The first write is short, the next one finds the disk full.
    if _once.calls:
        raise OSError(errno.ENOSPC, "No space left on device")
    _once.calls += 1
    return write(fd, data)


_once.calls = 0


def test_devices_need_no_force():
    with ProfileWriter("/dev/null") as writer:
        writer.header(HEADER)


def test_each_record_is_in_the_file_when_the_call_returns(tmp_path):
    writer = ProfileWriter(tmp_path / "p")
    writer.header(HEADER)
    writer.samples("a", 1)
    assert read_profile(tmp_path / "p").samples == {"a": 1}
    writer.close()
    writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_under_sudo_the_file_belongs_to_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "23456")
    ProfileWriter(tmp_path / "p").close()
    status = (tmp_path / "p").stat()
    assert (status.st_uid, status.st_gid) == (12345, 23456)


def test_reading_a_profile_needs_no_numpy_and_no_bcc():
    code = "import sys, causal.profile; print({'numpy', 'statsmodels', 'bcc', 'rich'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"
