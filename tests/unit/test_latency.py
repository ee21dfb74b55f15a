"""Latencies: Little's law from sums, the balance of arrivals and departures, and the sign of a gain."""

import dataclasses
from types import SimpleNamespace

import pytest

from causal.analysis import analyse
from causal.analysis.latency import imbalance, mean_latency_s
from causal.analysis.results import Verdict
from causal.counting import Edges, InFlight
from causal.profile import Header, Profile, Region, Visits, Window

WORD = 1 << 64


def cut(now, requests, granted=0, lowest=0, origin=10**18):
    """What the kernel has counted by `now` of (begin, end) times."""
    began = [b for b, _ in requests if b is not None and b <= now]
    ended = [e for _, e in requests if e <= now]
    points = [
        SimpleNamespace(visits=len(times), moments=sum(t + origin for t in times) % WORD) for times in (began, ended)
    ]
    pair = SimpleNamespace(integral=0, lowest=lowest)
    return SimpleNamespace(now_ns=now + origin + granted, granted=granted, cost=0, points=points, latencies=[pair])


def reading(requests, start, end, **how):
    edges = Edges(
        cut(start, requests, **how), cut((start + end) // 2, requests, **how), cut(end, requests, **how), False
    )
    return InFlight(0, 0, 1).read(edges)


def integral(requests, start, end):
    return sum(max(0, min(e, end) - max(b if b is not None else -(10**9), start)) for b, e in requests)


def test_the_integral_is_exact_also_across_the_edges_of_the_window():
    requests = [(0, 50), (10, 500), (120, 130), (125, 900), (300, 310)]
    for start, end in ((100, 400), (0, 1000), (60, 127)):
        seen = reading(requests, start, end)
        assert seen.in_flight_ns == integral(requests, start, end)
        assert seen.visits == sum(start < e <= end for _, e in requests)
        assert seen.arrivals == sum(start < b <= end for b, _ in requests)


def test_requests_that_were_in_flight_before_anybody_looked():
    requests = [(None, 150), (None, 180), (110, 190)]
    assert reading(requests, 100, 200, lowest=-2).in_flight_ns == integral(requests, 100, 200)


def window(number, arm, requests, latency_ns, arrivals=None):
    point = Visits("wait", requests, None, None, requests // 2, arrivals or requests, requests * latency_ns)
    level = 0.0 if arm == "plain" else 0.5
    return Window(
        "" if arm == "plain" else "serve", arm, number, level, level if arm == "treated" else 0.0, 10**9,
        wall_ns=10**9, samples=1000, selected_samples=500, points=(point,), half_effective_ns=10**9 // 2,
    )  # fmt: skip


def profile(treated_ns, placebo_ns, arrivals=None):
    windows = [window(0, "plain", 100, placebo_ns)]
    for number in range(1, 9):
        noise = 1 + 0.01 * (number % 3)
        windows += [
            window(number, "treated", 100, round(treated_ns * noise), arrivals),
            window(number, "placebo", 100, round(placebo_ns * noise), arrivals),
        ]
    header = Header("causal-bpf", ("prog",), 1, "2026-01-01T00:00:00+00:00")
    return Profile(header, (Region("serve", "function"),), tuple(windows))


def test_a_smaller_latency_is_a_gain_and_a_larger_one_a_loss():
    (better,) = analyse(profile(3_000_000, 4_000_000)).regions
    assert (better.kind, better.unit_of_point, better.verdict) == ("latency", "s", Verdict.OPTIMISE)
    assert better.baseline_rate == pytest.approx(0.004)
    assert better.points[-1].program_speedup == pytest.approx(0.25, abs=0.01)
    (worse,) = analyse(profile(5_000_000, 4_000_000)).regions
    assert worse.points[-1].program_speedup == pytest.approx(-0.25, abs=0.01)


def test_no_number_where_requests_pile_up():
    found = profile(3_000_000, 4_000_000, arrivals=120)
    (result,) = analyse(found).regions
    assert result.verdict is Verdict.UNDECIDED and "pile up" in result.explanation
    assert result.points[-1].program_speedup is None and result.points[-1].raw is not None
    assert imbalance(profile(3, 4).windows, "wait") is None
    ended = [dataclasses.replace(w, points=(dataclasses.replace(w.points[0], arrivals=0),)) for w in found.windows]
    assert "none began" in imbalance(ended, "wait")
    assert mean_latency_s([], "wait", 1) is None
