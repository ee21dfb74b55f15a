"""What profiling costs the target: how it is measured, and when it is worth a sentence."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from causal.analysis.perturbation import measure_perturbation, perturbation_messages
from causal.profile import End, Header, Profile, Visits, Window
from causal.undisturbed import time_left_alone, watch

SECOND = 1_000_000_000


class Time:
    """A clock that only sleeping moves, and a program that makes progress meanwhile."""

    def __init__(self, rate: float) -> None:
        self.now_s, self.rate = 0.0, rate

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)

    def totals(self) -> dict[str, int]:
        return {"done": round(self.now_s * self.rate)}


def test_visits_are_counted_in_slices() -> None:
    time = Time(1000)
    seen = watch(time.totals, 2.0, lambda: True, time.now_ns, time.sleep)
    assert seen is not None
    assert sum(seen.slices_ns) == pytest.approx(2e9)
    assert len(seen.visits["done"]) == len(seen.slices_ns)
    assert sum(seen.visits["done"]) == pytest.approx(2000, abs=1)


def test_a_target_that_ends_meanwhile_tells_nothing() -> None:
    time, answers = Time(1000), iter([True, True, False])
    assert watch(time.totals, 2.0, lambda: next(answers), time.now_ns, time.sleep) is None


@pytest.mark.parametrize(("duration", "expected"), [(None, 0), (5, 0), (20, 1), (30, 1.5), (600, 2)])
def test_only_recordings_that_last_a_while_leave_the_target_alone(duration: float | None, expected: float) -> None:
    assert time_left_alone(duration) == expected


def profile(placebo: list[int], undisturbed: object, arm: str = "placebo") -> Profile:
    windows = tuple(
        Window("f", arm, i, 0.0, 0.0, SECOND, SECOND, points=(Visits("done", visits),))  # type: ignore[arg-type]
        for i, visits in enumerate(placebo)
    )
    end = End(reason="duration", exit_status=None, samples=1, samples_in_scope=1, period_ns=1, run_ns=1,
              diagnosis={"undisturbed": undisturbed}, messages=())  # fmt: skip
    return Profile(Header("causal-bpf 0", ("x",), 1, "", {}, {}, ()), windows=windows, end=end)


def alone(rate: int) -> dict[str, object]:
    return {"slices_ns": [SECOND // 10] * 10, "visits": {"done": [rate // 10] * 10}}


def test_the_cost_is_the_share_of_the_throughput() -> None:
    recorded = profile([400, 400, 800, 800], alone(1000))  # it became faster meanwhile: what it was last counts
    seen = measure_perturbation(recorded, recorded.windows)
    assert seen is not None
    assert seen.share == pytest.approx(0.2)
    (message,) = perturbation_messages(recorded, recorded.windows)
    assert "20% of the throughput" in message and "800 visits/s in baselines, 1,000" in message
    assert "waiting less" not in message


def test_what_it_means_for_waits_is_said_where_there_are_any() -> None:
    recorded = replace(profile([800] * 4, alone(1000)), waits={"": {"lock": SECOND}, "f": {"I/O": SECOND}})
    (message,) = perturbation_messages(recorded, recorded.windows)
    assert "gains up to 1.25 times" in message
    locks_only = replace(recorded, waits={"": {"lock": SECOND}})
    (message,) = perturbation_messages(locks_only, recorded.windows)
    assert "gains up to" not in message


def test_without_experiments_plain_windows_are_the_baseline() -> None:
    recorded = profile([800] * 4, alone(1000), arm="plain")
    seen = measure_perturbation(recorded, recorded.windows)
    assert seen is not None
    assert seen.profiled == pytest.approx(800)


@pytest.mark.parametrize("rates", [[950, 950, 950, 950], [2000, 0, 1600, 0]], ids=["small", "uncertain"])
def test_what_is_small_or_uncertain_is_not_mentioned(rates: list[int]) -> None:
    recorded = profile(rates, alone(1000))
    seen = measure_perturbation(recorded, recorded.windows)
    assert seen is not None
    assert not list(perturbation_messages(recorded, recorded.windows))


def damaged() -> Iterator[object]:
    yield None
    yield 3
    yield {"visits": [1]}
    yield {"visits": {"done": 4}}
    yield {"visits": {"done": [1, 2]}}
    yield {"visits": {"done": [100, 100]}, "slices_ns": [1]}
    yield {"visits": {"done": [100, "x"]}, "slices_ns": [1, 1]}
    yield {"visits": {"done": [100, 100]}, "slices_ns": [0, 0]}
    yield {"visits": {"done": [1, 0]}, "slices_ns": [SECOND, SECOND]}
    yield {"visits": {"never": [100, 100]}, "slices_ns": [SECOND, SECOND]}


@pytest.mark.parametrize("kept", list(damaged()))
def test_damaged_or_scarce_counts_say_nothing(kept: object) -> None:
    recorded = profile([800, 800], kept)
    assert measure_perturbation(recorded, recorded.windows) is None
