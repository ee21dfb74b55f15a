"""What uprobes cost: the dearest place of a point counts; a share of the program above the budget is said."""

import pytest

from causal.analysis.probes import probe_messages, probe_share
from causal.probe_costs import ProbeCost, cost_of
from causal.profile import End, Header, Profile, Visits, Window
from causal.progress import Probe

MEASURED = {False: 600, True: 17_000}


def probe(cheap, path="/bin/prog", symbol="step"):
    return Probe(path, 0x1000, 0x1000, symbol, cheap)


def test_the_dearest_place_counts():
    assert cost_of([probe(True)], MEASURED) == ProbeCost(600, False)
    assert cost_of([probe(True), probe(False)], MEASURED) == ProbeCost(17_000, True)
    assert cost_of([], MEASURED) is None and cost_of([probe(True)], {}) is None


def test_a_wrapper_of_a_system_call_has_a_tracepoint(monkeypatch):
    monkeypatch.setattr("causal.probe_costs.events_if_readable", lambda: frozenset({"syscalls:sys_exit_write"}))
    libc = "/lib/x86_64-linux-gnu/libc.so.6"
    assert cost_of([probe(False, libc, "__write")], MEASURED).instead == "tracepoint:syscalls:sys_exit_write"
    assert cost_of([probe(False, libc, "malloc")], MEASURED).instead == ""
    assert cost_of([probe(False, "/bin/prog", "write")], MEASURED).instead == ""


def profile(visits, cost, budget=0.1):
    """One second of a program that keeps one CPU busy, sampled every ms."""
    window = Window(
        "", "plain", 0, 0.0, 0.0, 10**9, wall_ns=10**9, samples=1000, points=(Visits("step", visits, None, None),)
    )
    header = Header("causal-bpf", ("prog",), 1, "2026-01-01T00:00:00+00:00", options={"overhead": budget})
    end = End("exit", 0, 1000, 1000, 1_000_000, 10**9, {"probe_costs": [{"point": "step", **cost}]})
    return Profile(header, (), (window,), end=end)


@pytest.mark.parametrize(("visits", "share"), [(10_000, 0.17), (1_000, 0.017), (0, 0.0), (10**6, 1.0)])
def test_share_of_the_programs_time(visits, share):
    found = profile(visits, {"ns": 17_000, "stepped": True, "instead": ""})
    assert probe_share(found, found.windows, "step", 17_000) == pytest.approx(share)


def test_above_the_budget_the_cheaper_kinds_are_named():
    cost = {"ns": 17_000, "stepped": True, "instead": "tracepoint:syscalls:sys_exit_write"}
    (said,) = probe_messages(found := profile(10_000, cost), found.windows)
    assert said.startswith("counting step takes 17% of the program's time (a uprobe of 17.0 us a visit")
    for cheaper in ("-p tracepoint:syscalls:sys_exit_write", "causal.h", "sampled:FILE:LINE", "push, nop or endbr64"):
        assert cheaper in said
    (said,) = probe_messages(found := profile(10_000, {"ns": 17_000, "stepped": False, "instead": ""}), found.windows)
    assert "tracepoint" not in said and "push" not in said


@pytest.mark.parametrize("costs", [None, 7, {"point": "step"}, [{"point": "step"}], ["step"], [{"ns": "x"}]])
def test_a_profile_with_something_else_there(costs):
    found = profile(10_000, {"ns": 17_000, "stepped": False})
    found.end.diagnosis["probe_costs"] = costs
    assert not list(probe_messages(found, found.windows))


def test_within_the_budget_nothing_is_said():
    found = profile(1_000, {"ns": 17_000, "stepped": True, "instead": ""})
    assert not list(probe_messages(found, found.windows))
    generous = profile(10_000, {"ns": 17_000, "stepped": True, "instead": ""}, budget=0.2)
    assert not list(probe_messages(generous, generous.windows))
