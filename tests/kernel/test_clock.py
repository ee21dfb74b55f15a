"""The clock itself: it moves only in a window of its arm, and it stops by itself when nobody is there to stop it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from causal.progress import parse_spec, resolve
from causal.symbols.elf import Binary
from causal.symbols.libraries import libraries_of
from causal.windows import Arm, WindowPlan
from tests.kernel.profiler import wait_until

# bcc's own, once for each string it is given.
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")

MS = 1_000_000


@pytest.fixture
def target(engine, launch, regions_of, programs, tmp_path):
    """A program of two threads on the clock, and its regions by name; its rounds are in `rounds()`."""
    child = launch(programs / "counted", tmp_path / "rounds")
    described, regions = regions_of(programs / "counted")

    wait_until(lambda: is_known(engine, child, described), "the stub to register")
    return child, regions


def is_known(engine, child, described):
    """Whether it can be paused, and its code is known: its mappings were read after that."""
    registered = engine.registered(child.pid)
    described.refresh()
    return registered


@pytest.fixture
def rounds(tmp_path):
    path = tmp_path / "rounds"
    return lambda: int.from_bytes(path.read_bytes(), "little")


@pytest.fixture
def granted(engine):
    """G, in ns."""
    return lambda: int(engine._kernel.bpf["clocks"][0].granted)


def assert_runs_on(rounds):
    """The target makes progress, and is not paused for long at any time."""
    for _ in range(3):
        before = rounds()
        wait_until(lambda before=before: rounds() > before + 2, "rounds of the target", patience_s=20)


def test_the_clock_grows_by_what_was_sampled(engine, target, granted):
    _, regions = target
    before = granted()
    engine.begin(WindowPlan(Arm.TREATED, regions["work_a"], 0.5, 50 * MS, 400 * MS))
    reading = wait_until(engine.poll, "the end of a window")
    assert reading.selected_samples > 20
    # A tick may grant before the edge is cut and be counted after it.
    assert reading.delay_ns == pytest.approx(reading.selected_ns / 2, rel=0.1)
    assert 20 * MS < reading.selected_ns <= 1.1 * 400 * MS
    assert reading.effective_ns == reading.wall_ns - reading.delay_ns
    assert reading.wall_ns == pytest.approx(400 * MS, rel=0.1)
    assert granted() >= before + reading.delay_ns


@pytest.mark.parametrize(
    ("arm", "moves", "pauses"),
    [
        (Arm.PLAIN, False, False),
        (Arm.PLACEBO, True, False),
        (Arm.TREATED, True, True),
        (Arm.DILATION, True, True),
    ],
)
def test_what_the_arms_do(engine, target, rounds, arm, moves, pauses):
    _, regions = target
    engine.begin(WindowPlan(arm, regions["work_a"], 1.0, 50 * MS, 300 * MS))
    reading = wait_until(engine.poll, "the end of a window")
    assert (reading.delay_ns > 20 * MS) == moves
    assert (reading.counters["pause_ns"] > 20 * MS) == pauses
    assert (reading.counters["signals"] > 0) == moves
    assert_runs_on(rounds)


def test_what_is_given_is_in_the_baseline_too(engine, launch, regions_of, workloads):
    """The shorter side of a barrier is worth nothing, and half of itself once the longer one takes no time."""
    program = workloads / "barrier"
    main = Binary.load(program)
    for probe in resolve(parse_spec("progress"), main, libraries_of(main)):
        engine.probes.attach_points(0, probe.path, [probe.file_offset])
    # Two threads that take turns on one CPU seldom owe anything: each is paid for by the other's turn.
    child = launch(program, 4000, 3000, "--apart")
    described, regions = regions_of(program)
    wait_until(lambda: is_known(engine, child, described), "the stub to register")
    engine.give({regions["work_a"]: 1.0})
    try:
        found = {}
        for arm in (Arm.PLACEBO, Arm.TREATED):
            engine.begin(WindowPlan(arm, regions["work_b"], 0.5, 100 * MS, 700 * MS))
            found[arm] = wait_until(engine.poll, "the end of a window")
    finally:
        engine.give({})
    base, treated = found[Arm.PLACEBO], found[Arm.TREATED]
    assert base.counters["pause_ns"] > 5 * MS and base.counters["placebo_ns"] == 0
    assert base.effective_ns == base.wall_ns - base.delay_ns
    # All of work_a is granted, and in the treated window half of work_b as well.
    assert base.delay_ns == pytest.approx(base.counters["others_ns"], rel=0.15)
    assert treated.delay_ns == pytest.approx(treated.counters["others_ns"] + treated.selected_ns / 2, rel=0.15)
    rates = [reading.points[0].visits / reading.effective_ns for reading in (base, treated)]
    assert rates[1] > 1.05 * rates[0]  # the truth is twice the rate


@pytest.fixture
def outside_load(workload):
    """Programs that are not ours use every CPU as well."""
    for _ in os.sched_getaffinity(0):
        workload("worksleep", 10_000, 0)


@pytest.mark.parametrize("arm", [Arm.TREATED, Arm.DILATION])
def test_nobody_pauses_for_longer_than_was_granted(engine, launch, regions_of, workloads, outside_load, arm):
    """Also when there are more threads than cores, and others use the cores, which then never idle."""
    threads = 3
    child = launch(workloads / "checksum", 1_000_000, 3000, "--threads", threads)
    target, regions = regions_of(workloads / "checksum")
    wait_until(lambda: is_known(engine, child, target), "the stub to register")
    settle_ns = 5 * MS
    engine.begin(WindowPlan(arm, regions["mix_lane"], 0.5, settle_ns, 800 * MS))
    reading = wait_until(engine.poll, "the end of a window")
    assert reading.delay_ns > 0
    # What was owed when the window began may be paid in it: that of the settle time and of the tick that cut it.
    owed_before = 2 * settle_ns * len(engine.cpus)
    assert reading.counters["pause_ns"] < threads * 1.3 * (reading.delay_ns + owed_before) + reading.counters["late_ns"]


def test_the_clock_stops_at_the_end_of_a_window(engine, target, granted, rounds):
    _, regions = target
    before = granted()
    end_ns = engine.begin(WindowPlan(Arm.TREATED, regions["work_a"], 1.0, 20 * MS, 200 * MS))
    time.sleep(max(end_ns - time.monotonic_ns(), 0) / 1e9 + 0.1)
    after = granted()
    assert after > before + 20 * MS
    time.sleep(0.3)
    assert granted() == after
    assert_runs_on(rounds)


def test_dead_mans_switch(engine, target, granted, rounds):
    """A window that has no end, and a profiler that never comes back to move its deadline."""
    _, regions = target
    before = granted()
    engine.begin_open(WindowPlan(Arm.TREATED, regions["work_a"], 1.0, 0, 200 * MS))
    time.sleep(0.3)
    after = granted()
    assert after > before + 20 * MS
    signals = engine.counters()["signals"]
    time.sleep(0.3)
    assert granted() == after
    counters = engine.counters()
    assert counters["signals"] == signals
    assert counters["expired"] > 0
    assert_runs_on(rounds)


def test_no_window_no_pauses(engine, target, granted, rounds):
    engine.stop()
    before, signals = granted(), engine.counters()["signals"]
    assert_runs_on(rounds)
    assert granted() == before and engine.counters()["signals"] == signals


def test_the_stub_takes_its_signal_and_no_other(target, programs, tmp_path):
    """And takes nothing from the program, nor gives it anything."""

    def signals(pid):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return {line[:6]: int(line[8:], 16) for line in lines if line.startswith(("SigCgt", "SigBlk"))}

    child, _ = target
    with subprocess.Popen([programs / "counted", tmp_path / "others"], process_group=0) as alone:
        wait_until(lambda: (tmp_path / "others").exists() and (tmp_path / "others").read_bytes() > bytes(8), "a round")
        expected = signals(alone.pid)
        alone.kill()
    found = signals(child.pid)
    own = 1 << (signal.SIGURG - 1)
    assert not expected["SigCgt"] & own
    assert found == {**expected, "SigCgt": expected["SigCgt"] | own}


def test_threads_that_are_born_and_joined_within_a_window(engine, launch, regions_of, workloads):
    """What signals cost them is on the clock of whoever waits for their end, and they leave nothing behind."""
    child = launch(workloads / "coz_example", 2000, 1900, "--apart")
    described, regions = regions_of(workloads / "coz_example")
    wait_until(lambda: is_known(engine, child, described), "the stub to register")
    engine.begin(WindowPlan(Arm.PLACEBO, regions["work_b"], 0.5, 50 * MS, 400 * MS))
    reading = wait_until(engine.poll, "the end of a window")
    assert reading.counters["pauses"] > 10
    # Most of it may fall on threads that wait for others anyway, which is rightly none of the program's time. None at
    # all was left where what a thread had cost was forgotten with it.
    assert reading.effective_ns < reading.wall_ns - reading.counters["placebo_ns"] // 20
    assert len(engine.threads()) < 10


def test_children_are_known_by_their_first_sample(engine, launch, regions_of, programs):
    """They have what fork() gave them; user space has not met a single one of them."""
    launch(programs / "broods")
    described, regions = regions_of(programs / "broods")
    described.refresh()
    before, worked = engine.counters(), int(engine.region_samples()[regions["work"]])
    engine.tick(True)

    def sampled():
        return engine.counters()["samples"] - before["samples"]

    wait_until(lambda: sampled() > 300, "samples", patience_s=20)
    engine.tick(False)
    samples, now = sampled(), engine.counters()
    # Who has given back its memory at its end has no stack any more: a quarter of the samples on a busy machine.
    assert now["in_scope"] - before["in_scope"] > 0.6 * samples
    assert int(engine.region_samples()[regions["work"]]) - worked > 0.5 * samples
    assert len(engine.processes()) > 20 and len(engine.spaces_in_use()) == 1
