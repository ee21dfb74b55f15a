"""Progress points of every kind: exact counts (primes) of all kinds in one run, and a latency with a known answer."""

import subprocess
import sys
from pathlib import Path

import pytest

from causal.profile import read_profile
from causal.source_points import points_in_source
from causal.symbols.elf import Binary
from tests.kernel.profiler import AHEAD_OF_OTHERS, target_of

STRANGER = "import os, time\nwhile True: os.getppid(); time.sleep(0.001)"
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")


def line_of(source, mark):
    lines = (PROGRAMS / source).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"// {mark}"))


def test_all_kinds_count_exactly(record, programs):
    times, late, program = 1009, 499, programs / "points"
    inlined, sampled = line_of("points.c", "INLINED"), line_of("points.c", "SAMPLED")
    binary = Binary.load(str(program))
    row = next(row for name, row in binary.functions.all_names() if name == "second_copy")
    points = {
        "function": ("visited", times),
        "library": ("syscall@libc", times),
        "line": (f"points.c:{inlined}", 2 * times),
        "address": (f"{binary.vaddr(int(binary.functions.start[row])):#x}", times),
        "always": ("usdt:example:always", times),
        "switched": ("usdt:example:switched", times),
        "event": ("tracepoint:syscalls:sys_exit_getppid", times),
        "late": ("compressBound@libz", late),
        "sampled": (f"sampled:points.c:{sampled}", None),
    }
    options = [word for name, (spec, _) in points.items() for word in ("-p", f"{name}={spec}")]
    options += ["--latency", "between=visited,tracepoint:syscalls:sys_exit_getppid", "--no-pauses"]
    with subprocess.Popen([sys.executable, "-c", STRANGER]) as stranger:  # whose system calls are not the target's
        run = record(program, times, "--late", late, options=options, point=None)
        stranger.kill()
    assert run.finished.code == 0, run.finished
    visits = run.losses["visits"]
    expected = {name: count for name, (_, count) in points.items() if count is not None}
    expected |= {"between": times, "in-process": times, "as-coz": 2 * times, "request": times, "handed over": times}
    assert {name: visits.get(name) for name in expected} == expected
    # 300 ms of work and more: a visit for each 0.1 ms of it, as samples find it.
    assert visits["sampled"] > 500
    assert not [text for text in run.profile.end.messages if "never attached" in text]


PYTHON = Path("/usr/bin/python3.11")
COLLECTS_AND_THROWS = """
import ctypes, gc, os, sys, time
thrower = ctypes.CDLL(sys.argv[1])
time.sleep(0.7)  # libstdc++ is new, and the profiler looks for that a few times a second
caught = thrower.throw_some(211)
[gc.collect() for _ in range(307)]
print(caught, sum(each["collections"] for each in gc.get_stats()), flush=True)
os._exit(0)  # the end of Python collects once more
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="needs the Python of Debian 12, which has USDT points")
def test_usdt_points_of_others(record, programs):
    """Python's have semaphores, those of libstdc++ have none, and that is loaded only later."""
    options = ["-p", "gc=usdt:python:gc-start", "-p", "throw=usdt:libstdcxx:throw@libstdc++", "--no-pauses"]
    run = record(PYTHON, "-c", COLLECTS_AND_THROWS, programs / "thrower.so", options=options, point=None)
    caught, collections = map(int, run.finished.out.split())
    assert caught == 211 and collections >= 307
    assert run.losses["visits"] == {"gc": collections, "throw": caught}


def test_a_process_that_runs_already(start_profiler, programs, tmp_path):
    """Its counters are not connected, but each point of causal.h is a USDT point too; a library is loaded later."""
    times, late, path = 1009, 499, tmp_path / "profile.jsonl"
    words = [programs / "points", str(times), "--late", str(late), "--gate"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        points = ["-p", "late=compressBound@libz", "-p", "work=usdt:causal_progress:in-process"]
        points += ["--latency", "request=usdt:causal_begin:request,usdt:causal_end:request"]
        options = ["--quiet", "--no-pauses", "-u", "function", *points, "-o", path]
        profiler = start_profiler("attach", process.pid, *options)
        target_of(path)
        process.communicate(b"\n")
    assert profiler.wait().code == 0
    visits = read_profile(path).end.diagnosis["visits"]
    assert visits == {"late": late, "work": times, "request": times}
    found = points_in_source(Binary.load(programs / "points"), ())
    assert [place.spec.name for place in found.points] == ["in-process"]
    assert [pair.name for pair in found.latencies] == ["request", "handed over"]


def test_latencies_of_a_full_queue(record, workloads):
    options = [
        "-p",
        "served",
        "--latency",
        "wait=put,served",
        "--only",
        "serve",
        "--speedups",
        "50",
        "--duration",
        "3s",
    ]
    run = record(workloads / "queue", 3000, 500, options=options, point=None, **AHEAD_OF_OTHERS)
    results = {result.progress_point: result for result in run.analysis.regions}
    assert (results["wait"].kind, results["wait"].unit_of_point) == ("latency", "s")
    assert results["served"].kind == "throughput"
    seen = {
        name: [v for w in run.profile.windows for v in w.points if v.name == name] for name in ("wait", "in-process")
    }
    for visits in seen.values():
        assert all(abs(v.arrivals - v.delta) <= 5 for v in visits)  # places, the one served, the one put
    # By uprobes exactly, by counters in the program tick by tick: the same requests in the same windows. Windows that
    # began before the counters were known have only the former.
    both = [(w.points[1], w.points[2]) for w in run.profile.windows[1:] if len(w.points) == 3]
    assert both
    exact, looked_at = (sum(pair[i].in_flight_ns for pair in both) for i in (0, 1))
    assert looked_at == pytest.approx(exact, rel=0.05)
    # A server that is twice as fast takes half as long, and a smaller latency is a gain. Where other programs take
    # much of the CPU it is less: 23 % were seen.
    treated, placebo = (
        [w.points[1] for w in run.profile.windows if w.arm == arm and w.void is None] for arm in ("treated", "placebo")
    )
    fast, slow = (sum(v.in_flight_ns for v in its) / sum(v.delta for v in its) for its in (treated, placebo))
    assert 0.1 < 1 - fast / slow < 0.9
    # Three wait and one is served, or three wait and one is being put.
    time_ns = sum(w.effective_ns for w in run.profile.windows[1:] if len(w.points) == 3)
    assert 3 < exact / time_ns < 5
