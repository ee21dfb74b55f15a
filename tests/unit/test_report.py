"""The views: any name, any width, and JSON in the agreed form."""

import argparse
import io
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from causal.analysis.results import (
    Analysis,
    Curve,
    CurveFit,
    Diagnosis,
    Gain,
    Overhead,
    PointResult,
    RegionResult,
    Verdict,
)
from causal.analysis.stacks import Stacks
from causal.errors import CausalError
from causal.profile import Header, ProfileWriter, ProgressPoint, Visits, Window, read_profile
from causal.report.curve import ASCII, BLOCKS, sparkline
from causal.report.json import JsonReporter
from causal.report.symbols import elide_middle, printable
from causal.report.table import TableReporter
from cli.report import ReportCommand, print_report

LONG = (
    "std::vector<std::basic_string<char, std::char_traits<char> >, std::allocator<int> >"
    "::_M_realloc_insert<int const&>(int*, int const&)"
)
NO_EVIDENCE = "~"
AWKWARD = ["foo[abi:cxx11]", "main.c:100:7", "[unknown]", "[bold]x[/bold]", ":smile:", "größe", "関数"]


def region(name, verdict=Verdict.OPTIMISE, **fields):
    slope = 0.4
    fit = CurveFit(slope, (slope - 0.04, slope + 0.04), 1e-6, None, 1.0, (Curve(1.0, slope, 0.04),))
    points = tuple(
        PointResult(s / 4, slope * s / 4, (slope * s / 4 - 0.02, slope * s / 4 + 0.02), slope * s / 4, 10, 500)
        for s in range(5)
    )
    values = {
        "region": name, "unit": "function", "progress_point": "point", "baseline_rate": 123.4, "cpu_share": 0.5,
        "points": points, "verdict": verdict, "explanation": f"{verdict.value}: explained", "slope": slope,
        "slope_ci": fit.ci, "p_value": 1e-6, "fit": fit, "pairs": 40,
    }  # fmt: skip
    return RegionResult(**values | fields)


def analysis(*regions, conclusion=None, messages=()):
    stacks = Stacks(90, 7, 2, 1)
    diagnosis = Diagnosis(
        12, len(regions), 1000, 900, 0.8, {"point": 4321}, 1, 2, 30_000, conclusion, messages, stacks
    )  # fmt: skip
    return Analysis("p.jsonl", ("prog",), ("point",), regions, Overhead(0.5, 0.02, 0.3), diagnosis)


def table(result, width=80, encoding="utf-8"):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    TableReporter(Console(file=out, width=width)).render(result)
    out.flush()
    return raw.getvalue().decode(encoding)


