"""Brings the pause handler into processes that run already, by the small program `causal-inject`.

It is a program of its own, and detached, so that it finishes what it began: neither Ctrl-C nor the end of the profiler
reaches it. Killed itself it does no harm either: bpf/stub/landing_x86_64.c.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from causal.capabilities import INJECTOR_PATH
from causal.errors import CausalError
from causal.processes import NO_PAUSES, Ended, Process, look_up, obstacle

_PATIENCE_S = 20.0
# A program just executed by one of ours may still bring the preloaded library, and Go its own handlers.
_GRACE_S = 0.15
_GO_PATIENCE_S = 2.0
_GO_SIGNAL_BIT = 1 << 22  # SIGURG, by which Go interrupts its own threads
_GO_MARK = b"\xff Go buildinf:"
_GO_SEARCHED = 64 * 1024 * 1024


@dataclass(frozen=True)
class Table:
    """The table of answers that handlers read: its descriptor and its number of lines."""

    descriptor: int
    lines: int


@dataclass(frozen=True)
class Injected:
    """What an injection did. `reused`: the handler was there from an earlier one; `repaired`: threads that blocked the
    signal and no longer do; `stopped_us`: how long one thread was held."""

    signal: int
    handler: int
    reused: bool
    stopped_us: int
    repaired: int


class InjectionError(CausalError):
    """No handler could be brought in; `reason` is a word of the injector's.

    `passing`: it is not because of the process, and another attempt may well succeed.
    """

    def __init__(self, reason: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.reason = reason
        self.passing = reason in ("gone", "stuck", "taken", "missing")


def inject(process: Process, table: Table, chain: bool = False) -> Injected:
    """Bring the handler into a process, or give a handler that is there already a new table.

    `chain`: the program's own handler of the signal goes on seeing it. Raises InjectionError.
    """
    words = [process.pid, process.start, table.descriptor, table.lines, int(chain)]
    try:
        # communicate() would kill it when interrupted, so it writes into a pipe that holds all it says.
        injector = subprocess.Popen(
            [str(INJECTOR_PATH), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, pass_fds=[table.descriptor], start_new_session=True, text=True, cwd="/",
        )  # fmt: skip
    except OSError as error:
        raise InjectionError(
            "missing", f"cannot start {INJECTOR_PATH}: {error.strerror}", "build it: scripts/setup"
        ) from None
    assert injector.stdout
    with injector.stdout:
        line = injector.stdout.read()
    with contextlib.suppress(subprocess.TimeoutExpired):
        injector.wait(_PATIENCE_S)
    return parse_report(process, line)


def parse_report(process: Process, line: str) -> Injected:
    """The injector's line as a value. Raises InjectionError for what it could not do."""
    kind, _, rest = line.strip().partition(" ")
    if kind == "ok":
        said = dict(word.split("=", 1) for word in rest.split())
        return Injected(
            int(said["signal"]), int(said["handler"], 16), said["reused"] == "1", int(said["stopped_us"]),
            int(said["repaired"]),
        )  # fmt: skip
    reason, _, detail = rest.partition(" ")
    who = f"process {process.pid} ({process.name})"
    known = {
        "gone": (f"{who} ended while we attached", "attach to one that runs"),
        "denied": (f"{who} may not be traced: {detail}", "run as root, or end its debugger if it has one"),
        "closed": (
            f"{who} belongs to another user, and its memory may not be opened ({detail})",
            "run as root, or with CAP_DAC_OVERRIDE too",
        ),
        "stuck": (f"{who} sits in an uninterruptible system call", f"try again when it runs, {NO_PAUSES}"),
        "taken": (f"{who} is being prepared by another causal-bpf, or one has just died in it", "try again in 3 s"),
        "unfit": (f"{who}: {detail}", "only 64-bit programs can be paused"),
        "busy": (
            f"{who} has handlers of its own for both SIGURG and SIGWINCH, so no signal is left to pause it with",
            "one of them must be free",
        ),
        "refused": (f"{who} could not be prepared: {detail}", "its limits may be too low"),
    }
    if reason not in known:
        raise InjectionError(
            "failed", f"{who} could not be prepared: {line.strip() or 'no answer'}", "please report it"
        )
    raise InjectionError(reason, *known[reason])


