"""The web page, the file for COZ's viewer, and the collapsed stacks."""

import html.parser
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from causal.analysis import analyse
from causal.analysis.experiments import single_experiments, timeline
from causal.profile import End, Header, Profile, ProgressPoint, Region, Visits, Window
from causal.reading import read_any
from causal.report.coz import CozReporter
from causal.report.folded import FoldedReporter
from causal.report.html import HtmlReporter
from causal.report.html_charts import MOST_DOTS, thinned
from causal.report.source import excerpt

SECOND = 10**9
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\x1b[31m\udcff"
VOID = {"meta", "input", "br", "img", "link", "hr"}


def make_profile(regions, pairs=12, points=("done",)):
    """Regions by name with their gain per speedup; every region has the same number of pairs."""
    windows, number = [], 0
    for name, slope in regions.items():
        for pair in range(1, pairs + 1):
            level = (pair % 4 + 1) / 4
            for arm in ("treated", "placebo"):
                number += 1
                gain = slope * level if arm == "treated" else 0.0
                seen = tuple(Visits(point, round(2000 / (1 - gain)) + pair % 3) for point in points)
                windows.append(
                    Window(
                        name, arm, pair, level, level if arm == "treated" else 0.0, SECOND,
                        SECOND, 0, number * SECOND, points=seen, selected_samples=5, samples=10,
                    )
                )  # fmt: skip
    return Profile(
        Header("causal-bpf 0", ("prog", "--size", "3"), 1, "2026-01-01T00:00:00+00:00", {"cpus": 2, "model": "CPU"},
               progress_points=tuple(ProgressPoint(point) for point in points)),
        tuple(Region(name, "function", "/bin/prog") for name in regions), tuple(windows),
        dict.fromkeys(regions, 10), end=End("duration", 0, 100, 60, 1000, 90 * SECOND, messages=("a note",)),
    )  # fmt: skip


class Page(html.parser.HTMLParser):
    """Elements by tag, and whether they nest."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def find(self, tag, kind=None):
        return [a for t, a in self.elements if t == tag and (kind is None or kind in a.get("class", "").split())]


def render(profile):
    out = io.StringIO()
    HtmlReporter(out).render(analyse(profile), profile)
    return out.getvalue()


REGIONS = {"nothing": 0.0, "parse": 0.4, "lock": -0.3}


def test_the_page_has_a_row_and_a_card_for_every_region_and_point():
    profile = make_profile(REGIONS, points=("done", "other"))
    page = Page(render(profile))
    cards = page.find("article", "card")
    assert {(card["data-region"], card["data-point"]) for card in cards} == {
        (region, point) for region in REGIONS for point in ("done", "other")
    }
    rows = [a for a in page.find("tr") if "data-region" in a]
    assert [row["data-region"] for row in rows] == [card["data-region"] for card in cards]
    assert rows[0]["data-region"] == "parse" and rows[0]["data-verdict"] == "optimise"
    assert {card["data-region"]: card["data-verdict"] for card in cards} == {
        "parse": "optimise", "lock": "contention", "nothing": "no-effect"}  # fmt: skip
    assert len(page.find("svg", "curve")) == 6 and len(page.find("svg", "timeline")) == 1
    assert len({card["id"] for card in cards}) == 6
    assert {a["href"] for a in page.find("a")} == {f"#{card['id']}" for card in cards}


def test_every_experiment_is_a_dot_and_every_level_has_an_interval():
    page = Page(render(make_profile(REGIONS)))
    assert [path["d"].count("h0") for path in page.find("path", "dots")] == [12, 12, 12]
    assert len(page.find("g", "level")) == 3 * 4
    assert len(page.find("path", "fit")) == len(page.find("path", "band")) == 3


def test_nothing_is_loaded_from_anywhere():
    text = render(make_profile(REGIONS))
    page = Page(text)
    assert not any("src" in attributes or tag in ("link", "iframe", "img") for tag, attributes in page.elements)
    assert not re.search(r"url\(|@import|https?://", text)
    (policy,) = [a["content"] for a in page.find("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_names_are_text_and_nothing_else():
    text = render(make_profile({HOSTILE: 0.4}, points=(HOSTILE,)))
    page = Page(text)
    assert len(page.find("script")) == 1 and not page.find("img")
    assert "\x1b" not in text and text.encode("utf-8")
    assert page.find("article")[0]["data-region"].startswith("</script>")


def test_what_has_no_number_says_so():
    page = Page(render(make_profile({"rare": 0.4}, pairs=2)))
    row = next(a for a in page.find("tr") if "data-region" in a)
    assert row["data-gain"] == row["data-best"] == "" and row["data-verdict"] == "undecided"
    assert "~" in page.text and not page.find("path", "fit")


def test_a_page_without_experiments_gives_the_reason():
    page = Page(render(replace(make_profile({}), windows=())))
    assert any("Nothing to conclude" in text for text in page.text) and not page.find("article")


def test_a_page_without_experiments_has_shares_and_rates():
    plain = [replace(window, arm="plain") for window in make_profile({"a": 0.0}).windows]
    end = End("duration", None, 100, 100, diagnosis={"unpaused": 1, "serial_samples": 50}, messages=("why",))
    profile = replace(make_profile({}), windows=tuple(plain), samples={"a": 60, "b<": 40}, serial={"a": 45.0}, end=end)
    text = " ".join(" ".join(Page(render(profile)).text).split())
    assert "a 60% 90%" in text and "b< 40%" in text and "visits/s of done" in text and "why" in text
    assert "Nothing to conclude" not in text and "waits" not in text
    # Where it waits without using the CPU is known as well.
    waits = {"a": {"sleep": 1000.0}, "c": {"I/O": 5e8, "sleep": 2e8}}
    profile = replace(profile, waits=waits, end=replace(end, run_ns=10**9))
    text = " ".join(" ".join(Page(render(profile)).text).split())
    assert "CPU serial waits a 60% 90% b< 40% c 70%" in text


def test_the_diagnosis_is_on_the_page():
    text = " ".join(Page(render(make_profile(REGIONS))).text)
    for part in (
        "36 experiments on 3 regions",
        "100 samples, 60 of them in scope",
        "a note",
        "prog --size 3",
        "2 CPUs",
    ):
        assert part in text


def test_the_single_experiments_are_those_of_the_estimate():
    profile = make_profile({"parse": 0.4})
    found = single_experiments(profile)["parse", "done"]
    assert len(found) == 12 and {experiment.speedup for experiment in found} == {0.25, 0.5, 0.75, 1.0}
    assert all(experiment.gain == pytest.approx(0.4 * experiment.speedup, abs=0.01) for experiment in found)


def test_the_timeline_starts_at_zero_and_keeps_the_order():
    moments = timeline(make_profile(REGIONS))
    assert moments[0].start_s == 0.0 and len(moments) == 72
    assert [moment.start_s for moment in moments] == sorted(moment.start_s for moment in moments)
    assert moments[1].rates == {"done": pytest.approx(2001, abs=2)}


def test_thinning_is_even_and_bounded():
    assert list(thinned(range(10), 20)) == list(range(10))
    kept = thinned(range(10 * MOST_DOTS), MOST_DOTS)
    assert len(kept) == MOST_DOTS and kept[0] == 0 and {b - a for a, b in pairwise(kept)} == {10}


def test_source_lines_are_shown_where_the_file_is(tmp_path):
    (tmp_path / "a b.c").write_text("".join(f"line {number};\n" for number in range(1, 21)))
    found = excerpt("a b.c:5", [tmp_path])
    assert (found.first, found.marked, found.lines[3]) == (2, 5, "line 5;") and len(found.lines) == 7
    assert excerpt(f"{tmp_path}/a b.c:20", [tmp_path]).lines[-1] == "line 20;"
    for region in ("a b.c:21", "a b.c:0", "main", "missing.c:1", f"{tmp_path}:1", "/dev/zero:1", "\0:1"):
        assert excerpt(region, [tmp_path]) is None


def test_source_lines_are_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "größe.c").write_text("int a;\nif (a < b && c)\n\treturn 1;\n")
    page = Page(render(make_profile({"größe.c:2": 0.4})))
    assert len(page.find("pre", "source")) == 1 and len(page.find("span", "marked")) == 1
    assert "if (a < b && c)" in page.text


# Other programs' forms


def test_coz_reads_what_is_written_for_it(tmp_path):
    profile = make_profile({"parse": 0.4, HOSTILE: 0.0})
    with (tmp_path / "p.coz").open("w", encoding="utf-8") as out:
        CozReporter(out).render(replace(profile, startup_ns=5, runtime_ns=9))
    records = [json.loads(line) for line in (tmp_path / "p.coz").read_text().splitlines()]
    kinds = {"startup", "experiment", "throughput-point", "runtime", "samples"}
    assert {record["type"] for record in records} == kinds and records[0]["type"] == "startup"
    assert all(b["type"] == "throughput-point" for a, b in pairwise(records)
               if a["type"] == "experiment")  # fmt: skip
    again = read_any(tmp_path / "p.coz")
    assert len(again.windows) == len(profile.windows) and again.samples == profile.samples
    gains = {result.region: result.fit.at(1.0).gain for result in analyse(again).regions}
    assert gains["parse"] == pytest.approx(0.4, abs=0.02) and gains[HOSTILE] == pytest.approx(0.0, abs=0.02)


COZ_VIEWER = Path("/usr/share/coz-profiler/viewer/js/profile.js")
ASK_VIEWER = """
const fs = require("fs");
require("vm").runInThisContext(fs.readFileSync(process.argv[1], "utf8"));
const warnings = [];
const warn = (...what) => warnings.push(what);
const profile = new Profile(fs.readFileSync(process.argv[2], "utf8"), null, null, () => 5, warn);
console.log(JSON.stringify({ warnings, points: profile.getProgressPoints(), data: profile.getSpeedupData(5) }));
"""


def test_the_viewer_of_coz_shows_what_is_written_for_it(tmp_path):
    """Its own code, as the Debian package has it, without a browser around it."""
    node = shutil.which("node")
    if node is None or not COZ_VIEWER.exists():
        pytest.skip("needs COZ's viewer and node: apt install coz-profiler nodejs")
    with (tmp_path / "p.coz").open("w", encoding="utf-8") as out:
        CozReporter(out).render(make_profile({"parse": 0.4, HOSTILE: 0.0}))
    command = [node, "-e", ASK_VIEWER, str(COZ_VIEWER), str(tmp_path / "p.coz")]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert shown["warnings"] == [] and len(shown["points"]) == 1
    curves = {region["name"]: region["progress_points"][0]["measurements"] for region in shown["data"]}
    assert curves.keys() == {"parse", HOSTILE}
    assert curves["parse"][0] == {"speedup": 0, "progress_speedup": 0}
    assert curves["parse"][-1]["progress_speedup"] == pytest.approx(0.4 * curves["parse"][-1]["speedup"], abs=0.03)


def test_collapsed_stacks_are_one_line_each():
    out = io.StringIO()
    profile = make_profile({"std::map<int, a;b>::find(int)": 0.1, "x\ny": 0.2})
    FoldedReporter(out).render(replace(profile, samples={"std::map<int, a;b>::find(int)": 3, "x\ny": 40}))
    assert out.getvalue().splitlines() == [
        "prog;prog;x\\ny 40",
        "prog;prog;std::map<int, a:b>::find(int) 3",
        "prog;[out of scope] 57",
    ]


# In a browser

EXERCISE = """
const out = {}, list = () => [...document.querySelectorAll(".cards > :not([hidden])")].map((c) => c.dataset.region);
const set = (id, value, event) => {
  const field = document.getElementById(id);
  field.value = value;
  field.dispatchEvent(new Event(event));
};
out.first = list();
set("order", "region", "change"); out.named = list();
document.querySelector("#overview th[data-key=gain] button").click(); out.gain = list();
document.querySelector("#overview th[data-key=gain] button").click(); out.reversed = list();
set("search", "PAR", "input"); out.found = list();
set("search", "", "input"); set("verdict", "contention", "input"); out.verdict = list();
set("search", "none such", "input"); out.none = !document.getElementById("none").hidden;
out.controls = !document.querySelector(".controls").hidden;
out.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.title = JSON.stringify(out);
"""


def test_sorting_and_filtering_in_a_browser(tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium: apt install chromium")
    # The page allows its own script only, by its digest; a second one needs another policy.
    text = render(make_profile(REGIONS)).replace("script-src 'sha256-", "script-src 'unsafe-inline' 'x-")
    (tmp_path / "page.html").write_text(text.replace("</body>", f"<script>{EXERCISE}</script></body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user",
               "--window-size=500,900", "--dump-dom", f"file://{tmp_path}/page.html"]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    out = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]))
    assert out["first"] == ["parse", "nothing", "lock"]
    assert out["named"] == ["lock", "nothing", "parse"]
    assert out["gain"] == ["parse", "nothing", "lock"] and out["reversed"] == ["lock", "nothing", "parse"]
    assert out["found"] == ["parse"] and out["verdict"] == ["lock"]
    assert out["none"] and out["controls"] and out["overflow"] == 0