# Table


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_fits_and_keeps_every_name(width):
    text = table(analysis(*(region(name) for name in [*AWKWARD, LONG])), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    rows = text.splitlines()
    for name in AWKWARD:
        assert any(row.startswith(name + " ") and "optimise" in row for row in rows) or any(
            row.startswith(name + " ") and "worth" in row for row in rows
        )
    assert any("…" in row for row in rows)


@pytest.mark.parametrize(
    ("width", "gains"), [(80, ["10.0±1.0", "40.0±4.0"]), (110, ["10.0±1.0", "20.0±2.0", "40.0±4.0"])]
)
def test_a_row_shows_share_gains_curve_and_verdict(width, gains):
    row = next(line for line in table(analysis(region("work_a")), width).splitlines() if line.startswith("work_a"))
    assert row.split() == ["work_a", "50%", *gains, "▁▃▅▆█", "optimise"]


def test_the_verdict_is_a_sentence_at_any_width():
    for width in (40, 80, 160):
        assert "worth optimising: explained" in " ".join(table(analysis(region("work_a")), width).split())


@pytest.mark.parametrize("width", [40, 80, 160])
def test_terminals_without_unicode(width):
    text = table(analysis(*(region(name) for name in [*AWKWARD, LONG])), width, "ascii")
    assert text.isascii() and "+-" in text and "gr\\xf6" in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_names_cannot_control_the_terminal():
    text = table(analysis(region("a\x1b[31mb\rc\udcff")), 160)
    assert "a\\x1b[31mb\\rc\\udcff" in text and "\x1b" not in text


def test_no_colour_unless_on_a_terminal():
    assert "\x1b" not in table(analysis(region("a"), conclusion="why", messages=("note",)))


def test_no_number_is_shown_where_there_is_none():
    paced = region("p", verdict=Verdict.PACED, fit=None, slope=None, slope_ci=None, points=(
        PointResult(0.5, None, None, 0.25, 3, 10),))  # fmt: skip
    row = next(line for line in table(analysis(paced), 110).splitlines() if line.startswith("p "))
    assert row.split() == ["p", "50%", NO_EVIDENCE, NO_EVIDENCE, NO_EVIDENCE, "paced"]


def test_gains_beyond_the_levels_tried_are_not_invented():
    fit = CurveFit(0.4, (0.3, 0.5), 0.01, None, 0.5, (Curve(1.0, 0.4, 0.1),))
    row = next(line for line in table(analysis(region("r", fit=fit)), 110).splitlines() if line.startswith("r "))
    assert row.split()[2:5] == ["10.0±2.5", "20.0±5.0", NO_EVIDENCE]


def test_few_levels_show_what_was_measured():
    fit = CurveFit(0.4, (0.3, 0.5), 0.01, None, 1.0, (Curve(1.0, 0.4, 0.1),))
    measured = (PointResult(0.5, 0.17, (0.1, 0.2), 0.17, 9, 90), PointResult(1.0, 0.42, (0.4, 0.45), 0.42, 9, 90))
    row = table(analysis(region("r", fit=fit, slope=None, slope_ci=None, points=measured)), 110).splitlines()[2]
    assert row.split()[2:5] == ["10.0±2.5", "17.0±7.0", "42.0±3.0"]


def test_the_diagnosis_follows_the_table():
    text = table(analysis(region("a"), conclusion="because", messages=("first [note]", "second")))
    flat = " ".join(text.split())
    for part in (
        "12 experiments",
        "1 region tried",
        "1,000 samples (900 in scope)",
        "80% of them",
        "4,321 visits",
        "2 signals lost",
        "0.03 ms",
        "Nothing to conclude: because",
        "note: first [note]",
        "note: second",
    ):
        assert part in flat


def test_a_profile_without_regions_shows_the_diagnosis():
    assert "Nothing to conclude: no samples" in table(analysis(conclusion="no samples"))


def test_without_experiments_there_are_shares_and_rates():
    known = replace(analysis(), shares={"a": 0.6, "b": 0.4}, serial_shares={"a": 0.9}, rates={"point": 123.4})
    text = table(known)
    assert "Progress point point: 123 visits/s" in text
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["region", "CPU", "serial"], ["a", "60%", "90%"], ["b", "40%"],
    ]  # fmt: skip
    assert "serial" not in table(replace(known, serial_shares={"a": 0.6}))
    out = io.StringIO()
    JsonReporter(out).render(known)
    found = json.loads(out.getvalue())
    assert found["shares"] == {"a": 0.6, "b": 0.4} and found["serial_shares"] == {"a": 0.9}
    assert found["rates"] == {"point": 123.4}


def test_each_progress_point_has_its_table():
    result = analysis(region("a"), region("b", progress_point="other"))
    result = Analysis("", (), ("point", "other"), result.regions, result.overhead, result.diagnosis)
    titles = [line for line in table(result).splitlines() if line.startswith("Progress point")]
    assert titles == ["Progress point point: 123 visits/s", "Progress point other: 123 visits/s"]


# Names and curves


def test_elision_keeps_both_ends_and_the_width():
    for width in range(1, 140):
        short = elide_middle(LONG, width)
        assert cell_len(short) <= width
    assert elide_middle(LONG, 21) == "std::vecto…int const&)"[:10] + "…" + LONG[-10:]
    assert elide_middle("short", 10) == "short"
    assert cell_len(elide_middle("関数" * 20, 11)) <= 11


def test_printable():
    assert printable("größe\t", "utf-8") == "größe\\t"
    assert printable("größe", "ascii") == "gr\\xf6\\xdfe"
    assert printable("x", "no-such-encoding") == "x"


def test_sparkline():
    def points(*gains):
        return [PointResult(i / 10, gain, None, gain, 1, 1) for i, gain in enumerate(gains)]

    assert sparkline(points(0.0, 0.5, 1.0), 1.0, 8) == "▁▅█"
    assert sparkline(points(0.0, 1.0), 1.0, 8, ascii_only=True) == "_#"
    assert sparkline(points(0.0, -0.5), 1.0, 8) == "▁v"
    assert sparkline(points(None, None), 1.0, 8) == ""
    assert sparkline(points(0.0, None, 1.0), 1.0, 8) == "▁ █"
    assert len(sparkline(points(*[0.1] * 21), 1.0, 8)) == 8
    assert len(BLOCKS) == len(ASCII)


# JSON


def as_json(result):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    out = io.StringIO()
    JsonReporter(out).render(result)
    return json.loads(out.getvalue(), parse_constant=refuse)


