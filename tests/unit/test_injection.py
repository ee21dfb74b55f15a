"""Injection seen from here: what the injector says, when handlers are brought in, and what is brought."""

import re
import subprocess

import pytest

from causal import injection
from causal.errors import CausalError
from causal.injection import INJECTOR_PATH, Handlers, Injected, InjectionError, Table, is_go, missing, parse_report
from causal.loading import BPF_DIRECTORY
from causal.processes import Ended, Process

PROCESS = Process(12, 34, "server", "/bin/server")
STUB = BPF_DIRECTORY / "stub"


def test_a_good_report():
    line = "ok signal=23 handler=7f00a050 reused=1 stopped_us=282 repaired=3\n"
    assert parse_report(PROCESS, line) == Injected(23, 0x7F00A050, True, 282, 3)


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        ("error gone no such process", "gone", "ended while"),
        ("error denied Operation not permitted", "denied", "not permitted"),
        ("error closed Permission denied", "closed", "another user"),
        ("error stuck it did not stop", "stuck", "uninterruptible"),
        ("error busy choosing a signal: x", "busy", "SIGWINCH"),
        ("error refused mmap: Cannot allocate memory", "refused", "Cannot allocate"),
        ("", "failed", "no answer"),
        ("nonsense", "failed", "nonsense"),
    ],
)
def test_a_bad_report(line, reason, words):
    with pytest.raises(InjectionError) as caught:
        parse_report(PROCESS, line)
    assert caught.value.reason == reason and words in caught.value.message and caught.value.hint


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def attended(monkeypatch):
    """Handlers with a clock that is set by hand, and the list of the pids that were injected into."""
    monkeypatch.setattr(injection, "look_up", lambda pid: Process(pid, 1, "p", "/bin/p"))
    monkeypatch.setattr(injection, "obstacle", lambda process: "it must not be" if process.pid == 99 else None)
    monkeypatch.setattr(injection, "is_go", lambda path: False)
    asked, clock = [], Clock()

    def bring(process, table, chain):
        asked.append(process.pid)
        if reason := {66: "refused", 77: "stuck", 88: "gone"}.get(process.pid):
            raise InjectionError(reason, "it would not", "do this")
        return Injected(23, 1, False, 100, 0)

    return Handlers(Table(3, 8192), inject=bring, now=clock), asked, clock


def test_once_for_each_program_that_a_process_executes(attended):
    handlers, asked, _ = attended
    for version in (1, 1, 2, 2, 1):
        handlers.attend(10, version)
    assert asked == [10, 10]
    assert handlers.lacking == {} and set(handlers.done) == {10}


def test_preloaded_programs_are_given_a_moment(attended):
    handlers, asked, clock = attended
    handlers.preloaded = True
    handlers.attend(10, 1)
    assert asked == []
    clock.now += 1
    handlers.attend(10, 1)
    assert asked == [10]


def test_why_there_is_no_handler(attended):
    handlers, asked, _ = attended
    handlers.attend(99, 1)
    handlers.attend(66, 1)
    assert handlers.lacking == {99: "it must not be", 66: "it would not; do this"} and asked == [66]
    assert handlers.are_impossible()
    assert list(missing(handlers, False)) == [
        "nothing could be paused, so there are shares and rates, but no experiments",
        "not paused: 99: it must not be", "not paused: 66: it would not; do this",
    ]  # fmt: skip
    assert next(iter(missing(handlers, True))) == "not paused: 99: it must not be"
    handlers.attend(77, 1)
    assert set(handlers.passing) == {77} and not handlers.are_impossible()


def test_what_has_ended_lacks_nothing(attended, monkeypatch):
    handlers, asked, _ = attended
    handlers.attend(88, 1)

    def look_up(pid):
        raise Ended(f"there is no process {pid}") if pid == 5 else CausalError("another user's")

    monkeypatch.setattr(injection, "look_up", look_up)
    handlers.attend(5, 1)
    handlers.attend(6, 1)
    assert asked == [88] and set(handlers.passing) == {5, 6, 88}
    assert list(missing(handlers, True)) == ["not paused: 6: another user's"]


def test_go_is_recognised(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF" + b"x" * 5000 + b"\xff Go buildinf:" + b"y" * 100)
    assert is_go(str(program))
    program.write_bytes(b"\x7fELF" + b"x" * 5000)
    assert not is_go(str(program)) and not is_go(str(tmp_path / "none"))


def test_the_injected_code_needs_nothing_but_itself():
    """It is copied, so nothing in it may refer to what is not copied."""
    listing = subprocess.run(
        ["objdump", "--disassemble", "--section=handler", INJECTOR_PATH], capture_output=True, text=True, check=True
    ).stdout
    addresses = [int(line.split(":")[0], 16) for line in listing.splitlines() if re.match(r"\s+[0-9a-f]+:\t", line)]
    assert len(addresses) > 50
    low, high = min(addresses), max(addresses)
    assert high - low < 4096
    targets = [int(match, 16) for match in re.findall(r"(?:# |(?:call|j\w+)\s+)([0-9a-f]{3,})\b", listing)]
    assert targets
    assert all(low <= target <= high for target in targets), [hex(t) for t in targets]


def test_its_parts_agree():
    text = (STUB / "injected.h").read_text()
    assert int(re.search(r"INJECTED_MAGIC (0x\w+)UL", text)[1], 16) == int(
        re.search(r'INJECTED_MAGIC_TEXT "(0x\w+)"', text)[1], 16
    )
    magic = re.search(r"REGISTER_MAGIC (0x\w+)", (STUB / "pausing.h").read_text())[1]
    assert magic in (STUB / "handover.c").read_text()


def test_wrong_usage_is_refused():
    done = subprocess.run([INJECTOR_PATH], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage" in done.stderr
    gone = subprocess.run(
        [INJECTOR_PATH, "4194304", "1", "0", "8192", "0"], capture_output=True, text=True, check=False
    )
    assert gone.stdout.startswith("error gone")
