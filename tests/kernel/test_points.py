"""Progress points of every kind: exact counts (primes) of all kinds in one run, and a latency with a known answer."""

from pathlib import Path

import pytest

from causal.symbols.elf import Binary

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
    run = record(program, times, "--late", late, options=options, point=None)
    assert run.finished.code == 0, run.finished
    visits = run.losses["visits"]
    expected = {name: count for name, (_, count) in points.items() if count is not None}
    expected |= {"between": times, "in-process": times, "as-coz": 2 * times, "request": times}
    assert {name: visits.get(name) for name in expected} == expected
    # 300 ms of work and more: a visit for each 0.1 ms of it, as samples find it.
    assert visits["sampled"] > 500
    assert not [text for text in run.profile.end.messages if "never attached" in text]


def test_latencies_of_a_full_queue(record, workloads):
    options = [
        "-p",
        "served",
        "--latency",
        "wait=put,served",
        "--only",
        "serve",
        "--speedups",
        "25",
        "--duration",
        "3s",
    ]
    run = record(workloads / "queue", 3000, 500, options=options, point=None)
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
    # Three wait and one is served, or three wait and one is being put.
    time_ns = sum(w.effective_ns for w in run.profile.windows[1:] if len(w.points) == 3)
    assert 3 < exact / time_ns < 5