def test_json_has_the_agreed_form():
    report = as_json(analysis(region("foo[abi:cxx11]"), conclusion="why", messages=("note",)))
    assert list(report) == ["version", "progress_points", "regions", "overhead", "diagnosis"]
    (only,) = report["regions"]
    assert list(only) == [
        "region", "unit", "progress_point", "kind", "unit_of_point", "baseline_rate", "cpu_share", "off_cpu_share",
        "serial_share", "slope", "slope_ci", "knee", "p_value", "verdict", "phase_factor", "points",
    ]  # fmt: skip
    assert only["region"] == "foo[abi:cxx11]" and only["kind"] == "throughput" and only["phase_factor"] == 1.0
    assert only["off_cpu_share"] is None and only["knee"] is None
    assert only["verdict"] == "worth optimising: explained"
    assert list(only["points"][0]) == ["speedup", "program_speedup", "ci", "raw", "experiments", "visits"]
    assert only["points"][2]["speedup"] == 0.5 and only["points"][2]["ci"] == pytest.approx([0.18, 0.22])
    assert report["overhead"] == {"startup_s": 0.5, "sampling": 0.02, "delays": 0.3, "undisturbed_rate": None}
    assert report["diagnosis"] == {
        "experiments": 12, "samples": 1000, "samples_in_scope": 900, "visits": {"point": 4321}, "stacks_truncated": 1,
        "stacks": {"whole": 90, "guessed": 7, "deep": 2, "lost": 1}, "signals_lost": 2,
        "pause_error_p99_ns": 30_000, "messages": ["why", "note"],
    }  # fmt: skip


def test_json_never_contains_nan():
    points = (PointResult(0.5, math.nan, (-math.inf, math.inf), math.nan, 1, 1),)
    (only,) = as_json(analysis(region("r", slope=math.nan, slope_ci=(math.nan, 1.0), points=points)))["regions"]
    assert only["slope"] is None and only["slope_ci"] == [None, 1.0]
    assert only["points"][0]["program_speedup"] is None and only["points"][0]["ci"] == [None, None]


def test_json_survives_any_name():
    (only,) = as_json(analysis(region("a\udcff\x1b größe")))["regions"]
    assert only["region"] == "a\udcff\x1b größe"


# The command


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "p.jsonl"
    with ProfileWriter(path) as writer:
        writer.header(Header("test", ("prog",), 1, "", progress_points=(ProgressPoint("main.c:100:7"),)))
        for pair in range(24):
            level = (pair % 4 + 1) / 4
            for arm, visits in (("treated", 1000 / (1 - 0.4 * level) + pair % 5), ("placebo", 1000 + pair % 7)):
                speedup = level if arm == "treated" else 0.0
                points = (Visits("main.c:100:7", int(visits)),)
                ran = {"selected_samples": 5, "points": points}
                writer.window(Window("[unknown]", arm, pair, level, speedup, 10**9, 10**9, **ran))
    return path


def run_report(*arguments):
    parser = argparse.ArgumentParser()
    command = ReportCommand()
    command.prepare_parser(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_report_prints_the_table(recorded, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_report(recorded) == 0
    text = capsys.readouterr().out
    assert "Progress point main.c:100:7: 1,003 visits/s" in text
    assert "[unknown]: worth optimising: the program gets up to 40% faster by making this 100% faster" in " ".join(
        text.split()
    )


def test_report_json(recorded, capsys):
    assert run_report(recorded, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    (only,) = report["regions"]
    assert only["region"] == "[unknown]" and only["slope"] == pytest.approx(0.4, abs=0.02)


def test_a_reader_that_leaves_is_not_an_error_of_the_report(recorded):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        print_report(read_profile(recorded), Closed())


def test_report_refuses_what_is_no_profile(tmp_path):
    (tmp_path / "p").write_text("hello\n")
    with pytest.raises(CausalError, match="not a causal-bpf profile"):
        run_report(tmp_path / "p")


def test_help_is_quick():
    code = "import sys, cli.report, causal.analysis; print({'numpy', 'statsmodels', 'bcc', 'rich'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "set()"


def test_gain_margin_is_the_longer_arm():
    assert Gain(0.3, (0.2, 0.35)).margin == pytest.approx(0.1)


def test_the_share_of_the_serial_path_has_a_column_where_it_is_known():
    lines = table(analysis(region("a", serial_share=0.7), region("b"))).splitlines()
    assert lines[1].split()[:3] == ["region", "CPU", "serial"]
    assert next(line for line in lines if line.startswith("a ")).split()[:3] == ["a", "50%", "70%"]
    assert "serial" not in table(analysis(region("b")))


def test_an_interval_that_says_nothing_is_no_number():
    fit = CurveFit(0.1, (-0.22, 0.42), 0.3, None, 1.0, (Curve(1.0, 0.1, 0.32),))
    row = next(line for line in table(analysis(region("r", fit=fit)), 110).splitlines() if line.startswith("r "))
    assert row.split()[2:5] == ["2.5±8.0", "5±16", "10±32"]
    wider = replace(fit, plausible=(Curve(1.0, 0.1, 0.6),))
    row = next(line for line in table(analysis(region("r", fit=wider)), 110).splitlines() if line.startswith("r "))
    assert row.split()[2:5] == [NO_EVIDENCE, NO_EVIDENCE, NO_EVIDENCE]
