"""A recording before anything runs: what is refused, what is looked up, and the small sums at the end."""

import os
from types import SimpleNamespace

import pytest

from causal.errors import CausalError, UsageError
from causal.injection import Handlers, Table
from causal.interruption import Interruption
from causal.progress import PointSpec
from causal.recording import machine, quantile_of_powers
from causal.running import RunOptions, _Run, can_preload, examine
from causal.selection import find_given
from causal.symbols.elf import Binary
from tests.unit.elf_fixture import ElfFile, Symbol

LOADER = "/lib64/ld-linux-x86-64.so.2"


@pytest.fixture
def program(tmp_path):
    """`program(...)` is the path of an ELF file with two functions, `work` and `step`."""

    def write(name="prog", mode=0o755, **attributes):
        path = tmp_path / name
        symbols = [Symbol("work", 0, 16), Symbol("step", 32, 16)]
        path.write_bytes(ElfFile(**{"symbols": symbols, "interpreter": LOADER} | attributes).build())
        path.chmod(mode)
        return str(path)

    return write


def options(command, **changes):
    return RunOptions(**{"command": [command], "output": None, "points": ["step"]} | changes)


def refused(run_options):
    with pytest.raises(CausalError) as caught:
        examine(run_options)
    assert caught.value.hint
    return caught.value


def test_what_was_asked_for_is_found(program):
    path = program()
    subject = examine(options(path, only=["wo*"], points=["rounds=step"]))
    assert subject.program == path and subject.main.path == path
    (place,) = subject.points.places
    assert place.spec == PointSpec("rounds", "step", "function", "step", None)
    assert [probe.symbol for probe in place.probes] == ["step"]
    assert subject.only == frozenset({1}) and subject.table.region(1).name == "work"


def test_without_a_choice_every_region_may_be_tried(program):
    subject = examine(options(program()))
    assert subject.only is None
    assert [region.name for region in subject.table] == ["work", "step"]


def test_a_script_is_its_interpreter(program, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{program()}\n")
    script.chmod(0o755)
    subject = examine(options(str(script)))
    assert subject.program == str(script)
    assert subject.main.name == "prog"


def test_a_link_is_followed(program, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(program())
    assert examine(options(str(link))).main.name == "prog"


@pytest.mark.parametrize("unit", ["module", "thread"])
def test_other_units_need_no_symbols(program, unit):
    subject = examine(options(program(symbols=[]), unit=unit, points=[]))
    assert subject.table.unit == unit
    assert [region.name for region in subject.table] == (["prog"] if unit == "module" else [])


def test_a_unit_to_come(program):
    error = refused(options(program(), unit="galaxy"))
    assert isinstance(error, UsageError) and "galaxy is not available yet" in error.message and "line" in error.hint


def test_without_debug_information_functions_are_the_unit(program):
    subject = examine(options(program()))
    assert subject.unit == "function" and subject.table.unit == "function"


@pytest.mark.parametrize("unit", ["line", "file"])
def test_lines_that_are_not_there(program, unit):
    error = refused(options(program(), unit=unit))
    assert "no line information" in error.message and "-g" in error.hint and "--unit function" in error.hint
    error = refused(options(program("bare", symbols=[]), unit=unit, points=[]))
    assert "no symbols at all" in error.message and "--unit module" in error.hint


def test_source_patterns_need_lines(program):
    error = refused(options(program(), sources=["src"]))
    assert isinstance(error, UsageError) and "-s" in error.message


@pytest.mark.parametrize("points", [["step", "step"], ["a=step", "a=work"], ["step=work", "step"]])
def test_two_points_of_one_name(program, points):
    error = refused(options(program(), points=points))
    assert error.exit_code == 2 and "same name" in error.message


def test_what_cannot_be_preloaded_is_injected(program):
    asan = [Symbol("__asan_init", section=0)]
    assert can_preload(Binary.load(program()))
    assert not can_preload(Binary.load(program("static", interpreter=None)))
    assert not can_preload(Binary.load(program("asan", dynamic_symbols=asan)))
    assert not can_preload(Binary.load(program("musl", interpreter="/lib/ld-musl-x86_64.so.1")))


def test_a_privileged_program_of_a_user(program, monkeypatch):
    path = program(mode=0o4755)
    examine(options(path))  # as root it can be done
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    error = refused(options(path))
    assert "set-user-id" in error.message and "root shell" in error.hint


@pytest.mark.parametrize(("point", "near"), [("stepp", "step"), ("steb", "step")])
def test_a_point_that_is_not_there(program, point, near):
    error = refused(options(program(), points=[point]))
    assert f"no function {point}" in error.message and near in error.hint


def test_a_region_that_is_not_there(program):
    error = refused(options(program(), only=["wrk"]))
    assert "no function in scope is called wrk" in error.message and "work" in error.hint


@pytest.mark.parametrize(
    ("make", "code"), [(lambda path: f"{path}-none", 127), (lambda path: os.path.dirname(path), 126)]
)
def test_a_command_that_cannot_be_run(program, make, code):
    assert refused(options(make(program()))).exit_code == code


# --- small sums -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("histogram", "q", "bound"),
    [
        ([0, 0, 0], 0.99, None),
        ([10], 0.99, 2),
        ([0, 0, 5], 0.5, 8),
        ([98, 1, 1], 0.99, 4),
        ([99, 0, 1], 0.99, 2),
        ([1, 1, 1, 1], 1.0, 16),
    ],
)
def test_quantile_of_a_histogram_of_powers(histogram, q, bound):
    assert quantile_of_powers(histogram, q) == bound


def test_what_it_was_measured_on():
    found = machine()
    assert found["kernel"] == os.uname().release and found["cpus"] >= 1


def test_an_interruption_is_remembered():
    interruption = Interruption()
    assert not interruption()
    interruption.requested = True
    assert interruption() and interruption()


def test_what_is_given_is_found_before_anything_runs(program):
    asked = options(program(), given=[("wo*", 0.5), ("step", 1.0)])
    subject = examine(asked)
    assert find_given(asked, subject.table, subject.only) == {1: 0.5, 2: 1.0}
    for changes, message in (
        ({"given": [("nothing", 0.5)]}, "no function in scope"),
        ({"given": [("work", 0.5)], "pauses": False}, "--no-pauses"),
        ({"given": [("work", 0.5)], "only": ["work"]}, "--only names nothing"),
        ({"given": [("main", 0.5)], "unit": "thread"}, "unit thread"),
    ):
        asked = options(program(), **changes)
        subject = examine(asked)
        with pytest.raises(CausalError, match=message) as caught:
            find_given(asked, subject.table, subject.only)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("registered", "lacking", "possible"), [(True, True, True), (False, True, False), (False, False, True)]
)
def test_whether_a_repeated_command_can_be_paused(registered, lacking, possible):
    """A helper that cannot be does not count where the command brings its own handler."""
    said = []
    handlers = Handlers(Table(3, 8192), lacking={12: "it is a 32-bit program"} if lacking else {})
    target = SimpleNamespace(was_registered=registered)
    base = SimpleNamespace(handlers=handlers, target=target, announce_missing=lambda: said.append(1))
    assert _Run(base, options("true"))._can_pause() == possible == (not said)
