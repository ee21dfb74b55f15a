"""Live progress: what it shows of a status, names left as they are, and nothing where nobody looks at it."""

import io
import sys

import pytest
from rich.console import Console

from causal.experiment import Status
from cli.live import LiveProgress, render


def shown(status, width=80):
    out = io.StringIO()
    Console(file=out, width=width, markup=True, emoji=True).print(render(status))
    return out.getvalue()


def status(**changes):
    values = {
        "elapsed_s": 12.3, "duration_s": 30.0, "activity": "solve 50% treated", "rates": {"step": 98.76}, "pairs": 7,
        "best": (("solve", 0.42, 5), ("parse", -0.1, 3)),
    }  # fmt: skip
    return Status(**values | changes)


def test_time_activity_rates_and_the_best():
    text = shown(status())
    assert "profiling 12 s" in text and "18 s left" in text and "7 experiments" in text
    assert "solve 50% treated" in text
    assert "98.8 visits/s of step" in text
    assert "+42% per 100 % of solve" in text and "-10% per 100 % of parse" in text


def test_without_a_duration_nothing_is_left():
    assert "left" not in shown(status(duration_s=None))


def test_time_that_is_up_is_not_negative():
    assert " 0 s left" in shown(status(elapsed_s=31.0))


@pytest.mark.parametrize("name", ["[unknown]", "foo[abi:cxx11]", "main.c:100:7", "[/bold]", "a:smile:b"])
def test_names_are_printed_as_they_are(name):
    text = shown(status(activity=f"{name} 5% placebo", rates={name: 1.0}, best=((name, 0.5, 2),)))
    assert text.count(name) == 3


def test_a_long_name_stays_on_its_line():
    short, long = (shown(status(activity=name, rates={name: 1.0}), width=60) for name in ("f", "f" * 500))
    assert short.count("\n") == long.count("\n")


def test_no_more_than_three_regions():
    best = tuple((f"region{i}", 0.1, 1) for i in range(5))
    assert shown(status(best=best)).count("rough") == 3


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_on_what_is_no_terminal(capsys, quiet):
    with LiveProgress(quiet) as progress:
        progress.show(status())
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_it_unless_it_is_to_be_quiet(monkeypatch):
    for quiet, seen in ((False, True), (True, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with LiveProgress(quiet) as progress:
            progress.show(status())
            progress.show(status(pairs=8))  # too soon to be drawn again
        assert ("7 experiments" in terminal.getvalue()) == seen
        assert "8 experiments" not in terminal.getvalue()
