"""Which waits belong to which regions, and what experiments are drawn by."""

import io
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from causal.activity import RecentActivity
from causal.analysis import analyse
from causal.combining import combine
from causal.loading import BPF_DIRECTORY, system_calls
from causal.off_cpu import blocked_threads, count_idle, waiting_since
from causal.profile import End, Header, ProfileWriter, ProgressPoint, read_profile
from causal.regions import RegionTable
from causal.report.table import TableReporter
from causal.waiting import WaitClass, WaitMode, by_region, class_of_call, mode_of
from causal.windows import EngineOptions

S = 1_000_000_000
WAITS = {
    (0, WaitClass.IDLE): 7, (3, WaitClass.IO): 10, (3, WaitClass.SLEEP): 5, (3, WaitClass.LOCK): 100,
    (4, WaitClass.RUNQUEUE): 1000, (4, WaitClass.IO): 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("line", {3: 15, 4: 1}),
        ("function", {3: 15, 4: 1}),
        ("syscall", {3: 15, 4: 1}),
        ("wait", {WaitClass.IO: 11, WaitClass.SLEEP: 5, WaitClass.RUNQUEUE: 1000, WaitClass.IDLE: 7}),
        ("thread", {}),
    ],
)
def test_what_a_speedup_would_shorten(unit, expected):
    assert by_region(WAITS, mode_of(unit)) == expected


def test_regions_have_the_numbers_of_the_kernel_side():
    table = RegionTable("wait")
    table.add_waits()
    assert [table.region(int(kind)).name for kind in WaitClass] == ["I/O", "lock", "runqueue", "sleep", "idle"]
    calls = RegionTable("syscall")
    calls.add_calls({0: "read", 74: "fsync"})
    assert (calls.region(1).name, calls.region(75).name, calls.region(500).name) == ("read", "fsync", "system call 499")


def test_with_call_sites_classes_are_split():
    sites = {900: (WaitClass.IO, 3), 901: (WaitClass.SLEEP, 3), 902: (WaitClass.IO, 8)}
    assert by_region(WAITS, WaitMode.BY_CLASS, sites) == Counter({900: 10, 901: 5, 902: 0})


def test_calls_have_the_classes_of_the_kernel_side():
    body = (BPF_DIRECTORY / "waits.h").read_text().partition("class_of_call(u64 number)")[2].partition("\n}")[0]
    theirs = {}
    for cases, kind in re.findall(r"((?:\tcase[^\n]*\n)+)\t\treturn WAIT_(\w+);", body):
        theirs.update((int(number), kind) for number in re.findall(r"case (\d+):", cases))
    assert len(theirs) > 20 and theirs[202] == "LOCK"
    assert {number: class_of_call(number).name for number in range(1024)} == {
        number: theirs.get(number, "IO") for number in range(1024)
    }


def test_which_waits_are_for_nothing_that_happens_in_a_window():
    threads = [(3, 8 * S), (3, 9 * S - 1), (3, 9 * S), (4, 1 * S), (0, 0)]
    bpf = {"threads": {tid: SimpleNamespace(waits_in=place, wait_ns=ns) for tid, (place, ns) in enumerate(threads)}}
    assert waiting_since(bpf, 0) == []
    assert waiting_since(bpf, 3) == [8 * S, 9 * S - 1, 9 * S]
    assert count_idle(waiting_since(bpf, 3), 10 * S) == 2


def test_recent_system_calls_have_names():
    names = system_calls()
    assert [names[number] for number in (0, 74, 426, 436, 449, 455, 462)] == [
        "read", "fsync", "io_uring_enter", "close_range", "futex_waitv", "futex_wait", "mseal",
    ]  # fmt: skip


def test_threads_that_wait_already(tmp_path):
    for tid, state, call in (
        (70, "S", "202 0x7f"), (71, "D", "-1 0x7f"), (72, "R", "running"), (73, "S", "0 0x3"), (74, "S", "230 0"),
    ):  # fmt: skip
        task = tmp_path / "70" / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{tid} (a) b) {state} 1 70 0")
        (task / "syscall").write_text(call + "\n")
    (tmp_path / "70" / "task" / "75").mkdir()  # it has just ended
    assert sorted(blocked_threads(70, tmp_path)) == [
        (70, WaitClass.LOCK, 202), (71, WaitClass.IO, None), (73, WaitClass.IO, 0), (74, WaitClass.SLEEP, 230),
    ]  # fmt: skip
    assert not list(blocked_threads(99, tmp_path))


class FakeKernel:
    options = EngineOptions(period_ns=1_000_000)

    def __init__(self):
        self.samples, self.waits, self.endless = np.zeros(8, np.uint64), {}, {}

    def region_samples(self):
        return self.samples.copy()

    def region_waits(self, finished):
        return dict(self.waits) if finished else dict(Counter(self.waits) + Counter(self.endless))


def test_waiting_counts_like_running_but_as_one_thread():
    kernel, clock = FakeKernel(), SimpleNamespace(now=0)
    activity = RecentActivity(kernel, lambda: clock.now)
    clock.now, kernel.samples[1], kernel.waits = S, 500, {2: S // 2, 3: 4 * S}
    activity.update()
    assert activity.weights == pytest.approx({1: 500, 2: 500, 3: 1000}) and not activity.crowds
    clock.now, kernel.waits = 2 * S, {2: S // 2, 3: 4 * S, 4: 30 * S}
    activity.update()
    assert activity.weights == pytest.approx({1: 400, 2: 400, 3: 800, 4: 1000})
    assert activity.crowds == {4: 30}
    # A pool that waits without end has no weight, however many threads it has.
    clock.now, kernel.endless = 3 * S, {5: 2 * S, 6: 9 * S}
    activity.update()
    assert not {5, 6} & activity.weights.keys() and activity.crowds == {4: 30, 6: 9}


def recorded(path, spent_ns):
    header = Header("test", ("prog",), 1, "", options={"unit": "function"}, progress_points=(ProgressPoint("p"),))
    with ProfileWriter(path) as writer:
        writer.header(header)
        writer.samples("f", 10)
        writer.waits("f", {"I/O": spent_ns})
        writer.waits("", {"lock": 2 * S, "I/O": S})
        writer.end(End("duration", 0, 10, 10, run_ns=12 * S, diagnosis={"startup_s": 2.0}))
    return read_profile(path)


def test_waits_are_kept_and_reported(tmp_path):
    first, second = recorded(tmp_path / "a", 4 * S), recorded(tmp_path / "b", S)
    assert first.waits == {"f": {"I/O": 4 * S}, "": {"lock": 2 * S, "I/O": S}}
    assert combine([first, second]).waits == {"f": {"I/O": 5 * S}, "": {"lock": 4 * S, "I/O": 2 * S}}
    analysis = analyse(first)
    assert analysis.waits == pytest.approx({"I/O": 0.5, "lock": 0.2})
    out = io.StringIO()
    TableReporter(Console(file=out, width=80)).render(analysis)
    assert "Threads off the CPU, on average: I/O 0.50, lock 0.20." in out.getvalue()


def test_modes():
    assert {unit: mode_of(unit) for unit in ("file", "module", "process")} == {
        "file": WaitMode.OF_CODE, "module": WaitMode.OF_CODE, "process": WaitMode.NONE,
    }  # fmt: skip
