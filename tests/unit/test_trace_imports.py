"""Traces from the files of other profilers."""

import cProfile
import json

import pytest

from causal.drt.reading import read_traces
from causal.errors import CausalError, UsageError
from causal.tracing.callgrind import read_callgrind
from causal.tracing.imports import import_traces
from causal.tracing.inputs import RunInput
from causal.tracing.journal import write_traces
from cli.main import main

# As callgrind 3.19 writes: names are given once, cob= holds for one call, f'2 is f in a recursion.
CALLGRIND = """# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 1
cmd:  ./prog {file} -v
part: 1

positions: line
events: Ir Dr
summary: 700 60

ob=(1) /bin/prog
fl=(1) prog.c
fn=(1) main
5 9 1
cfn=(2) work
calls=5 3
* 400 20
cob=(2) /lib/libc.so.6
cfi=(3) puts.c
cfn=(3) puts
calls=2 1
* 50 2
cfn=(2)
calls=7 3
* 100 2

fn=(2)
3 90 2
cfn=(4) work'2
calls=4 3
* 10 1

ob=(2)
fl=(3)
fn=(3)
1 40 1
cfn=(5) strlen
calls=6 0
* 4 1

totals: 700 60
"""


@pytest.fixture
def callgrind(tmp_path):
    (tmp_path / "input").write_bytes(b"x" * 123)
    path = tmp_path / "callgrind.out.1"
    path.write_text(CALLGRIND.format(file=tmp_path / "input"))
    return path


def test_callgrind_counts_each_call_once(callgrind):
    found = read_callgrind(callgrind)
    assert found.calls == {
        ("/bin/prog", "work"): 16,
        ("/lib/libc.so.6", "puts"): 2,
        ("/lib/libc.so.6", "strlen"): 6,
    }
    assert found.totals == {"Ir": 700, "Dr": 60}


def test_callgrind_becomes_a_trace_with_the_size_of_its_input(callgrind):
    assert import_traces([callgrind]) == [
        {
            "id": "callgrind.out.1",
            "inputs": {"size_bytes": 123},
            "outputs": {"instructions": 700, "Dr": 60},
            "calls": {"work": 16, "puts": 2, "strlen": 6},
        }
    ]
    table = [RunInput("callgrind.out.1", {}, {"n": 9.0})]
    assert import_traces([callgrind], table)[0]["inputs"] == {"n": 9.0}


@pytest.mark.parametrize(
    "cut, message", [("events", "no complete callgrind file"), ("fn=(2)\n3", r"name \(2\) was never")]
)
def test_damaged_callgrind_files(callgrind, cut, message):
    text = callgrind.read_text()
    text = text[: text.index(cut)] if cut == "events" else text.replace("cfn=(2) work\n", "")
    callgrind.write_text(text)
    with pytest.raises(CausalError, match=message):
        read_callgrind(callgrind)


def test_cprofile_files_of_a_directory(tmp_path):
    directory = tmp_path / "profiles"
    directory.mkdir()
    for n in (3, 5):
        profile = cProfile.Profile()
        profile.runcall(lambda n=n: [sorted([i]) for i in range(n)])
        profile.dump_stats(directory / f"run{n}")
    inputs = [RunInput(f"run{n}", {}, {"n": float(n)}) for n in (3, 5)]
    first, second = import_traces([directory], inputs)
    assert (first["id"], first["inputs"], first["calls"]["built-in method builtins.sorted"]) == ("run3", {"n": 3}, 3)
    assert second["calls"]["built-in method builtins.sorted"] == 5
    assert first["outputs"]["time_s"] > 0


def test_perf_script_counts_samples_and_probes(tmp_path):
    (tmp_path / "perf.txt").write_text(
        "prog   41/42 [001]  100.000000:     250000 cpu-clock:u: \n"
        "\t    55d0c0 inner+0x10 (/bin/prog)\n"
        "\t    55d0d0 outer(int, char)+0x4 (/bin/prog)\n"
        "\t    7f0000 [unknown] (/lib/x)\n"
        "\n"
        "my prog 41/42 [001]  100.250000:     250000 cpu-clock:u: \n"
        "\t    55d0d0 outer(int, char)+0x14 (/bin/prog)\n"
        "\t    55d0d8 outer(int, char)+0x1c (/bin/prog)\n"
        "\n"
        "prog    41 [000]  100.500000: probe_prog:handle: (55d0)\n"
    )
    (trace,) = import_traces([tmp_path / "perf.txt"], [RunInput("perf.txt", {}, {"n": 1.0})])
    assert trace["calls"] == {"inner": 1, "outer(int, char)": 2, "handle": 1}
    assert trace["outputs"] == {"time_s": 0.5}


def test_perf_script_as_perf_6_1_writes_it(tmp_path):
    """Recorded by `perf record -e probe_calls:step`: names of commands are set to the right."""
    (tmp_path / "perf.txt").write_text(
        "           calls 19786 [001] 20220.447447: probe_calls:step: (557d5abcc380)\n"
        "           calls 19786 [001] 20220.447474: probe_calls:step: (557d5abcc380)\n"
        "           calls 19786 [001] 20220.447486: probe_calls:step: (557d5abcc380)\n"
    )
    (trace,) = import_traces([tmp_path / "perf.txt"], [RunInput("perf.txt", {}, {"n": 3.0})])
    assert (trace["calls"], trace["outputs"]) == ({"step": 3}, {"time_s": 0.000039})


