"""The overhead benchmark: how cost is split, and a whole run with made-up programs and profilers."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import cases, coz, overhead, timing  # noqa: E402

from causal.profile import Header, Profile, Visits, Window  # noqa: E402


def test_cost_is_split_into_three_parts():
    base, full = timing.Timing(10.0, 9.5, 951), timing.Timing(13.5, 11.0, 951)
    cost = overhead.split_cost(base, 10.0, full)
    assert cost.startup == pytest.approx((2.5 - 0.5) / 10)
    assert cost.sampling == pytest.approx(0.5 / 10)
    assert cost.delays == pytest.approx(1.0 / 10)
    assert cost.total == pytest.approx(13.5 / 10 - 1)


def test_parts_that_are_shown_add_up_to_the_total_that_is_shown():
    costs = [overhead.Cost(0.1, 0.2, 0.3), overhead.Cost(0.3, 0.1, 0.2), overhead.Cost(0.2, 0.3, 0.1)]
    assert overhead.median_cost(costs) == overhead.Cost(0.2, 0.2, 0.2)


def make_window(arm, visits, wall_ns, void=None):
    return Window("f", arm, 1, 0.5, 0.0, wall_ns // 2, wall_ns, points=(Visits("progress", visits),), void=void)


def test_sampling_is_measured_in_placebos_and_in_wall_time():
    windows = (
        make_window("placebo", 90, 1_000_000_000),
        make_window("placebo", 105, 1_000_000_000),
        make_window("placebo", 1, 1_000_000_000, void="throttled"),
        make_window("treated", 10, 1_000_000_000),
    )
    header = Header("causal-bpf 0", ("x",), 1, "", {}, {}, ())
    assert timing.rate_in_placebos(Profile(header, windows=windows), "progress") == pytest.approx(97.5)
    with pytest.raises(timing.TimingFailed, match="no placebo"):
        timing.rate_in_placebos(Profile(header, windows=windows[3:]), "progress")


def test_time_of_the_rounds_is_read_from_the_closing_line():
    read = timing.read_timing("rounds 101 seconds 2.5 rate 50.0\n", 3.0)
    assert read == timing.Timing(3.0, 2.0, 101)
    assert read.rate == pytest.approx(50)
    with pytest.raises(timing.TimingFailed, match="no rate"):
        timing.read_timing("rounds 1 seconds 2.5 rate 0.0\n", 3.0)


def test_programs_are_chosen_by_name():
    names = [subject.name for subject in timing.select_subjects(["lock-local", "pingpong-2ms"], False)]
    assert names == ["lock-local", "pingpong-2ms"]
    assert {subject.name for subject in timing.select_subjects([], False)} >= set(timing.DEFAULT_CASES)
    with pytest.raises(KeyError):
        timing.select_subjects(["nonsense"], False)


def test_coz_is_not_asked_about_several_processes():
    (tcp,) = timing.select_subjects(["tcp"], True)
    assert tcp.coz_command is None
    (barrier,) = timing.select_subjects(["barrier"], True)
    assert barrier.coz_command[0] == str(coz.COZ_PROGRAMS / "barrier")


def test_default_programs_exist():
    assert set(timing.DEFAULT_CASES) <= {case.name for case in cases.ALL_CASES}


@pytest.fixture
def made_up_runs(monkeypatch):
    """100 rounds/s alone; each profiler takes its own start-up and slows the rounds down."""
    costs = {"causal-bpf": (1.0, 1.5), "--fixed-speedup": (2.0, 1.1), "coz": (2.0, 1.4), "": (0.0, 1.0)}
    limits = []

    def run(subject, wrapper, *limit):
        limits.append(limit)
        words = {*wrapper, Path(wrapper[0]).name} if wrapper else {""}
        extra_s, factor = next(cost for word, cost in costs.items() if word in words)
        rounds = int(limit[1]) if limit[0] == "--rounds" else 201
        steady_s = (rounds - 1) / 100 * factor
        return timing.Timing(steady_s + extra_s + 0.1, steady_s, rounds)

    monkeypatch.setattr(timing, "run", run)
    monkeypatch.setattr(timing, "build", lambda subjects, with_coz: None)
    monkeypatch.setattr(timing, "placebo_rate", lambda path, point: 100 / 1.2)
    stated = {"startup_s": 0.9, "sampling": 0.18, "delays": None}
    monkeypatch.setattr(timing, "stated_overhead", lambda profiler, path: stated)
    monkeypatch.setattr(coz, "is_installed", lambda: True)
    return limits


def test_whole_benchmark(made_up_runs, tmp_path, capsys):
    target = tmp_path / "overhead.md"
    command = ["--only", "barrier", "--only", "tcp", "--seconds", "10", "--repetitions", "2", "--coz"]
    assert overhead.main([*command, "--json", "--markdown", str(target)]) == 0
    by_name = {one["name"]: one for one in json.loads(capsys.readouterr().out)["programs"]}
    base_s = 9.99 + 0.1
    ours, theirs = by_name["barrier"]["ours"], by_name["barrier"]["coz"]
    assert ours == {key: pytest.approx(value / base_s) for key, value in
                    {"startup": 1.0, "sampling": 0.2 * 9.99, "delays": 0.3 * 9.99}.items()}  # fmt: skip
    assert theirs == {key: pytest.approx(value / base_s) for key, value in
                      {"startup": 2.0, "sampling": 0.1 * 9.99, "delays": 0.3 * 9.99}.items()}  # fmt: skip
    assert by_name["tcp"]["coz"] is None and by_name["tcp"]["coz_failure"] == "not built for COZ"
    assert ("--rounds", "1000") in made_up_runs
    text = target.read_text()
    assert "| barrier | 100 | 59.4 | 9.9 | 19.8 | 29.7 | 59.4 | 19.8 | 9.9 | 29.7 |" in text
    assert "| mean |" in text and "start-up 0.90 s, sampling 18.0 %, delays -" in text


def test_a_failure_is_reported_not_raised(made_up_runs, monkeypatch, capsys):
    def fail(path, point):
        raise timing.TimingFailed("no placebo window")

    monkeypatch.setattr(timing, "placebo_rate", fail)
    assert overhead.main(["--only", "barrier"]) == 1
    assert "barrier: failed: no placebo window" in capsys.readouterr().out
