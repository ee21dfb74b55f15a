"""COZ beside us in the accuracy benchmark: its files, its estimate, and which questions it is asked."""

import math
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import accuracy, cases, coz  # noqa: E402

BY_NAME = {case.name: case for case in cases.ALL_CASES}


def experiment(speedup, visits, duration_ns=500_000_000):
    return (
        f"experiment\tselected=/src/barrier.c:4\tspeedup={speedup:.2f}\tduration={duration_ns}\tselected-samples=9\n"
        f"throughput-point\tname=other\tdelta=77\nthroughput-point\tname=progress\tdelta={visits}\n"
    )


def profile_text(speedup, visits):
    body = "".join(experiment(speedup, count) for count in (*visits, 1))  # the last one is cut off
    return f"startup\ttime=1\n{body}runtime\ttime=2\nsamples\tlocation=/src/barrier.c:4\tcount=9\n"


def test_the_last_experiment_is_left_out():
    read = coz.parse_profile(profile_text(0.5, [20, 30]))
    assert read == [coz.Experiment(0.5, 500_000_000, 20), coz.Experiment(0.5, 500_000_000, 30)]
    assert coz.parse_profile("startup\ttime=1\nruntime\ttime=2\n") == []


def test_gain_is_that_of_cozs_viewer():
    base = coz.estimate_rate(coz.parse_profile(profile_text(0.0, [50, 50, 50])))
    fast = coz.estimate_rate(coz.parse_profile(profile_text(0.5, [60, 65])))
    assert base.value == pytest.approx(100) and base.variance == pytest.approx(0)
    assert fast.value == pytest.approx(125)
    predicted = coz.estimate_gain(base, fast)
    assert predicted.gain == pytest.approx(0.2)
    # Two experiments of half a second with residuals of 2.5 visits: variance 2 * 12.5 / 1 s.
    assert fast.variance == pytest.approx(25)
    assert predicted.high - predicted.gain == pytest.approx(1.96 * 0.8 * 5 / 125)


def test_one_experiment_gives_a_number_without_an_interval():
    single = coz.estimate_rate([coz.Experiment(0.0, 10**9, 100)])
    assert math.isinf(single.variance)
    predicted = coz.estimate_gain(single, coz.Rate(200.0, 1.0))
    assert predicted == coz.Predicted(0.5, None, None)


def test_no_experiment_or_no_visit_is_a_failure():
    with pytest.raises(coz.CozFailed, match="no experiment"):
        coz.estimate_rate([])
    with pytest.raises(coz.CozFailed, match="not visited"):
        coz.estimate_gain(coz.Rate(0.0, 1.0), coz.Rate(1.0, 1.0))


@pytest.mark.parametrize("name", ["tcp", "forker", "pingpong-processes", "thread-barrier"])
def test_other_processes_and_threads_are_no_question_for_coz(name):
    assert not coz.can_answer(BY_NAME[name])


def test_every_other_function_is_found_on_its_line():
    for case in filter(coz.can_answer, cases.ALL_CASES):
        lines = (cases.WORKLOADS / f"{case.program}.c").read_text().splitlines()
        assert lines[coz.find_line(case) - 1] == f"WORKER({case.function})"


def test_time_is_shared_by_one_execution_per_level(tmp_path, monkeypatch):
    commands = []

    def call(command, timeout_s):
        commands.append(command)
        speedup = int(command[command.index("--fixed-speedup") + 1]) / 100
        visits = round(50 / (1 - 0.4 * speedup))
        Path(command[command.index("-o") + 1]).write_text(profile_text(speedup, [visits] * 3))

    monkeypatch.setattr(coz, "_call", call)
    levels = coz.predict(BY_NAME["barrier"], 30.0, random.Random(1), tmp_path)
    assert levels[0.5].gain == pytest.approx(0.2, abs=0.01)
    assert levels[1.0].gain == pytest.approx(0.4, abs=0.01)
    assert sorted(int(command[command.index("--fixed-speedup") + 1]) for command in commands) == [0, 25, 50, 75, 100]
    assert all(command[-2:] == ["--seconds", "6"] for command in commands)
    assert commands[0][commands[0].index("--fixed-line") + 1] == "barrier.c:4"
    assert commands[0][commands[0].index("---") + 1] == str(coz.COZ_PROGRAMS / "barrier")


def test_without_coz_the_option_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(coz, "is_installed", lambda: False)
    with pytest.raises(SystemExit):
        accuracy.main(["--coz"])
    assert "apt-get install coz-profiler" in capsys.readouterr().err


def test_the_report_says_how_coz_was_asked():
    notes = accuracy.coz_notes()
    assert "--fixed-line" in notes and "--fixed-speedup" in notes and "\n" not in notes