@pytest.mark.parametrize(
    ("form", "lines", "calls"),
    [
        (
            "perf record -e cpu-clock",
            "        checksum 23497 28466.591155:    2004008 cpu-clock:      55ddaaa13934 mix_lane+0x34 (/b/checksum)\n"
            "        checksum 23497 28466.593155:    2004008 cpu-clock:  ffffffff8168d35e charge+0x1e ([kernel])\n"
            "        checksum 23496 28466.600000:    2004008 cpu-clock:      55ddaaa13934 [unknown] (/b/checksum)\n",
            {"mix_lane": 1, "charge": 1},
        ),
        (
            "perf record -g -e task-clock:u",
            "checksum 23524 28467.813793:    2004008 task-clock:u: \n"
            "\t            1934 mix_lane+0x34 (/b/checksum)\n"
            "\t            13ac main+0x28c (/b/checksum)\n"
            "\t           2724a __libc_start_call_main+0x7a (/usr/lib/x86_64-linux-gnu/libc.so.6)\n"
            "\n"
            "checksum 23525 28467.815792:    2004008 task-clock:u: \n"
            "\t            1934 mix_lane+0x34 (/b/checksum)\n"
            "\t           891f5 start_thread+0x305 (/usr/lib/x86_64-linux-gnu/libc.so.6)\n"
            "\n",
            {"mix_lane": 2, "main": 1, "__libc_start_call_main": 1, "start_thread": 1},
        ),
        (
            "perf record --call-graph dwarf",
            "checksum 23543 28469.052402:    2004008 cpu-clock: \n"
            "\t            1934 chain+0x34 (inlined)\n"
            "\t            1934 mix_lane+0x34 (/b/checksum)\n"
            "\n"
            "checksum 23543 28469.054402:    2004008 cpu-clock: \n"
            "\t            19e6 running+0x66 (/b/checksum)\n"
            "\n",
            {"chain": 1, "mix_lane": 1, "running": 1},
        ),
        (
            "-F +srcline",
            "        checksum 23495 28466.583049:    2004008 cpu-clock:      55ddaaa13934 mix_lane+0x34 (/b/checksum)\n"
            "  common.h:56\n"
            "        checksum 23496 28466.585754:    2004008 cpu-clock:      55ddaaa13934 mix_lane+0x34 (/b/checksum)\n"
            "  common.h:56\n",
            {"mix_lane": 2},
        ),
        (
            "names of events of a hybrid CPU",
            "a 1 28466.500000:    200 cpu_core/cycles/P:      55ddaaa13934 f+0x34 (/b/a)\n"
            "a 1 28466.600000:    200 cpu/event=0x3c,umask=1/u:      55ddaaa13934 f+0x34 (/b/a)\n",
            {"f": 2},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_samples_as_perf_script_prints_them(tmp_path, form, lines, calls):
    """All but the last are from perf 6.1, with shorter paths."""
    (tmp_path / "perf.txt").write_text(lines)
    (trace,) = import_traces([tmp_path / "perf.txt"], [RunInput("perf.txt", {}, {"n": 3.0})])
    assert trace["calls"] == calls and trace["outputs"]["time_s"] > 0


def test_csv_keeps_what_it_says(tmp_path):
    (tmp_path / "t.csv").write_text("id,size,T1,T2,f,g\na,1,2,4,0,5\nb,2,6,6,1,0\n")
    assert import_traces([tmp_path / "t.csv"]) == [
        {"id": "a", "inputs": {"size": 1}, "outputs": {"time": 3}, "calls": {"g": 5}},
        {"id": "b", "inputs": {"size": 2}, "outputs": {"time": 6}, "calls": {"f": 1}},
    ]
    traces = read_traces(write_traces(tmp_path, import_traces([tmp_path / "t.csv"])))
    assert (traces.ids, traces.output.tolist()) == (["a", "b"], [3, 6])


def test_what_cannot_be_imported(tmp_path, callgrind):
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(CausalError, match="no file of callgrind"):
        import_traces([tmp_path / "text"])
    with pytest.raises(CausalError, match="does not exist"):
        import_traces([tmp_path / "gone"])
    (tmp_path / "cut").write_bytes(b"\xfb\x01\x02")
    with pytest.raises(CausalError, match="no complete cProfile file"):
        import_traces([tmp_path / "cut"])
    with pytest.raises(CausalError, match="nothing is known about its input"):
        import_traces([callgrind], [RunInput("other", {}, {"n": 1.0})])
    (tmp_path / "t.csv").write_text("id,size,time,f\na,1,2,0\nb,2,6,1\n")
    with pytest.raises(UsageError, match="measure different things"):
        import_traces([callgrind, tmp_path / "t.csv"])


def test_the_command_imports_and_explains(tmp_path, capsys):
    rows = [f"r{i},{i},{i * (1 + 3 * (i % 2))},{i % 2}" for i in range(1, 61)]
    (tmp_path / "t.csv").write_text("id,size,time,slow\n" + "\n".join(rows) + "\n")
    words = ["trace", "-o", str(tmp_path / "traces"), "--import", str(tmp_path / "t.csv")]
    assert main(words) == 0
    assert "60 traces with 1 functions" in capsys.readouterr().out
    assert main(words) == 2
    assert "holds traces" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "traces"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["k"] == 2
