"""The accuracy benchmark: reading reports and rates, joining them, and a whole run with a made-up profiler."""

import contextlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import accuracy, accuracy_tables, cases, prediction, truth  # noqa: E402

SPIN = next(case for case in cases.WORKLOAD_CASES if case.name == "spin")  # speeds up work_a


def report_text(region="work_a", gains=(0.05, 0.10, 0.15, 0.20), verdict="worth optimising"):
    points = [{"speedup": 0.0, "program_speedup": 0.0, "ci": [0.0, 0.0], "raw": 0.0, "experiments": 9, "visits": 90}]
    for level, gain in zip(cases.LEVELS, gains, strict=True):
        ci = None if gain is None else [gain - 0.02, gain + 0.02]
        points.append({"speedup": level, "program_speedup": gain, "ci": ci, "experiments": 4, "visits": 40})
    other = {"region": "work_z", "progress_point": "progress", "points": [], "verdict": "no effect"}
    wanted = {"region": region, "progress_point": "progress", "points": points, "verdict": verdict}
    return json.dumps({"version": 1, "regions": [other, wanted]})


def test_report_is_read_level_by_level():
    read = prediction.parse_report(report_text(), SPIN)
    assert read.levels[0.5] == prediction.Predicted(0.10, pytest.approx(0.08), pytest.approx(0.12))
    assert read.levels[1.0].gain == 0.20
    assert read.verdict == "worth optimising"
    assert read.experiments == 9 + 4 * 4


def test_levels_without_a_number_stay_empty():
    read = prediction.parse_report(report_text(gains=(None,) * 4, verdict="paced from outside"), SPIN)
    assert all(level.gain is None and level.low is None for level in read.levels.values())
    assert set(read.levels) == set(cases.LEVELS)


@pytest.mark.parametrize("text", ["", "not json", '{"version": 1, "regions": []}', report_text(region="work_b")])
def test_reports_without_the_answer_are_refused(text):
    with pytest.raises(prediction.ProfilerFailed):
        prediction.parse_report(text, SPIN)


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
    case = cases.Case("x", "barrier", "work_b", (8000, 6000), (1,), ("--flag",))
    assert case.command()[1:] == ["8000", "6000", "--flag"]
    assert case.truth_command(0.25)[1:] == ["8000", "4500", "--flag"]
    assert case.truth_command(1.0)[1:] == ["8000", "0", "--flag"]


def test_truth_may_need_other_options_and_several_amounts():
    case = cases.Case("x", "phases", "work_a", (800, 1, 400, 2), (0, 2), ("--long",), truth_options=("--brief",))
    assert case.command()[1:] == ["800", "1", "400", "2", "--long"]
    assert case.truth_command(0.25)[1:] == ["600", "1", "300", "2", "--brief"]


def test_cases_are_chosen_by_case_program_or_group():
    quick = cases.SETS["quick"]
    assert [case.name for case in cases.select(["tcp"], quick)] == ["tcp"]
    assert {case.name for case in cases.select(["lock"], quick)} == {"lock-critical", "lock-local"}
    assert {case.name for case in cases.select(["lock"])} > {"lock-critical", "lock-local", "lock-25ms"}
    assert cases.select([], quick) == list(quick)
    with pytest.raises(KeyError):
        cases.select(["nonsense"])


def test_a_case_outside_the_set_is_found_by_its_name():
    quick = cases.SETS["quick"]
    assert [case.name for case in cases.select(["amd-slow"], quick)] == ["amd-slow"]
    assert {case.unit for case in cases.select(["threads"], quick)} == {"thread"}


def test_names_of_cases_are_unique():
    names = [case.name for case in cases.ALL_CASES]
    assert len(set(names)) == len(names)
    assert set(cases.SETS["quick"]) < set(cases.SETS["full"])


def test_the_full_set_holds_what_it_promises():
    for program in ("barrier", "lock", "pingpong", "pipeline", "spin"):
        for ms in ("0.5", "1", "2", "8", "25", "100"):
            assert any(case.name == f"{program}-{ms}ms" for case in cases.ALL_CASES)
    crowds = [case.options[1] for case in cases.ALL_CASES if case.group == "threads on 2 CPUs"]
    assert crowds[0] == "2" and crowds[-1] == "16"
    queues = [case.options[1] for case in cases.ALL_CASES if case.group == "queues"]
    assert queues == ["1", "8", "1000"]


def test_every_case_names_a_worker_of_its_program():
    for case in cases.ALL_CASES:
        source = (cases.WORKLOADS / f"{case.program}.c").read_text()
        if case.unit == "function":
            assert re.search(rf"WORKER\({case.function}\)|REGION void {case.function}\(", source), case.name
        elif case.unit == "thread":
            assert case.function.startswith(f"{case.program}") or f'name_thread("{case.function}")' in source


def test_summary_counts_errors_and_coverage():
    case = SPIN
    read = prediction.parse_report(report_text(gains=(0.05, 0.10, 0.15, None)), SPIN)
    true = {level: truth.Truth(gain, 0.0) for level, gain in zip(cases.LEVELS, (0.06, 0.10, 0.25, 0.3), strict=True)}
    summary = accuracy_tables.summarise(accuracy_tables.make_rows(case, read, true))
    assert summary["mean_error_points"] == pytest.approx((1 + 0 + 10) / 3)
    assert summary["max_error_points"] == pytest.approx(10)
    assert summary["coverage"] == pytest.approx(2 / 3)
    assert summary["without_number"] == 1
    assert summary["median_half_width_points"] == pytest.approx(2)
    assert summary["coz_rows"] == 0 and summary["coz_max_error_points"] is None
    assert accuracy_tables.summarise([])["mean_error_points"] is None


