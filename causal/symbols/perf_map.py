"""Functions of just-in-time compiled code: the map that a runtime writes for perf, `/tmp/perf-PID.map`.

One line per function, `START SIZE NAME` with hexadecimal numbers; where code is overwritten, later lines hold. Node
writes it with `--perf-basic-prof` and Python from 3.12 with `-X perf`, as they compile; Java all of it anew for each of
jcmd's `Compiler.perfmap`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

# V8 says with a mark how far it has optimised a function: `JS:*f`. For a reader it is one function.
_TIER = re.compile(r"(JS|LazyCompile|Function|Script|Eval):[*~^+]")
_LONGEST_NAME = 500
_TAIL = 256
_MOST_BYTES = 256 << 20
_MOST_FUNCTIONS = 1 << 19
_MOST_AT_ONCE = 16 << 20
_ADDRESSES = 1 << 47  # user space of x86-64 and of arm64, as far as runtimes use it
# How much earlier than its process a map may seem to be written: the clock may have been set meanwhile.
_CLOCK_SLACK_S = 2.0


class JitFunction(NamedTuple):
    """Addresses `start` to `end` (exclusive) of the process."""

    start: int
    end: int
    name: str


class PerfMap:
    """The map of one process, read as it grows. `why_not` says why it is not used, "" while there is no reason."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self.functions: list[JitFunction] = []
        self.why_not = ""
        self._pid, self._proc = pid, proc
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._tail = b""  # the end of what was read
        self._changed_ns = 0

    @property
    def path(self) -> str:
        """Where it is, seen from here: the process may have another /tmp and another number for itself."""
        own_number = (_status(self._pid, self._proc).get("NSpid") or str(self._pid)).split()[-1]
        return os.path.join(self._proc, str(self._pid), "root/tmp", f"perf-{own_number}.map")

    def read_on(self) -> bool:
        """Read what is new, at most 16 MB at a time; whether `functions`, in the order written, have changed."""
        try:
            # Anybody may put anything into /tmp: no links, no waiting for a FIFO.
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            self.why_not = self._distrust(status)
            if self.why_not:
                return self._forget()
            identity = status.st_dev, status.st_ino
            changed = False
            if identity != self._identity or self._rewritten(file, status):
                changed = self._forget()
                self._identity = identity
            self._changed_ns = status.st_mtime_ns
            if status.st_size == self._offset:
                return changed
            file.seek(self._offset)
            text = file.read(min(_MOST_AT_ONCE, max(_MOST_BYTES - self._offset, 0)))
        self._offset += len(text)
        self._tail = (self._tail + text)[-_TAIL:]
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._rest = self._rest[: _LONGEST_NAME + 64]  # whatever has no ends of lines is no map
        before = len(self.functions)
        self.functions += [function for function in map(parse_line, lines) if function]
        del self.functions[_MOST_FUNCTIONS:]
        return changed or len(self.functions) > before

    def _rewritten(self, file: BinaryIO, status: os.stat_result) -> bool:
        """Whether what was read is there no more: jcmd writes the whole map anew each time."""
        if status.st_size <= self._offset:
            return status.st_size < self._offset or status.st_mtime_ns != self._changed_ns
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) != self._tail

    def _forget(self) -> bool:
        had_any = bool(self.functions)
        self.functions, self._identity, self._offset, self._rest, self._tail = [], None, 0, b"", b""
        return had_any

    def _distrust(self, status: os.stat_result) -> str:
        process = _status(self._pid, self._proc)
        users = {int(number) for number in process.get("Uid", "").split()[:2]}
        groups = {int(number) for number in process.get("Gid", "").split()[:2]}
        return why_distrusted(status, users, groups, _started_s(self._pid, self._proc))


def why_distrusted(status: os.stat_result, users: set[int], groups: set[int], started_s: float) -> str:
    """Why a map must not be believed, "" if it may: only the process's own user (or root) can have written it, and only
    since the process began (seconds since the epoch)."""
    if not stat.S_ISREG(status.st_mode):
        return "not used: it is no regular file"
    if status.st_uid not in users | {0}:
        return f"not used: it belongs to user {status.st_uid}, not to that of the process"
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid not in groups | {0}):
        return "not used: others than the user of the process may write to it (chmod go-w)"
    if status.st_mtime < started_s - _CLOCK_SLACK_S:
        return "not used: it is older than the process"
    return ""


def parse_line(line: bytes) -> JitFunction | None:
    """A function, or None for a line that makes no sense."""
    parts = line.split(None, 2)
    if len(parts) < 3:
        return None
    try:
        start, size = int(parts[0], 16), int(parts[1], 16)
    except ValueError:
        return None
    if start <= 0 or not 0 < size < _ADDRESSES or start + size > _ADDRESSES:
        return None
    name = parts[2].decode("utf-8", "replace").strip()[:_LONGEST_NAME]
    name = "".join(character if character.isprintable() else "?" for character in _TIER.sub(r"\1:", name, count=1))
    return JitFunction(start, start + size, name) if name else None


def _status(pid: int, proc: str) -> dict[str, str]:
    try:
        lines = Path(proc, str(pid), "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _started_s(pid: int, proc: str) -> float:
    """When the process began, in seconds since the epoch; 0 if it has ended."""
    try:
        ticks = int(Path(proc, str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        boot = re.search(r"^btime (\d+)", Path(proc, "stat").read_text(), re.MULTILINE)
    except (OSError, IndexError, ValueError):
        return 0.0
    return int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK") if boot else 0.0
