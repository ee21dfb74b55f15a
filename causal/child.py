"""The program that `run` starts: as the user who called sudo, with the stub preloaded, held until we are ready.

The child waits at a gate before it executes the command, so that it is on the clock from its first instruction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from causal.errors import CausalError
from causal.kernel_calls import lower_ambient_capabilities

STUB_PATH = Path(__file__).resolve().parent.parent / "bpf" / "stub" / "libcausal-stub.so"
# High, so that the numbers the target gets for its own descriptors are the usual ones.
_HIGH_DESCRIPTOR = 600
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True)
class Preload:
    """What the stub needs: the table to map, its number of lines, and the signal to answer; the table of counters that
    the program adds to itself, and its number of lines. A table of no lines is not mapped."""

    answers_fd: int
    lines: int
    signal: int
    macros_fd: int = -1
    macros: int = 0


@dataclass(frozen=True)
class Owner:
    """Who called sudo."""

    uid: int
    gid: int


def invoking_user(environ: Mapping[str, str] = os.environ) -> Owner | None:
    """The user behind sudo, None when there is none (or it is root)."""
    if os.geteuid() != 0 or not environ.get("SUDO_UID", "").isdigit():
        return None
    uid = int(environ["SUDO_UID"])
    return Owner(uid, int(environ.get("SUDO_GID", uid))) if uid else None


class Child:
    """One execution of a command. `start` forks it, `release` lets it run, `poll` and `wait` tell how it ended."""

    def __init__(self, pid: int, gate: int, failure: int, command: Sequence[str]) -> None:
        self.pid = pid
        self.status: int | None = None  # as shells have it: 0..255, 128 + signal
        self._gate = gate
        self._failure = failure
        self._command = command

    @classmethod
    def start(
        cls, program: str, command: Sequence[str], preload: Preload | None, owner: Owner | None,
        streams: Sequence[int] = (),
    ) -> Child:  # fmt: skip
        """Fork; the child waits for `release`. `program` is the file to execute, `command` its argv.

        `streams`: descriptors that become its 0, 1 and 2; without them it has ours.
        """
        gate_read, gate_write = os.pipe()
        failure_read, failure_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate_write)
            os.close(failure_read)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            _become(program, command, preload, owner, gate_read, failure_write)
        os.close(gate_read)
        os.close(failure_write)
        # What Python does after a fork (system calls by libc's functions) must not count as the program's.
        os.read(failure_read, 1)
        return cls(pid, gate_write, failure_read, command)

    def release(self) -> None:
        """Let it execute the command. Raises CausalError (126 or 127) when that fails."""
        os.write(self._gate, b"x")
        os.close(self._gate)
        with os.fdopen(self._failure, "rb") as pipe:
            code = pipe.read()
        if not code:
            return
        self.wait()
        number = int(code)
        missing = number in (2, 20)  # ENOENT, ENOTDIR
        raise CausalError(
            f"cannot execute {self._command[0]}: {os.strerror(number)}",
            "check the path of the command (and, for a script, of its interpreter) and its permissions",
            _NOT_FOUND if missing else _NOT_EXECUTABLE,
        )

    def poll(self) -> int | None:
        """How it ended, None while it runs."""
        if self.status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._ended(status)
        return self.status

    def wait(self) -> int:
        if self.status is None:
            self._ended(os.waitpid(self.pid, 0)[1])
        assert self.status is not None
        return self.status

    def wait_for_usage(self) -> resource.struct_rusage:
        """Wait for it to end; what it and those of its children that it waited for have used."""
        _, status, usage = os.wait4(self.pid, 0)
        self._ended(status)
        return usage

    def terminate(self, patience_s: float, sleep: Callable[[float], None]) -> int | None:
        """SIGTERM, and its status if it ends within `patience_s`; it is never killed harder than that."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            waited = 0.0
            while self.poll() is None and waited < patience_s:
                sleep(0.02)
                waited += 0.02
        return self.status

    def _ended(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code


def _become(
    program: str, command: Sequence[str], preload: Preload | None, owner: Owner | None, gate: int, failure: int
) -> NoReturn:
    """In the child: wait for the gate, then execute; the reason goes through `failure` when that is not possible."""
    try:
        os.write(failure, b"\n")  # at the gate
        if not os.read(gate, 1):
            os._exit(_NOT_EXECUTABLE)  # the profiler gave up before it began
        os.close(gate)
        environment = dict(os.environ)
        if preload:
            environment |= _preload_environment(preload)
        if owner:
            _drop_privileges(owner)
        lower_ambient_capabilities()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and ignoring survives exec
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, list(command), environment)
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    finally:
        os._exit(_NOT_EXECUTABLE)


def _preload_environment(preload: Preload) -> dict[str, str]:
    tables = [(preload.answers_fd, preload.lines, preload.signal), (preload.macros_fd, preload.macros)]
    words = [word for fd, *rest in tables for word in (_inherited(fd) if rest[0] else 0, *rest)]
    others = os.environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": f"{STUB_PATH}:{others}" if others else str(STUB_PATH),
        "CAUSAL_BPF_STUB": ":".join(map(str, words)),
    }


def _inherited(descriptor: int) -> int:
    """A copy of a descriptor that survives exec, so that children register too."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = min(_HIGH_DESCRIPTOR, max(limit - 8, 3)) if limit != resource.RLIM_INFINITY else _HIGH_DESCRIPTOR
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, lowest)


def _drop_privileges(owner: Owner) -> None:
    try:
        os.initgroups(pwd.getpwuid(owner.uid).pw_name, owner.gid)
    except KeyError:
        os.setgroups([])
    os.setgid(owner.gid)
    os.setuid(owner.uid)
