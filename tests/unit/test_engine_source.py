"""The engine's sources as Python sees them: one text, and numbers and layouts that both sides have to agree on."""

import re
import subprocess
from types import SimpleNamespace

import pytest

from causal.compile_flags import compile_flags
from causal.engine import (
    MAPPING,
    RANGE,
    REGION_STATE,
    SPACE,
    UNWIND_MODULE,
    Engine,
)
from causal.errors import CausalError
from causal.loading import BPF_DIRECTORY, counter_names, inlined
from causal.unwind.rules import PAGE_BITS, ROW_DTYPE, Kind
from causal.windows import Arm, EngineOptions, WindowPlan

CLOCK, PAUSE, PROGRESS, REGIONS, UNWIND = (
    (BPF_DIRECTORY / name).read_text() for name in ("clock.h", "pause.h", "progress.h", "regions.h", "unwind.h")
)
STUB = (BPF_DIRECTORY / "stub" / "pausing.h").read_text()


def structure(text, name):
    """The declaration of `struct name` in C."""
    return re.search(rf"^struct {name} \{{.*?^\}};", text, re.DOTALL | re.MULTILINE)[0]


# --- the text -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source():
    return inlined(BPF_DIRECTORY / "engine.bpf.c")


def test_no_local_header_is_left_to_include(source):
    assert re.findall(r'^\s*#\s*include\s*"', source, re.MULTILINE) == []


def test_each_header_is_in_the_text_once(source):
    # traced.h belongs to the programs of causal/tracing.
    headers = sorted(path for path in BPF_DIRECTORY.glob("*.h") if path.name != "traced.h")
    assert headers
    for header in headers:
        assert source.count(inlined(header).rstrip("\n")) == 1, header.name


def test_lines_keep_their_numbers(tmp_path):
    (tmp_path / "inner.h").write_text("int a;\nint b;\n")
    (tmp_path / "main.c").write_text('int first;\n#include "inner.h"\n#include <system.h>\nint last;\n')
    assert inlined(tmp_path / "main.c").splitlines() == [
        "int first;",
        '#line 1 "inner.h"',
        "int a;",
        "int b;",
        '#line 3 "main.c"',
        "#include <system.h>",
        "int last;",
    ]


# --- numbers --------------------------------------------------------------------------------------------------------


def test_counters_have_the_names_of_the_kernel_side():
    body = re.search(r"enum counter \{(.*?)\};", CLOCK, re.DOTALL)[1]
    without_comments = re.sub(r"//.*", "", body)
    names = [name.strip() for name in without_comments.split(",") if name.strip()]
    assert names[-1] == "C_LAST"
    assert counter_names() == [name.removeprefix("C_").lower() for name in names[:-1]]
    assert len(names) - 1 <= int(re.search(r"#define MAX_COUNTERS (\d+)", CLOCK)[1])


def test_every_counter_of_the_enumeration_is_used():
    text = inlined(BPF_DIRECTORY / "engine.bpf.c")
    for name in counter_names():
        assert len(re.findall(rf"\bC_{name.upper()}\b", text)) > 1, name


@pytest.mark.parametrize("name", ["ASK_MAGIC", "REGISTER_MAGIC"])
def test_the_stub_says_what_the_engine_listens_for(name):
    ours, theirs = (int(re.search(rf"#define {name} (0x[0-9a-f]+)", text)[1], 16) for text in (PAUSE, STUB))
    assert ours == theirs
    assert ours > 1 << 32  # no thread id, no pointer of a small program


def test_the_stub_looks_as_far_as_the_engine_does(monkeypatch):
    monkeypatch.setattr("causal.compile_flags.task_offsets", dict)
    defines = dict(flag[2:].split("=") for flag in compile_flags(EngineOptions(), [0]) if flag.startswith("-D"))
    assert int(defines["ANSWER_PROBES"]) == int(re.search(r"#define PROBES (\d+)", STUB)[1])
    assert int(defines["MAX_ANSWERS"]) == EngineOptions().max_answers
    assert int(defines["MIN_ALT_STACK"]) >= 2048 + 4096


# --- layouts --------------------------------------------------------------------------------------------------------


TYPES = """
#include <stddef.h>
#include <stdio.h>
typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;
"""


