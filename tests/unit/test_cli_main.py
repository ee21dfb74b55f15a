"""The command line: how verbs are chosen, and what failures look like."""

import errno
import json
import os
import subprocess
import sys

import pytest

import causal
from causal.capabilities import Capability
from causal.errors import CausalError, UsageError
from cli import doctor, main

HEAVY = {"bcc", "numpy", "statsmodels", "sklearn", "scipy", "pandas", "elftools"}


class Failing:
    """A verb that raises what the test wants."""

    name = "doctor"
    help = "Fails."
    failure = None

    def prepare_parser(self, parser):
        parser.add_argument("--depth", type=int)

    def run(self, args):
        raise self.failure


@pytest.fixture
def failing(monkeypatch):
    """Run the command line with a verb that raises the given exception; returns the exit code."""

    def run(failure):
        monkeypatch.setattr(Failing, "failure", failure)
        monkeypatch.setattr(doctor, "DoctorCommand", Failing)
        return main.main(["doctor"])

    monkeypatch.delenv("CAUSAL_BPF_DEBUG", raising=False)
    return run


def test_our_error_is_one_error_and_one_hint(failing, capsys):
    assert failing(CausalError("no BTF\nhere", "boot another kernel", exit_code=126)) == 126
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: no BTF here\nhint: boot another kernel\n")


def test_error_without_a_hint(failing, capsys):
    assert failing(UsageError("bad level")) == 2
    assert capsys.readouterr().err == "error: bad level\n"


def test_terminal_commands_in_a_name_are_not_printed(failing, capsys):
    failing(CausalError("no function \x1b[31mred\x07"))
    assert capsys.readouterr().err == "error: no function [31mred\n"


def test_unexpected_failure_names_the_way_to_a_traceback(failing, capsys):
    assert failing(ZeroDivisionError("by zero")) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected ZeroDivisionError: by zero\nhint: ")
    assert "CAUSAL_BPF_DEBUG=1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("failure", [ZeroDivisionError("by zero"), CausalError("ours")])
def test_debugging_shows_the_traceback(failing, capsys, monkeypatch, failure):
    monkeypatch.setenv("CAUSAL_BPF_DEBUG", "1")
    assert failing(failure) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error: " in err


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(failing, capsys, code):
    assert failing(OSError(code, os.strerror(code), "/mnt/causal.jsonl")) == 1
    assert "error: no space left for /mnt/causal.jsonl\n" in capsys.readouterr().err


def test_unreadable_file_is_named(failing, capsys):
    assert failing(PermissionError(errno.EACCES, "Permission denied", "/etc/shadow")) == 1
    assert "error: /etc/shadow: Permission denied\n" in capsys.readouterr().err


def test_interrupt(failing, capsys):
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_a_pipe_that_is_not_our_output_is_a_failure(failing, capsys):
    assert failing(BrokenPipeError(errno.EPIPE, "Broken pipe")) == 1
    assert "BrokenPipeError" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["--help"]])
def test_reader_that_leaves_is_no_failure(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "cli.main", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_on_a_full_disk():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "cli.main", "doctor"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no space left\nhint: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ([], "causal-bpf run -- "),
        (["nonsense"], "see causal-bpf --help"),
        (["--nonsense"], "see causal-bpf --help"),
        (["doctor", "--nonsense"], "see causal-bpf doctor --help"),
        (["doctor", "extra"], "see causal-bpf doctor --help"),
    ],
)
def test_wrong_usage(capsys, arguments, hint):
    assert main.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert hint in err
    assert err.count("\n") == 2


def test_version(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"causal-bpf {causal.__version__}\n"


def test_help_lists_every_verb(capsys):
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert all(f"\n    {name} " in out for name in main.VERBS)


@pytest.mark.parametrize("name", main.VERBS)
def test_every_verb_has_the_shape_of_a_command(name, capsys):
    command = main.VERBS[name].load()
    assert command.name == name
    assert main.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert command.help.split("\n")[0][:40] in out


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in main.VERBS)])
def test_help_imports_nothing_heavy(arguments):
    script = (
        "import sys; from cli.main import main; code = main(sys.argv[1:]);"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_the_verb_is_the_first_word():
    assert main.choose_verb(["doctor", "--json"]) == "doctor"
    assert main.choose_verb(["--version", "doctor"]) == "doctor"
    assert main.choose_verb(["nonsense", "doctor"]) is None
    assert main.choose_verb([]) is None


FOUND = [
    Capability("bcc", True, True, "/usr/lib/[odd]/bcc", ""),
    Capability("uprobes", False, True, "refused: main.c:100:7", "boot [another] kernel"),
    Capability("tracefs", False, True, "gone", "boot [another] kernel"),
    Capability("hardware cycles", False, False, "none", "not needed"),
]


def test_doctor_fails_and_prints_each_remedy_once(monkeypatch, capsys):
    monkeypatch.setattr(doctor.capabilities, "probe", lambda: FOUND)
    assert main.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "/usr/lib/[odd]/bcc" in out
    assert "main.c:100:7" in out
    assert out.count("boot [another] kernel") == 1
    assert "start with uprobes" in out


def test_doctor_is_content_without_optional_ones(monkeypatch, capsys):
    monkeypatch.setattr(doctor.capabilities, "probe", lambda: [FOUND[0], FOUND[3]])
    assert main.main(["doctor"]) == 0
    assert "ready to profile" in capsys.readouterr().out


def test_doctor_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor.capabilities, "probe", lambda: FOUND)
    assert main.main(["doctor", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert printed["version"] == causal.__version__
    assert printed["capabilities"][1] == {
        "name": "uprobes",
        "ok": False,
        "required": True,
        "detail": "refused: main.c:100:7",
        "remedy": "boot [another] kernel",
    }
