"""The accuracy benchmark: reading reports and rates, joining them, and a whole run with a made-up profiler."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import accuracy, cases, prediction, truth  # noqa: E402


def report_text(region="work_a", gains=(0.05, 0.10, 0.15, 0.20), verdict="worth optimising"):
    points = [{"speedup": 0.0, "program_speedup": 0.0, "ci": [0.0, 0.0], "raw": 0.0, "experiments": 9, "visits": 90}]
    for level, gain in zip(cases.LEVELS, gains, strict=True):
        ci = None if gain is None else [gain - 0.02, gain + 0.02]
        points.append({"speedup": level, "program_speedup": gain, "ci": ci, "experiments": 4, "visits": 40})
    other = {"region": "work_z", "progress_point": "progress", "points": [], "verdict": "no effect"}
    wanted = {"region": region, "progress_point": "progress", "points": points, "verdict": verdict}
    return json.dumps({"version": 1, "regions": [other, wanted]})


def test_report_is_read_level_by_level():
    read = prediction.parse_report(report_text(), "work_a")
    assert read.levels[0.5] == prediction.Predicted(0.10, pytest.approx(0.08), pytest.approx(0.12))
    assert read.levels[1.0].gain == 0.20
    assert read.verdict == "worth optimising"
    assert read.experiments == 9 + 4 * 4


def test_levels_without_a_number_stay_empty():
    read = prediction.parse_report(report_text(gains=(None,) * 4, verdict="paced from outside"), "work_a")
    assert all(level.gain is None and level.low is None for level in read.levels.values())
    assert set(read.levels) == set(cases.LEVELS)


@pytest.mark.parametrize("text", ["", "not json", '{"version": 1, "regions": []}', report_text(region="work_b")])
def test_reports_without_the_answer_are_refused(text):
    with pytest.raises(prediction.ProfilerFailed):
        prediction.parse_report(text, "work_a")


def test_rate_is_read_from_the_closing_line():
    assert truth.parse_rate("calls 3\nrounds 500 seconds 2.000000 rate 250.125000\neintr 0\n") == 250.125
    with pytest.raises(ValueError, match="no rate"):
        truth.parse_rate("rounds 1 seconds 2.000000 rate 0.000000\n")


def test_truth_is_the_median_reduction_of_round_time():
    base = {0.0: 100.0, 0.25: 125.0, 0.5: 200.0, 0.75: 400.0, 1.0: 1000.0}
    odd = base | {0.5: 100.0}
    true = truth.combine([base, base, odd])
    assert true[0.25] == truth.Truth(pytest.approx(0.2), 0.0)
    assert true[0.5] == truth.Truth(pytest.approx(0.5), pytest.approx(0.25))


def test_only_the_functions_own_work_is_reduced():
    case = cases.Case("x", "barrier", "work_b", (8000, 6000), 1, ("--flag",))
    assert case.command(0.25)[1:] == ["8000", "4500", "--flag"]
    assert case.command(1.0)[1:] == ["8000", "0", "--flag"]


def test_cases_are_chosen_by_case_or_program():
    assert [case.name for case in cases.select(["tcp"])] == ["tcp"]
    assert {case.name for case in cases.select(["lock"])} == {"lock-critical", "lock-local"}
    assert len({case.name for case in cases.CASES}) == len(cases.CASES)
    with pytest.raises(KeyError):
        cases.select(["nonsense"])


def test_every_case_names_a_worker_of_its_program():
    for case in cases.CASES:
        assert f"WORKER({case.function})" in (cases.WORKLOADS / f"{case.program}.c").read_text()


def test_summary_counts_errors_and_coverage():
    case = cases.CASES[0]
    read = prediction.parse_report(report_text(gains=(0.05, 0.10, 0.15, None)), "work_a")
    true = {level: truth.Truth(gain, 0.0) for level, gain in zip(cases.LEVELS, (0.06, 0.10, 0.25, 0.3), strict=True)}
    summary = accuracy.summarise(accuracy.make_rows(case, read, true))
    assert summary["mean_error_points"] == pytest.approx((1 + 0 + 10) / 3)
    assert summary["max_error_points"] == pytest.approx(10)
    assert summary["coverage"] == pytest.approx(2 / 3)
    assert summary["without_number"] == 1
    assert accuracy.summarise([])["mean_error_points"] is None


@pytest.mark.parametrize(("text", "value"), [("30", 30), ("30s", 30), ("1.5", 1.5), ("2m", 120)])
def test_durations(text, value):
    assert accuracy.seconds(text) == value


def make_fake_profiler(directory, report, exit_code=0):
    script = directory / "fake-profiler"
    script.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        f"pathlib.Path({str(directory / 'calls')!r}).open('a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        f"if sys.argv[1] == 'report': print({report!r})\n"
        f"if {exit_code}: print('error: it broke', file=sys.stderr)\n"
        f"sys.exit({exit_code})\n"
    )
    script.chmod(0o755)
    return script


def fake_rates(monkeypatch):
    rates = dict(zip((0.0, *cases.LEVELS), (100.0, 105.0, 110.0, 120.0, 125.0), strict=True))
    monkeypatch.setattr(truth, "measure_rate", lambda case, speedup, seconds: rates[speedup])
    monkeypatch.setattr(accuracy.subprocess, "run", pass_by_make(subprocess.run))


def pass_by_make(run):
    def wrapped(command, **options):
        return None if command[0] == "make" else run(command, **options)

    return wrapped


def test_whole_benchmark_with_a_fake_profiler(tmp_path, monkeypatch, capsys):
    fake_rates(monkeypatch)
    profiler = make_fake_profiler(tmp_path, report_text())
    status = accuracy.main(
        ["--only-workload", "barrier", "--only-workload", "spin", "--causal-bpf", str(profiler), "--duration", "7s",
         "--json", "--markdown", str(tmp_path / "out.md")]
    )  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    by_name = {case["name"]: case for case in result["cases"]}
    assert status == 1  # the case of work_b finds no such region in the report
    assert "no region work_b" in by_name["barrier-shorter"]["failure"]
    assert by_name["spin"]["rows"][3]["true"] == pytest.approx(0.2)
    assert by_name["spin"]["rows"][3]["covered"] is True
    assert result["machine"]["cpus"] >= 1
    first_call = json.loads((tmp_path / "calls").read_text().splitlines()[0])
    assert first_call[0] == "run"
    assert first_call[first_call.index("--speedups") + 1] == "25,50,75,100"
    assert first_call[first_call.index("--duration") + 1] == "7s"
    assert first_call[first_call.index("--") + 2 :] == ["8000", "6000"]
    assert "| spin | work_a | 100 | 20.0 | 18.0 to 22.0 | 20.0 ±0.0 | +0.0 | yes |" in (tmp_path / "out.md").read_text()


def test_a_failing_profiler_is_reported_not_raised(tmp_path, monkeypatch, capsys):
    fake_rates(monkeypatch)
    profiler = make_fake_profiler(tmp_path, "", exit_code=1)
    assert accuracy.main(["--only-workload", "spin", "--causal-bpf", str(profiler)]) == 1
    assert "error: it broke" in capsys.readouterr().out


def test_repetitions_cover_every_level_in_random_order(monkeypatch):
    asked = []
    monkeypatch.setattr(truth, "measure_rate", lambda case, speedup, seconds: asked.append(speedup) or 1.0)
    for _ in range(5):
        assert set(truth.measure_repetition(cases.CASES[0], 1.0, random.Random(len(asked)))) == {0.0, *cases.LEVELS}
    orders = {tuple(asked[i : i + 5]) for i in range(0, 25, 5)}
    assert len(orders) > 1
