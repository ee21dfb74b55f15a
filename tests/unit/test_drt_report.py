"""`causal-bpf explain`: what it prints, in all forms, and how it fails."""

import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from causal.drt.model import explain
from causal.report.drt_dot import write_dot
from causal.report.drt_html import write_html
from causal.report.drt_text import ExplanationReporter
from cli.main import main

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt_data  # noqa: E402

# What rich takes for markup or pictographs, and what HTML and Graphviz take for their own.
NASTY = ["foo[abi:cxx11]", 'a<b>&"c"', "main.c:100:7", "back\\slash\nline"]


@pytest.fixture(scope="module")
def snapbuddy():
    return explain(drt_data.make_snapbuddy(0).traces)


@pytest.fixture(scope="module")
def nasty():
    traces = drt_data.make_micro("4_1v2", 0).traces
    return explain(drt_data.make_traces(traces.inputs, traces.output, NASTY, traces.calls))


def write_csv(path, traces):
    lines = [",".join(["id", *traces.input_names, traces.output_name, *traces.functions])]
    for i, row in enumerate(traces.calls.toarray()):
        cells = [traces.ids[i], *map(repr, traces.inputs[i].tolist()), repr(float(traces.output[i]))]
        lines.append(",".join([*cells, *(f"{count:g}" for count in row)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def text_of(explanation, width=100):
    out = io.StringIO()
    ExplanationReporter(Console(file=out, width=width, markup=False, emoji=False, highlight=False)).render(explanation)
    return out.getvalue()


def test_text_says_what_matters(snapbuddy):
    text = text_of(snapbuddy)
    assert "time_ms of 616 traces by size_bytes" in text
    assert "Tree: 8 leaves on 3 functions" in text
    assert "Kaleidoscope.filter called at least once" in text
    assert re.search(r"time = \S+ ms \+ 0\.026\d ms/bytes \* size", text)
    assert "Kaleidoscope.filter stands for functions called in the same traces: Kaleidoscope.prepare" in text
    assert "Classes side by side" in text
    assert "accuracy 100.0%" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_text_shows_names_as_they_are(nasty):
    text = text_of(nasty, 200)
    assert "foo[abi:cxx11] called at least once" in text
    assert "main.c:100:7" in text
    assert "back\\\\slash\\nline" in text or "back\\slash\\nline" in text


def test_json_has_exactly_the_agreed_form(tmp_path, capsys):
    path = write_csv(tmp_path / "traces.csv", drt_data.make_micro("4_1v2", 0).traces)
    assert main(["explain", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["version", "k", "r2", "accuracy", "clusters", "tree", "features_used", "ladder"]
    assert found["k"] == 4
    assert found["r2"] > 0.995 and found["accuracy"] == 1.0
    assert len(found["clusters"]) == 4
    assert all(set(each) == {"slope", "intercept", "n"} for each in found["clusters"])
    assert sum(each["n"] for each in found["clusters"]) == 1156
    assert all(set(each) == {"k", "r2", "criterion"} for each in found["ladder"])

    def check(node):
        assert len(node["distribution"]) == 4
        assert sum(node["distribution"]) == pytest.approx(1)
        assert node["examples"]
        if "children" not in node:
            assert set(node) == {"n", "distribution", "examples"}
            return 1
        assert set(node) == {"n", "distribution", "examples", "feature", "threshold", "children"}
        assert node["feature"] in found["features_used"]
        assert sum(child["n"] for child in node["children"]) == node["n"]
        return sum(check(child) for child in node["children"])

    assert check(found["tree"]) == 6


class Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]

    def handle_data(self, data):
        self.text.append(data)


def test_html_needs_nothing_else(nasty):
    out = io.StringIO()
    write_html(nasty, out)
    page = out.getvalue()
    found = Collector()
    found.feed(page)
    assert not found.links
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert "url(" not in page and "@import" not in page
    assert found.tags.count("circle") == 1156
    assert found.tags.count("polyline") == 4
    assert "prefers-color-scheme: dark" in page
    assert 'a<b>&"c"' in "".join(found.text)


def test_dot_is_well_formed(nasty):
    out = io.StringIO()
    write_dot(nasty, out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "digraph explanation {" and lines[-1] == "}"
    nodes = [line for line in lines if re.match(r"  n\d+ \[", line)]
    edges = [line for line in lines if "->" in line]
    assert len(nodes) == 11 and len(edges) == 10
    declared = {re.match(r"  (n\d+)", line)[1] for line in nodes}
    assert len(declared) == 11
    assert all(set(re.findall(r"\bn\d+\b", line.split(" [")[0])) <= declared for line in edges)
    assert all(re.fullmatch(r'  .*\[label="(?:[^"\\]|\\.)*"(, style=rounded)?\];', line) for line in nodes + edges)


def test_command_prints_the_tree(tmp_path, capsys):
    path = write_csv(tmp_path / "traces.csv", drt_data.make_micro("2_1", 0).traces)
    assert main(["explain", str(path), "--tree", "optimal"]) == 0
    out = capsys.readouterr().out
    assert "f0 not called" in out and "Tree: 4 leaves on 2 functions" in out


def test_command_writes_a_page_once(tmp_path, capsys):
    path = write_csv(tmp_path / "traces.csv", drt_data.make_micro("2_1", 0).traces)
    page = tmp_path / "why.html"
    assert main(["explain", str(path), "--html", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert main(["explain", str(path), "--html", str(page)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["explain", str(path), "--html", str(page), "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--clusters", "300"], 2, "400 traces are too few for 300 classes"),
        (["--clusters", "0"], 2, "not a whole number above 0"),
        (["--max-error", "much"], 2, "not a share such as 5%"),
        (["--inputs", "size,"], 2, "not a list of columns"),
        (["--output", "f0", "--inputs", "width"], 2, "no column 'width'"),
        (["--json", "--dot"], 2, "not allowed with"),
    ],
)
def test_bad_options_are_one_error_line(tmp_path, capsys, arguments, code, expected):
    path = write_csv(tmp_path / "traces.csv", drt_data.make_micro("2_1", 0).traces)
    assert main(["explain", str(path), *arguments]) == code
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("error: ") and expected in err[0]
    assert len(err) == 2 and err[1].startswith("hint: ")


def test_bad_traces_are_one_error_line(tmp_path, capsys):
    path = tmp_path / "traces.csv"
    path.write_text("id,size,time,f\na,1,2,0\nb,2,x,1\n")
    assert main(["explain", str(path)]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "error: row 3, column 'time': 'x' is not a number"
    assert len(err) == 2


def test_leaks_are_warned_about_beside_json(tmp_path, capsys):
    traces = drt_data.make_micro("2_1", 0).traces
    leaky = drt_data.make_traces(
        traces.inputs, traces.output, ["f0", "f1", "clock"],
        [[*row, cost] for row, cost in zip(traces.calls.toarray(), traces.output, strict=True)],
    )  # fmt: skip
    path = write_csv(tmp_path / "traces.csv", leaky)
    assert main(["explain", str(path), "--json"]) == 0
    streams = capsys.readouterr()
    assert "warning: column 'clock' is the output itself" in streams.err
    assert json.loads(streams.out)["messages"] == ["column 'clock' is the output itself, so it was left out"]


def test_no_tree_is_drawn_where_functions_say_nothing(tmp_path, capsys):
    path = tmp_path / "traces.csv"
    lines = ["id,size,time,f"]
    for i in range(200):
        slow = i % 2
        lines.append(f"t{i},{i // 4 + 1},{(i // 4 + 1) * (1 + 2 * slow) + (i % 7) / 50},{(i // 2) % 2}")
    path.write_text("\n".join(lines) + "\n")
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "The classes do not differ in the functions they call" in out
    assert "Tree:" not in out