def is_go(executable: str) -> bool:
    """Whether a program was made by Go, whose runtime has handlers for all signals and needs to see SIGURG."""
    try:
        with open(executable, "rb") as file:
            return _GO_MARK in file.read(_GO_SEARCHED)
    except OSError:
        return False


@dataclass
class Handlers:
    """Sees to it that every process of the target has the handler; knows which cannot have it, and why.

    `attend` is called now and then for each process that has none; children that a process forks inherit it.
    """

    table: Table
    inject: Callable[[Process, Table, bool], Injected] = inject
    now: Callable[[], float] = time.monotonic
    preloaded: bool = False  # programs bring the handler with them, when they are given a moment
    lacking: dict[int, str] = field(default_factory=dict)  # pid -> why it has no handler
    passing: dict[int, CausalError] = field(default_factory=dict)  # what may be otherwise another time; also who ended
    done: dict[int, Injected] = field(default_factory=dict)
    _seen: dict[tuple[int, int], float] = field(default_factory=dict)
    _tried: set[tuple[int, int]] = field(default_factory=set)
    _go: dict[str, bool] = field(default_factory=dict)

    def attend(self, pid: int, version: int) -> None:
        """Bring the handler into a process, unless it is too early or was tried; `version` grows when it executes."""
        key = (pid, version)
        if key in self._tried:
            return
        first = self._seen.setdefault(key, self.now())
        if self.preloaded and self.now() - first < _GRACE_S:
            return
        try:
            process = look_up(pid)
        except CausalError as error:
            self._tried.add(key)
            self.passing[pid] = error
            if not isinstance(error, Ended):
                self.lacking[pid] = error.message
            return
        go = self.is_go(process.executable)
        if go and not handles_signal(pid) and self.now() - first < _GO_PATIENCE_S:
            return  # its runtime is still starting, and would put its own handler in our place
        self._tried.add(key)
        self.bring(process, go)

    def bring(self, process: Process, chain: bool) -> None:
        """Bring the handler into a process now, or note why not."""
        self.passing.pop(process.pid, None)
        why = obstacle(process)
        if why is None:
            try:
                self.done[process.pid] = self.inject(process, self.table, chain)
                self.lacking.pop(process.pid, None)
                return
            except InjectionError as error:
                why = f"{error.message}; {error.hint}"
                if error.passing:
                    self.passing[process.pid] = error
                if error.reason == "gone":
                    return
        self.lacking[process.pid] = why

    def are_impossible(self) -> bool:
        """Whether nothing can be paused, now or another time."""
        return bool(self.lacking) and not self.done and not self.passing

    def is_go(self, executable: str) -> bool:
        if executable not in self._go:
            self._go[executable] = is_go(executable)
        return self._go[executable]


def missing(handlers: Handlers | None, some: bool) -> Iterator[str]:
    """What cannot be had, and why, in sentences for the user; None for handlers that nobody wanted.

    `some`: a process of the target has a handler.
    """
    if handlers is None:
        yield "without pauses, as asked for: shares and rates, but no experiments"
        return
    if handlers.lacking and not some:
        yield "nothing could be paused, so there are shares and rates, but no experiments"
    for why in dict.fromkeys(handlers.lacking.values()):
        pids = [str(pid) for pid, its in handlers.lacking.items() if its == why]
        yield f"not paused: {', '.join(pids[:5])}{' ...' if len(pids) > 5 else ''}: {why}"


def handles_signal(pid: int, bit: int = _GO_SIGNAL_BIT) -> bool:
    """Whether a process has a handler for SIGURG."""
    with contextlib.suppress(OSError, StopIteration):
        with open(f"/proc/{pid}/status") as file:
            mask = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        return bool(int(mask, 16) & bit)
    return False
