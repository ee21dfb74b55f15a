"""End to end: how a number of executions is spent, and when no further one is started."""

import random
import types
from collections import Counter

import numpy as np
import pytest

from causal.planning import Planner
from causal.profile import Header, ProfileWriter, ProgressPoint, read_profile
from causal.regions import RegionTable
from causal.repetition import END_TO_END, Repetitions
from causal.windows import Arm, EngineOptions
from tests.unit.window_fixture import reading

MS = 1_000_000


class Engine:
    """Measures nothing: every execution takes 100 ms, of which a treated one gets half granted."""

    options = EngineOptions()

    def __init__(self):
        self.plans = []
        self.extended = 0
        self.samples = np.zeros(4, np.uint64)
        self.waits = {}

    def begin_open(self, plan):
        self.plans.append(plan)

    def extend(self, length_ns):
        self.extended += 1

    def region_samples(self):
        return self.samples.copy()

    def region_waits(self, finished=False):
        return dict(self.waits)

    def end_open(self, point):
        self.samples[1] += 100
        delay = 50 * MS if self.plans[-1].arm is Arm.TREATED else 0
        return reading(100 * MS, 100 * MS - delay, points=[point], selected_samples=100, samples=100)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    import causal.repetition

    monkeypatch.setattr(causal.repetition.time, "sleep", lambda seconds: None)


@pytest.fixture
def repeat(tmp_path):
    """Run with so many executions; `statuses` are those of the children in turn."""

    def run(executions, statuses=(), interrupted=lambda: False, polls=3, can_pause=True, duration_s=None):
        pending = iter(statuses)
        run.children = []

        def start():
            status = next(pending, 0)
            left = iter([None] * polls)
            child = types.SimpleNamespace(status=None)

            def poll():
                if status == "never" or next(left, "done") is None:
                    return None
                child.status = status
                return status

            child.poll = poll
            run.children.append(child)
            return child

        run.engine, run.statuses = Engine(), []
        table = RegionTable("thread")
        table.region_for_thread("one")
        planner = Planner(random.Random(1))
        with ProfileWriter(tmp_path / "profile.jsonl", force=True) as writer:
            writer.header(Header("test", ("x",), 0, "", {}, {}, (ProgressPoint(END_TO_END, kind=END_TO_END),)))
            runs = Repetitions(
                run.engine, table, writer, planner, start, lambda: None, interrupted, run.statuses.append,
                lambda: can_pause, duration_s,
            )  # fmt: skip
            run.result = runs.run(executions)
            run.pairs = runs.pairs
        run.windows = read_profile(tmp_path / "profile.jsonl").windows
        return run

    return run


@pytest.mark.parametrize("executions", [1, 2, 3, 4, 5, 10, 41])
def test_no_more_executions_than_asked_for(repeat, executions):
    run = repeat(executions)
    assert executions - 1 <= len(run.children) <= executions
    assert len(run.windows) == len(run.children)
    assert run.result == ("exit", run.children[-1])


def test_the_first_is_plain_and_the_others_come_in_pairs(repeat):
    run = repeat(30)
    assert run.windows[0].arm == "plain"
    arms = {}
    for window in run.windows[1:]:
        arms.setdefault(window.pair, []).append(window.arm)
    assert run.pairs == len(arms)
    for own in arms.values():
        assert Counter(own) - Counter(["dilation"]) == Counter(["treated", "placebo"])
    assert {window.region for window in run.windows[1:]} == {"one"}


def test_without_pauses_all_are_plain(repeat):
    run = repeat(9, can_pause=False)
    assert [window.arm for window in run.windows] == ["plain"] * 9 and run.pairs == 0
    assert len(repeat(9, statuses=[0, 0, 7], can_pause=False).windows) == 2


@pytest.mark.parametrize("can_pause", [True, False])
def test_the_time_is_over(repeat, monkeypatch, can_pause):
    clock = iter(range(0, 10**12, 50 * MS))
    monkeypatch.setattr("causal.repetition.time.monotonic_ns", lambda: next(clock))
    run = repeat(1000, duration_s=20, can_pause=can_pause)
    assert run.result[0] == "duration"
    assert 3 <= len(run.children) < 400
    assert run.statuses[-1].duration_s <= 21
    assert repeat(5, duration_s=3600, can_pause=can_pause).result[0] == "exit"


@pytest.mark.parametrize("can_pause", [True, False])
def test_one_that_fails_as_the_time_is_over(repeat, monkeypatch, can_pause):
    clock = iter(range(0, 10**12, 50 * MS))
    monkeypatch.setattr("causal.repetition.time.monotonic_ns", lambda: next(clock))
    executions = len(repeat(1000, duration_s=20, can_pause=can_pause).children)
    clock = iter(range(0, 10**12, 50 * MS))
    run = repeat(1000, statuses=[*[0] * (executions - 1), 7], duration_s=20, can_pause=can_pause)
    assert len(run.children) == executions
    assert run.result == ("exit", run.children[-1]) and run.result[1].status == 7


def test_each_execution_is_one_visit(repeat):
    run = repeat(5)
    assert {(window.points[0].name, window.points[0].delta) for window in run.windows} == {(END_TO_END, 1)}


def test_while_it_runs_the_deadline_is_moved(repeat):
    assert repeat(1, polls=5).engine.extended == 5


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_a_failing_command_is_not_repeated(repeat, failing):
    run = repeat(20, statuses=[*[0] * failing, 7])
    assert len(run.children) == failing + 1
    assert run.result[1].status == 7
    # What failed may have done less than the others.
    assert len(run.windows) == max(failing, 1)


def test_interrupted_in_the_middle(repeat):
    count = iter(range(1000))
    run = repeat(20, interrupted=lambda: next(count) > 30)
    assert run.result[0] == "interrupt"
    assert 0 < len(run.windows) < 20


def test_interrupted_while_a_command_hangs(repeat):
    asked = iter(range(1000))
    run = repeat(5, statuses=["never"], interrupted=lambda: next(asked) > 10)
    reason, child = run.result
    assert reason == "interrupt" and child.status is None
    assert run.windows == ()


def test_what_is_shown(repeat):
    run = repeat(9)
    assert run.statuses[0].activity == "plain"
    assert run.statuses[-1].rates[END_TO_END] == pytest.approx(10)
    assert run.statuses[-1].pairs >= 2