def make_outcome(gains, true, coz, width, group="workloads"):
    case = cases.Case("x", "spin", "work_a", (1, 1), (0,), group=group)
    levels, theirs = (
        {
            level: prediction.Predicted(gain, gain - width, gain + width)
            for level, gain in zip(case.levels, predicted, strict=False)
        }
        for predicted in (gains, coz)
    )
    truths = {level: truth.Truth(gain, 0.0) for level, gain in zip(case.levels, true, strict=True)}
    read = prediction.Prediction(levels, "worth optimising", 4)
    return accuracy_tables.Outcome(case, accuracy_tables.make_rows(case, read, truths, theirs))


def test_worse_than_coz_counts_only_beyond_both_intervals():
    true = (0.1, 0.2, 0.3, 0.4)
    far = [gain + 0.10 for gain in true]
    assert accuracy_tables.worse_than_coz(make_outcome(far, true, true, 0.01)) == pytest.approx(10)
    assert accuracy_tables.worse_than_coz(make_outcome(far, true, true, 0.10)) is None
    assert accuracy_tables.worse_than_coz(make_outcome(true, true, far, 0.01)) is None
    assert accuracy_tables.worse_than_coz(make_outcome(far, true, (), 0.01)) is None
    # Only levels where both have a number count.
    assert accuracy_tables.worse_than_coz(make_outcome(far, true, true[:1], 0.01)) == pytest.approx(10)


def test_groups_are_summarised_one_by_one():
    true = (0.1, 0.2, 0.3, 0.4)
    near = make_outcome(true, true, (), 0.01, "near")
    far = make_outcome([gain + 0.10 for gain in true], true, [gain - 0.30 for gain in true], 0.01, "far")
    table = accuracy_tables.group_table([near, far, near], accuracy_tables.Beside(coz=True))
    assert [line[0] for line in table] == ["group", "near", "far", "all"]
    assert table[1][1:4] == ("8", "0.0", "0.0") and table[1][-1] == "-"
    assert table[2][1:5] == ("4", "10.0", "10.0", "0") and table[2][-1] == "30.0"
    assert table[3][1:3] == ("12", "3.3")


def test_a_new_report_keeps_what_was_written_by_hand():
    first = accuracy_tables.merge_markdown(None, "numbers 1\n", "Accuracy")
    assert first.startswith("# Accuracy\n")
    edited = first.replace("# Accuracy\n", "# Accuracy\n\nBy hand.\n")
    second = accuracy_tables.merge_markdown(edited, "numbers 2\n", "Accuracy")
    assert "By hand." in second and "numbers 2" in second and "numbers 1" not in second
    assert accuracy_tables.merge_markdown(second, "numbers 2\n", "Accuracy") == second


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


def test_attach_stands_beside_run_with_the_same_truth(tmp_path, monkeypatch, capsys):
    fake_rates(monkeypatch)
    monkeypatch.setattr(prediction, "running", lambda case: contextlib.nullcontext(4711))
    profiler = make_fake_profiler(tmp_path, report_text())
    words = ["--only-workload", "spin", "--attach", "--causal-bpf", str(profiler)]
    assert accuracy.main([*words, "--json", "--markdown", str(tmp_path / "out.md")]) == 0
    saved = capsys.readouterr().out
    row = json.loads(saved)["cases"][0]["rows"][3]
    assert row["attached"]["gain"] == row["predicted"] == 0.2 and row["attached_covered"] is True
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    by_attach = next(call for call in calls if call[0] == "attach")
    by_run = next(call for call in calls if call[0] == "run")
    assert by_attach[1] == "4711"
    # The same question, but for the file it goes to.
    assert by_attach[2 : by_attach.index("-o")] == by_run[1 : by_run.index("-o")]
    assert "| 20.0 ±0.0 | +0.0 | yes | 20.0 | 18.0 to 22.0 | +0.0 | yes |" in (tmp_path / "out.md").read_text()
    (tmp_path / "saved.json").write_text(saved)
    assert accuracy.main(["--combine", str(tmp_path / "saved.json")]) == 0
    assert "attached 0.7 and 1.7 in 4 rows, coverage 100 %" in capsys.readouterr().out


def test_attach_that_fails_loses_nothing_else(tmp_path, monkeypatch):
    fake_rates(monkeypatch)

    def fail(*arguments):
        raise prediction.ProfilerFailed("error: it broke")

    monkeypatch.setattr(accuracy, "predict_attached", fail)
    outcome = measure_spin(make_fake_profiler(tmp_path, report_text()), tmp_path)
    assert len(outcome.rows) == 4 and outcome.rows[3].attached_error is None
    assert "attached: failed: error: it broke" in accuracy_tables.case_line(outcome)


def measure_spin(profiler, directory):
    options = accuracy.make_parser().parse_args(["--attach", "--causal-bpf", str(profiler)])
    return accuracy.measure_case(SPIN, options, random.Random(1), directory)


def test_a_failing_profiler_is_reported_not_raised(tmp_path, monkeypatch, capsys):
    fake_rates(monkeypatch)
    profiler = make_fake_profiler(tmp_path, "", exit_code=1)
    assert accuracy.main(["--only-workload", "spin", "--causal-bpf", str(profiler)]) == 1
    assert "error: it broke" in capsys.readouterr().out


def test_repetitions_cover_every_level_in_random_order(monkeypatch):
    asked = []
    monkeypatch.setattr(truth, "measure_rate", lambda case, speedup, seconds: asked.append(speedup) or 1.0)
    for _ in range(5):
        assert set(truth.measure_repetition(SPIN, 1.0, random.Random(len(asked)))) == {0.0, *cases.LEVELS}
    orders = {tuple(asked[i : i + 5]) for i in range(0, 25, 5)}
    assert len(orders) > 1
