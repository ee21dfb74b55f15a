"""Whole reports, letter by letter, at several widths: what changes in them must be wanted.

After a wanted change: `python -m tests.unit.test_golden` in the project's directory writes the files anew.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from causal.analysis import analyse
from causal.profile import End, Header, Profile, ProgressPoint, Region, Visits, Window
from causal.report.coz import CozReporter
from causal.report.folded import FoldedReporter
from causal.report.json import JsonReporter
from causal.report.table import TableReporter

GOLDEN = Path(__file__).with_name("golden")
SECOND = 10**9
# Saturating, contention, nothing, markup in a name, too few pairs: (gain by virtual speedup, pairs).
REGIONS = {
    "parse[abi:cxx11]": (lambda s: 0.6 * min(s, 0.5), 40),
    "std::vector<std::pair<int, std::string> >::_M_realloc_insert": (lambda s: 0.2 * s, 40),
    "größe": (lambda s: 0.0, 80),
    "spin_lock": (lambda s: -0.3 * s, 40),
    "main.c:100:7": (lambda s: 0.5 * s, 2),
}


def profile():
    windows, number = [], 0
    for share, (name, (gain, pairs)) in enumerate(REGIONS.items(), 1):
        for _ in range(pairs):
            number += 1
            level = (number % 5 + 1) / 5
            for arm in ("treated", "placebo"):
                visits = 5000 / (1 - gain(level)) if arm == "treated" else 5000
                seen = (Visits("request", round(visits) + number * 37 % 101 - 50),)
                windows.append(
                    Window(
                        name, arm, number, level, level if arm == "treated" else 0.0, SECOND, SECOND, 0,
                        (2 * number + (arm == "treated")) * SECOND, samples=1000, selected_samples=50 * share,
                        points=seen,
                    )
                )  # fmt: skip
    samples = {name: 50 * 900 * share for share, name in enumerate(REGIONS, 1)}
    return Profile(
        Header("causal-bpf 1", ("/usr/bin/server", "--port", "1"), 7, "2026-01-01T00:00:00+00:00",
               progress_points=(ProgressPoint("request"),)),
        tuple(Region(name, "function", "/usr/bin/server") for name in REGIONS), tuple(windows), samples,
        startup_ns=SECOND, runtime_ns=900 * SECOND,
        end=End("duration", 0, 900_000, 700_000, 1_000_000, 900 * SECOND,
                {"signals_lost": 1, "pause_error_p99_ns": 65536}),
    )  # fmt: skip


def table(width, encoding="utf-8", of=None):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    TableReporter(Console(file=out, width=width)).render(analyse(of or profile()))
    out.flush()
    return "".join(line.rstrip() + "\n" for line in raw.getvalue().decode(encoding).splitlines())


def rendered(reporter, value):
    out = io.StringIO()
    reporter(out).render(value)
    return out.getvalue()


def rounded(text):
    """The last digits differ between versions of numpy."""
    return json.dumps(json.loads(text, parse_float=lambda number: round(float(number), 4)), indent=1) + "\n"


def empty():
    return replace(profile(), windows=(), samples={}, regions=())


FORMS = {
    "table-40.txt": lambda: table(40),
    "table-80.txt": lambda: table(80),
    "table-80-ascii.txt": lambda: table(80, "ascii"),
    "table-120.txt": lambda: table(120),
    "table-200.txt": lambda: table(200),
    "empty-40.txt": lambda: table(40, of=empty()),
    "report.json": lambda: rounded(rendered(JsonReporter, analyse(profile()))),
    "stacks.folded": lambda: rendered(FoldedReporter, profile()),
    "profile.coz": lambda: "".join(rendered(CozReporter, profile()).splitlines(keepends=True)[:9]),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_report_is_as_it_was(name):
    assert FORMS[name]() == (GOLDEN / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, make in FORMS.items():
        (GOLDEN / name).write_text(make(), encoding="utf-8")