@pytest.fixture
def layout(tmp_path):
    """`layout(declaration, name)`: {member: offset} and the size, as the compiler has them."""

    def compiled(declaration, name):
        body = re.sub(r"//.*", "", declaration)
        members = [m for group in re.findall(r"\b(?:u64|s64|u32) ([\w, ]+);", body) for m in group.split(", ")]
        prints = "".join(f'printf("{m} %zu\\n", offsetof(struct {name}, {m}));\n' for m in members)
        source, program = tmp_path / "layout.c", tmp_path / "layout"
        source.write_text(f"{TYPES}{declaration}\nint main(void) {{\n{prints}return sizeof(struct {name});\n}}\n")
        subprocess.run(["cc", "-o", program, source], check=True, timeout=60)
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
        return {m: int(at) for m, at in (line.split() for line in done.stdout.splitlines())}, done.returncode

    return compiled


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mapping", MAPPING),
        ("space", SPACE),
        ("range", RANGE),
        ("region_state", REGION_STATE),
        ("unwind_row", ROW_DTYPE),
        ("unwind_module", UNWIND_MODULE),
    ],
)
def test_tables_that_are_written_from_here(layout, name, dtype):
    members, size = layout(structure(REGIONS + UNWIND, name), name)
    assert size == dtype.itemsize
    ours = {field: offset for field, (_, offset) in dtype.fields.items()}
    padding = {"_", "pad"}
    assert {m: at for m, at in ours.items() if m not in padding} == {
        m: at for m, at in members.items() if m not in padding
    }


def test_both_sides_know_the_same_rules():
    kinds = re.findall(r"^\tK_(\w+),", re.search(r"enum rule_kind \{(.*?)\};", UNWIND, re.DOTALL)[1], re.MULTILINE)
    assert kinds == [kind.name for kind in Kind]
    assert int(re.search(r"#define PAGE_BITS (\d+)", UNWIND)[1]) == PAGE_BITS


def test_the_stub_reads_the_table_that_the_engine_writes(layout):
    assert layout(structure(CLOCK, "answer"), "answer") == layout(structure(STUB, "answer"), "answer")


# --- readings -------------------------------------------------------------------------------------------------------


def cut(now, granted, cost, visits=0, first=0, last=0, **counters):
    names = counter_names()
    values = [0] * len(names)
    for name, value in counters.items():
        values[names.index(name)] = value
    points = [SimpleNamespace(visits=visits, first_ns=first, last_ns=last, moments=0)] * EngineOptions().max_points
    return SimpleNamespace(now_ns=now, granted=granted, cost=cost, counters=values, points=points)


def reading(arm):
    engine = Engine(EngineOptions())
    engine._plan = WindowPlan(arm, 1, 0.5, 0, 1000)
    return engine._read(
        cut(10_000, 400, 50, 5, selected=7, in_scope=9),
        cut(10_500, 500, 60, 8, selected=8, in_scope=11),
        cut(11_000, 700, 80, 12, first=9_700, last=10_200, selected=10, in_scope=15),
    )


def test_a_treated_window_is_shorter_by_what_was_granted():
    found = reading(Arm.TREATED)
    assert (found.start_ns, found.wall_ns, found.delay_ns) == (10_000, 1000, 300)
    assert (found.effective_ns, found.half_effective_ns) == (700, 400)
    assert (found.selected_samples, found.samples) == (3, 6)
    point = found.points[0]
    # Times of visits are effective ones, 9600 when the window began.
    assert (point.visits, point.half_visits, point.first_ns, point.last_ns) == (7, 3, 100, 600)


def test_a_placebo_window_is_shorter_by_the_cost_of_its_signals():
    found = reading(Arm.PLACEBO)
    assert (found.delay_ns, found.effective_ns, found.half_effective_ns) == (300, 970, 490)


def test_a_point_that_was_not_visited_has_no_times():
    engine = Engine(EngineOptions())
    engine._plan = WindowPlan(Arm.TREATED, 1, 0.5, 0, 1000)
    edges = [cut(now, 0, 0, visits=4, first=1, last=2) for now in (0, 500, 1000)]
    point = engine._read(*edges).points[0]
    assert (point.visits, point.first_ns, point.last_ns) == (0, None, None)


def test_more_points_than_there_is_room_for():
    with pytest.raises(CausalError) as caught:
        Engine(EngineOptions()).load(33)
    assert "33 progress points" in caught.value.message


def test_closing_what_was_never_loaded():
    with Engine(EngineOptions()) as engine:
        engine.close()
    engine.close()
