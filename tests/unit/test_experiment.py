"""The course of an experiment run, against a kernel and a clock that are made up: nothing waits."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest

from causal.analysis import analyse
from causal.experiment import Experiments, Surroundings, audit, busy_cpus
from causal.planning import Planner, PlanOptions
from causal.profile import Header, ProfileWriter, ProgressPoint, read_profile
from causal.regions import RegionTable
from causal.windows import Arm, EngineOptions
from tests.unit.window_fixture import point, reading

S = 1_000_000_000
PERIOD_NS = 1_000_000


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now_ns = 5 * S

    def sleep(self, seconds):
        self.now_ns += round(seconds * 1e9)

    def __call__(self):
        return self.now_ns


class Kernel:
    """A program in which region 1 takes all of one CPU: sped up by s, a visit takes s less of its time."""

    def __init__(self, time, rate=100.0, busy=1.0):
        self.options = EngineOptions(period_ns=PERIOD_NS)
        self.time, self.rate, self.busy, self.given = time, rate, busy, 0.0
        self.plans = []
        self.ticks = True
        self.stops = 0
        self.samples = np.zeros(4, np.uint64)
        self.waits = {}
        self._plan = None
        self._end_ns = 0

    def begin(self, plan):
        self.plans.append(plan)
        self._plan = plan
        self._end_ns = self.time() + plan.settle_ns + plan.length_ns
        return self._end_ns

    def poll(self):
        if self._plan is None or not self.ticks or self.time() < self._end_ns:
            return None
        return self._reading(self._plan)

    def stop(self):
        self._plan = None
        self.stops += 1

    def region_samples(self):
        return self.samples.copy()

    def region_waits(self, finished=False):
        return dict(self.waits)

    def _reading(self, plan):
        wall = plan.length_ns
        speedup = plan.speedup if plan.arm in (Arm.TREATED, Arm.DILATION) else 0.0
        # While the region runs, virtual time stands still for s of it.
        given = 0.0 if plan.arm is Arm.PLAIN else self.given
        effective = round(wall / (1 + self.busy * speedup + given))
        rate = self.rate / (1 - self.busy * speedup / 2) if plan.arm is Arm.TREATED else self.rate
        visits = round(rate * effective / S)
        selected = round(self.busy * wall / PERIOD_NS) if plan.region == 1 else 0
        self.samples[1] += round(self.busy * wall / PERIOD_NS)
        return reading(
            wall, effective, points=[point(visits, effective)] * 16, start_ns=self._end_ns - wall,
            selected_samples=selected, selected_ns=selected * PERIOD_NS, samples=selected,
            counters={"pauses": 3, "selected": selected},
        )  # fmt: skip


@dataclasses.dataclass
class Bench:
    """Everything a run needs; `run` returns why it ended, `profile` what it wrote."""

    path: object
    seed: int = 1
    options: PlanOptions = dataclasses.field(default_factory=PlanOptions)
    only: frozenset | None = None
    levels: list | None = None
    given: frozenset = frozenset()

    def __post_init__(self):
        self.time = Time()
        self.kernel = Kernel(self.time)
        self.statuses = []
        self.alive_until = self.interrupted_from = float("inf")
        self.throttled = lambda: 0
        self.refreshes = 0
        self.prepared_in = []  # whether a window was running then

    def _prepare(self):
        self.prepared_in.append(self.time() < self.kernel._end_ns)

    def _refresh(self):
        self.refreshes += 1

    def run(self, duration_s, points=("p",)):
        table = RegionTable("thread")
        for label in ("one", "two", "three"):
            table.region_for_thread(label)
        world = Surroundings(
            alive=lambda: self.time() < self.alive_until,
            interrupted=lambda: self.time() >= self.interrupted_from,
            refresh=self._refresh,
            prepare=self._prepare,
            throttled=lambda: self.throttled(),
            observe=self.statuses.append,
            now_ns=self.time,
            sleep=self.time.sleep,
        )
        planner = Planner(random.Random(self.seed), self.levels, self.only, self.options, given=self.given)
        self.started_ns = self.time()
        with ProfileWriter(self.path) as writer:
            named = tuple(ProgressPoint(name) for name in points)
            writer.header(Header("test", ("x",), 1, "", {}, {"unit": "thread"}, named))
            self.experiments = Experiments(self.kernel, table, writer, planner, points, world)
            return self.experiments.run(None if duration_s is None else round(duration_s * S))

    @property
    def elapsed_s(self):
        return (self.time() - self.started_ns) / S

    @property
    def profile(self):
        return read_profile(self.path)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "profile.jsonl")


def arms_by_pair(profile):
    pairs = {}
    for window in profile.windows:
        if window.arm != "plain":
            pairs.setdefault(window.pair, []).append(window.arm)
    return pairs


def test_a_whole_run(bench):
    assert bench.run(60) == "duration"
    pairs = arms_by_pair(bench.profile)
    assert len(pairs) == bench.experiments.pairs > 10
    for arms in pairs.values():
        assert sorted(set(arms) - {"dilation"}) == ["placebo", "treated"]
        assert len(arms) == len(set(arms))
    assert bench.profile.windows[0].arm == "plain"  # the first look
    assert sum(window.arm == "plain" for window in bench.profile.windows) > 1
    assert bench.kernel.stops > 0
    result = analyse(bench.profile).regions[0]
    assert result.region == "one"
    for found in result.points:
        assert found.raw == pytest.approx(found.speedup / 2, abs=0.05)


@pytest.mark.parametrize("duration", [1, 3, 10, 30.5])
def test_the_duration_is_kept(bench, duration):
    assert bench.run(duration) == "duration"
    # The last pair is cut short, but not below what can be measured.
    assert duration - 0.3 <= bench.elapsed_s <= duration + 1.5


def test_levels_are_fitted_to_the_time(bench, tmp_path):
    bench.run(20)
    long = Bench(tmp_path / "long.jsonl")
    long.run(600)
    levels = [len({w.level for w in each.profile.windows if w.arm == "treated"}) for each in (bench, long)]
    assert levels[0] == 4 and levels[1] == 20


def test_interrupted_in_the_middle_of_a_window(bench):
    bench.interrupted_from = 10 * S  # windows began at 5
    assert bench.run(60) == "interrupt"
    assert 5 <= bench.elapsed_s < 5.2
    recorded_ns = sum(window.wall_ns for window in bench.profile.windows)
    assert recorded_ns < 5 * S
    assert len(bench.kernel.plans) == len(bench.profile.windows) + 1  # the one that was cut is not written
    assert bench.kernel.stops > 0


def test_the_target_ends_in_the_middle_of_a_window(bench):
    bench.alive_until = 9.8 * S
    assert bench.run(None) == "exit"
    assert 4.8 <= bench.elapsed_s < 5
    for arms in list(arms_by_pair(bench.profile).values())[:-1]:
        assert {"placebo", "treated"} <= set(arms)


def test_the_target_ended_before_it_began(bench):
    bench.alive_until = 0
    assert bench.run(30) == "exit"
    assert bench.kernel.plans == [] and bench.profile.windows == ()


def test_windows_in_which_the_quota_throttled_are_void(bench):
    count = iter(range(10_000))
    bench.throttled = lambda: int(next(count) % 8 == 1)
    bench.run(60)
    void = [window for window in bench.profile.windows if window.void]
    assert void and all("quota" in window.void for window in void)
    assert len(void) < len(bench.profile.windows) / 2
    assert any("void" in message for message in analyse(bench.profile).diagnosis.messages)


def test_without_throttling_nothing_is_void(bench):
    bench.throttled = lambda: 7  # of long ago
    bench.run(20)
    assert not any(window.void for window in bench.profile.windows)


def test_a_clock_that_does_not_tick_is_not_waited_for_for_ever(bench):
    bench.kernel.ticks = False
    assert bench.run(10) == "duration"
    assert bench.profile.windows == ()


def test_a_program_of_which_nothing_is_in_scope(bench):
    bench.kernel.busy = 0.0
    assert bench.run(10) == "duration"
    assert {window.arm for window in bench.profile.windows} == {"plain"}


def test_rare_visits_make_long_windows(bench, tmp_path):
    bench.kernel.rate = 20.0
    bench.run(60)
    often = Bench(tmp_path / "often.jsonl")
    often.run(60)

    def length(each):
        return np.median([w.effective_ns for w in each.profile.windows if w.arm == "placebo"])

    assert length(bench) == pytest.approx(2 * S, rel=0.1)  # 40 visits
    assert length(often) == pytest.approx(0.45 * S, rel=0.1)  # three quarters of the settle time


def test_treated_windows_are_longer_so_that_they_see_as_much(bench):
    bench.levels = [100]
    bench.run(60)
    treated, placebo = (
        np.median([plan.length_ns for plan in bench.kernel.plans if plan.arm is arm])
        for arm in (Arm.TREATED, Arm.PLACEBO)
    )
    assert treated == pytest.approx(2 * placebo, rel=0.1)


def test_the_placebo_has_the_clock_of_the_pair_and_is_recorded_without_a_speedup(bench):
    bench.levels = [60]
    bench.run(20)
    placebo = [plan for plan in bench.kernel.plans if plan.arm is Arm.PLACEBO]
    assert placebo and {plan.speedup for plan in placebo} == {0.6}
    recorded = [window for window in bench.profile.windows if window.arm == "placebo"]
    assert {(window.speedup, window.level) for window in recorded} == {(0.0, 0.6)}


def test_only_the_regions_asked_for(bench):
    bench.only = frozenset({2})
    bench.run(20)
    assert {window.region for window in bench.profile.windows if window.arm != "plain"} == {"two"}


def test_the_same_seed_gives_the_same_run(bench, tmp_path):
    again = Bench(tmp_path / "again.jsonl")
    other = Bench(tmp_path / "other.jsonl", seed=2)
    for each in (bench, again, other):
        each.run(30)
    assert bench.kernel.plans == again.kernel.plans != other.kernel.plans


def test_what_takes_its_time_is_done_before_each_window(bench):
    bench.run(20)
    assert len(bench.prepared_in) == len(bench.kernel.plans) and not any(bench.prepared_in)


def test_what_is_shown_while_it_goes_on(bench):
    bench.run(30)
    assert bench.refreshes > 100
    last = bench.statuses[-1]
    assert last.duration_s == 30 and 25 < last.elapsed_s <= 31
    assert last.pairs > 3 and last.rates["p"] == pytest.approx(100, rel=0.1)
    assert Counter(status.activity.rpartition(" ")[2] for status in bench.statuses).keys() >= {"treated", "placebo"}
    region, gain, pairs = last.best[0]
    assert region == "one" and gain == pytest.approx(0.5, abs=0.1) and pairs > 3


def test_without_a_point_there_is_still_a_run(bench):
    assert bench.run(5, points=()) == "duration"
    assert {"treated", "placebo"} <= {window.arm for window in bench.profile.windows}


def test_busy_cpus():
    assert busy_cpus(reading(2 * S, S, selected_ns=3 * S)) == pytest.approx(1.5)
    assert busy_cpus(reading(0, 0)) == 0


def test_the_audit_has_names_of_its_own_and_all_of_them():
    empty = audit({})
    assert set(empty.values()) == {0}
    full = audit({"pause_ns": 5, "signals_void": 2, "selected": 9, "something else": 1})
    assert full.keys() == empty.keys()
    assert (full["paid_ns"], full["voided"], full["exempted_samples"]) == (5, 2, 9)


def test_windows_are_stretched_by_what_is_given(bench, tmp_path):
    bench.run(30)
    usual = Counter({w.arm: w.wall_ns for w in bench.profile.windows})
    given = Bench(tmp_path / "given.jsonl", given=frozenset({3}))
    given.kernel.given = 0.5  # pauses of the baseline
    given.run(30)
    treated = [w for w in given.profile.windows if w.arm == "placebo"]
    assert treated[-1].wall_ns == pytest.approx(1.5 * usual["placebo"], rel=0.1)
    assert treated[-1].effective_ns == pytest.approx(usual["placebo"], rel=0.1)
    assert all(w.region != "three" for w in given.profile.windows)
