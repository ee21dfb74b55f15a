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


def latency_gain(run, region, name, level):
    paces = {}
    for arm in ("treated", "placebo"):
        own = [w for w in run.profile.windows if (w.region, w.arm, w.level) == (region, arm, level)]
        seen = [visits for window in own for visits in window.points if visits.name == name]
        assert len(seen) >= 2, f"{len(seen)} {arm} windows of {region}"
        paces[arm] = sum(v.delta for v in seen) / sum(v.in_flight_ns for v in seen)
    return 1 - paces["placebo"] / paces["treated"]


def test_latency_of_a_full_queue(record, programs):
    options = ["--latency", "wait=put,served", "--only", "serve", "--speedups", "25", "--duration", "5s"]
    run = record(programs / "queue", 3000, 500, options=options, point=None)
    results = {(r.region, r.progress_point): r for r in run.analysis.regions}
    result = results["serve", "wait"]
    assert (result.kind, result.unit_of_point) == ("latency", "s")
    # Three that wait, one that is served, and the one whose place has just become free.
    assert 0.009 < result.baseline_rate < 0.02
    # By uprobes exactly, by counters in the program tick by tick.
    assert latency_gain(run, "serve", "wait", 0.25) == pytest.approx(0.25, abs=0.06)
    assert latency_gain(run, "serve", "in-process", 0.25) == pytest.approx(0.25, abs=0.06)
