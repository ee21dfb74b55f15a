"""The options of `run`, its exit code, and its signals."""

import argparse
import io
import os
import re
import signal

import pytest
from rich.console import Console

from causal.errors import UsageError
from causal.recording import Outcome
from causal.survey import Share, Survey
from cli import main, run
from cli.interruption import interruptible
from cli.regions import print_survey


def options(*words):
    parser = argparse.ArgumentParser()
    run.RunCommand().prepare_parser(parser)
    return run._options(parser.parse_args(words))


def test_defaults():
    found = options("-p", "step", "--", "./prog", "--flag", "-p", "x")
    assert found.command == ["./prog", "--flag", "-p", "x"]
    assert found.points == ["step"] and found.unit is None and found.sources == []
    assert found.duration_s is None and found.speedups is None and found.seed is None
    assert found.engine.period_ns == 1_000_000 and found.engine.max_pause_ns == 200_000_000
    assert not found.force and not found.keep_running


def test_everything():
    found = options(
        "-p", "a", "-p", "b=c@libd", "-u", "module", "-b", "libx", "--only", "y*", "--speedups", "20-30",
        "--duration", "2m", "--seed", "7", "--period", "500us", "--max-pause", "50ms", "--max-threads", "99",
        "--keep-running", "-o", "out", "--force", "--", "prog",
    )  # fmt: skip
    assert found.points == ["a", "b=c@libd"] and found.unit == "module" and found.binaries == ["libx"]
    assert found.only == ["y*"] and found.speedups == [20, 25, 30] and found.duration_s == 120 and found.seed == 7
    assert found.period_ns == 500_000 and found.engine.max_pause_ns == 50_000_000
    assert found.engine.max_threads == 99
    assert found.keep_running and found.force and str(found.output) == "out"


def test_a_command_without_the_dashes():
    assert options("-p", "step", "prog", "-x").command == ["prog", "-x"]


def test_a_profile_has_a_name_of_its_own():
    name = str(options("-p", "step", "--", "/usr/bin/prog").output)
    assert re.fullmatch(r"causal-prog-\d{8}-\d{6}\.jsonl", name)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("-p", "step"), "no command"),
        (("-p", "step", "--"), "no command"),
        (("--repeat", "5", "-p", "step", "--", "x"), "--repeat"),
        (("-p", "step", "--period", "10us", "--", "x"), "--period"),
        (("-p", "step", "--period", "1s", "--", "x"), "--period"),
    ],
)
def test_what_makes_no_sense(words, complaint):
    with pytest.raises(UsageError) as caught:
        options(*words)
    assert complaint in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("duration", None, 0), ("duration", 143, 0), ("exit", 0, 0), ("exit", 3, 3), ("exit", 137, 137),
        ("interrupt", None, 130), ("interrupt", 130, 130), ("exit", None, 0),
    ],
)  # fmt: skip
def test_exit_codes(reason, status, code):
    assert run._exit_code(Outcome(None, reason, status)) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_insists(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.requested
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_help_tells_of_every_option(capsys):
    assert main.main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    for word in ("-p", "--repeat", "--unit", "--only", "--speedups", "--duration", "--keep-running", "-o", "--seed"):
        assert word in out


def test_the_list_of_regions_names_what_is_out_of_scope():
    shares = [Share("main.c:10", "[x]::operator()", 0.6, True), Share("a.c:1", "", 0.0001, True)]
    places = [Share("main.c", "", 0.6, True), Share("libc.so.6", "", 0.4, False)]
    console = Console(file=io.StringIO(), width=80)
    print_survey(Survey("line", shares, places, 1000, 0.6, None), console)
    lines = console.file.getvalue().splitlines()
    assert lines[:3] == ["line       function           CPU", "main.c:10  [x]::operator()  60.0%",
                         "60% of 1,000 samples are in scope."]  # fmt: skip
    assert [line.split() for line in lines[4:6]] == [["out", "of", "scope", "CPU"], ["libc.so.6", "40.0%"]]
    assert "-s FILE or -b BINARY" in " ".join(lines[6:])
    print_survey(Survey("line", [], [], 0, 0.0, 0), console)
    assert "no CPU time" in console.file.getvalue()
