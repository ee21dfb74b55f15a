"""The processes a user names to attach to: which ones those are, and why one of them cannot be profiled.

Everything comes from /proc; pids are the host's. A process is known by its pid together with its start time, because
pids are used again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from causal.errors import CausalError, UsageError
from causal.kernel_calls import effective_capabilities

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
NO_PAUSES = "or look without pauses, for shares and rates only: --no-pauses"


class Ended(CausalError):
    """A process is not there, or not any more."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `start` is its start time in clock ticks since boot, `executable` a path that opens its program."""

    pid: int
    start: int
    name: str
    executable: str


def look_up(pid: int, proc: Path = PROC) -> Process:
    """The process with this pid. Raises CausalError with a remedy when there is none that could be profiled."""
    if pid == os.getpid():
        raise UsageError(f"process {pid} is causal-bpf itself", "give the pid of another process")
    stat = _stat(pid, proc)
    if stat is None:
        if proc == PROC and _exists(pid):
            raise CausalError(
                f"process {pid} is hidden from this user", "run as root; in a container: mount /proc without hidepid"
            )
        raise Ended(f"there is no process {pid}", "look for it: pgrep -a NAME, or attach by --name NAME")
    name, fields = stat
    if fields[0] in "ZX":
        raise Ended(f"process {pid} ({name}) has ended already (a zombie)", "attach to one that runs")
    if int(fields[6]) & _KERNEL_THREAD:
        raise CausalError(f"process {pid} ({name}) is a thread of the kernel", "attach to a program")
    thread_group = _status(pid, proc).get("Tgid", str(pid))
    if thread_group != str(pid):
        raise CausalError(f"{pid} is a thread of process {thread_group}", f"attach to all of it: attach {thread_group}")
    return Process(pid, int(fields[19]), name, executable_of(pid, proc))


def is_alive(process: Process, proc: Path = PROC) -> bool:
    """Whether it still runs, and its pid is not another one's by now."""
    stat = _stat(process.pid, proc)
    return stat is not None and int(stat[1][19]) == process.start and stat[1][0] not in "ZX"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat(pid: int, proc: Path) -> tuple[str, list[str]] | None:
    """Its name, and the fields of its stat file from the third on; None when there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def _status(pid: int, proc: Path) -> dict[str, str]:
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def executable_of(pid: int, proc: Path = PROC) -> str:
    """A path by which the program of a process can be opened from here, also from another mount namespace."""
    try:
        path = os.readlink(proc / str(pid) / "exe")
    except PermissionError:
        raise _unreadable(pid, proc) from None
    except OSError:
        raise Ended(f"process {pid} has just ended", "attach to one that runs") from None
    if path.endswith(" (deleted)"):
        return str(proc / str(pid) / "exe")  # replaced by an update: the running file is still there
    return root_of(pid, proc) + path


def _unreadable(pid: int, proc: Path) -> CausalError:
    name, owner = (_stat(pid, proc) or ("?",))[0], _status(pid, proc).get("Uid", "").split()[:1]
    if owner == [str(os.getuid())]:
        why = "hides what it executes, also from its own user (it is not dumpable, or in a sandbox)"
    else:
        why = "belongs to another user: its program may not be read"
    return CausalError(f"process {pid} ({name}) {why}", "run as root, or with CAP_SYS_PTRACE")


_roots: dict[str, str] = {}


def root_of(pid: int, proc: Path = PROC) -> str:
    """What to put before a path of this process to open it from here: nothing in our own mount namespace.

    All processes of a namespace share the root of the first one that was asked about, so that a file has one name.
    """
    try:
        namespace = os.readlink(proc / str(pid) / "ns" / "mnt")
        if namespace == os.readlink(proc / "self" / "ns" / "mnt"):
            return ""
    except OSError:
        return ""
    root = _roots.get(namespace)
    if root is None or not os.path.exists(root):
        root = _roots[namespace] = str(proc / str(pid) / "root")
    return root


# --- who belongs to the target -------------------------------------------------------------------------------------


def named(name: str, proc: Path = PROC) -> list[int]:
    """Processes whose name, or whose program's file name, is this; not us. Raises CausalError when there are none."""
    found = []
    for pid in _pids(proc):
        stat = _stat(pid, proc)
        if stat is None or pid == os.getpid() or stat[1][0] in "ZX":
            continue
        try:
            program = os.path.basename(os.readlink(proc / str(pid) / "exe"))
        except OSError:
            continue
        if name in (stat[0], program.removesuffix(" (deleted)")):
            found.append(pid)
    if not found:
        raise CausalError(f"no process is called {name}", f"look for it: pgrep -af {name}")
    return found


def in_cgroup(group: str, root: Path = CGROUPS) -> list[int]:
    """Processes of a control group and of those below it. Raises CausalError when there are none."""
    directory = Path(group) if group.startswith(str(root)) else root / group.lstrip("/")
    if not (directory / "cgroup.procs").exists():
        raise CausalError(f"there is no control group {group}", f"give a path below {root}; see systemd-cgls")
    found = []
    for listing in sorted(directory.rglob("cgroup.procs")):
        try:
            found += [int(word) for word in listing.read_text().split()]
        except OSError:
            continue
    found = [pid for pid in found if pid not in (0, os.getpid())]
    if not found:
        raise CausalError(f"the control group {group} has no processes", "see systemd-cgls")
    return found


def descendants(pids: Iterable[int], proc: Path = PROC) -> list[int]:
    """Children of these processes and theirs in turn, without the given ones and without us."""
    children: dict[int, list[int]] = {}
    for pid in _pids(proc):
        stat = _stat(pid, proc)
        if stat is not None and stat[1][0] not in "ZX":
            children.setdefault(int(stat[1][1]), []).append(pid)
    given = list(pids)
    found: list[int] = []
    queue = list(given)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child != os.getpid() and child not in given and child not in found:
                found.append(child)
                queue.append(child)
    return found


def _pids(proc: Path) -> Iterator[int]:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


# --- why its threads cannot be paused ------------------------------------------------------------------------------


def obstacle(process: Process, may_trace_all: bool | None = None, proc: Path = PROC, yama: Path = YAMA) -> str | None:
    """Why no handler can be brought into a process, with the remedy if there is one; None when there is no reason.

    `may_trace_all`: whether we have CAP_SYS_PTRACE (None: look).
    """
    for tid in _tasks(process.pid, proc):
        if _status_of_thread(process.pid, tid, proc).get("Seccomp", "0") != "0":
            return "it has a seccomp filter, which might kill it for our system calls"
    with contextlib.suppress(OSError), open(proc / str(process.pid) / "exe", "rb") as file:
        if file.read(5)[4:] == b"\x01":
            return "it is a 32-bit program"
    if may_trace_all is None:
        may_trace_all = "CAP_SYS_PTRACE" in effective_capabilities()
    return forbidden_by_yama(may_trace_all, yama)


def forbidden_by_yama(may_trace_all: bool, yama: Path = YAMA) -> str | None:
    """What the Yama security module has against tracing (Documentation/admin-guide/LSM/Yama.rst of the kernel)."""
    try:
        level = int(yama.read_text())
    except (OSError, ValueError):
        return None
    setting = f"kernel.yama.ptrace_scope = {level}"
    if level >= 3:
        return (
            f"tracing is switched off on this machine ({setting}); only a boot with a lower level in /etc/sysctl.d "
            "brings it back"
        )
    if may_trace_all or level <= 0:
        return None
    if level == 1:
        return (
            f"without CAP_SYS_PTRACE only a debugger's own children may be traced here ({setting}); run as root, or "
            "with CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
        )
    return f"tracing needs CAP_SYS_PTRACE on this machine ({setting}); run as root, or with CAP_SYS_PTRACE"


def refuse_traced(process: Process, proc: Path = PROC) -> None:
    """Raise CausalError when a process has a tracer, of which there can be but one."""
    tracer = int(_status(process.pid, proc).get("TracerPid", "0"))
    if tracer:
        stat = _stat(tracer, proc)
        name = f" ({stat[0]})" if stat else ""
        raise CausalError(
            f"process {process.pid} ({process.name}) is being traced already by process {tracer}{name}",
            f"end that one first, {NO_PAUSES}",
        )


def _tasks(pid: int, proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc / str(pid) / "task")]
    except OSError:
        return []


def _status_of_thread(pid: int, tid: int, proc: Path) -> dict[str, str]:
    return _status(tid, proc / str(pid) / "task")


# --- one profiler at a time ----------------------------------------------------------------------------------------


class Claims:
    """Marks processes as being profiled by us. The marks are abstract sockets that nobody can connect to; they vanish
    with this process, however it ends."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], socket.socket] = {}

    def claim(self, process: Process) -> bool:
        """Mark a process; False when another profiler has it. Where descriptors have run out it stays unmarked."""
        key = (process.pid, process.start)
        if key in self._held:
            return True
        try:
            mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return True
        try:
            mark.bind(f"\0causal-bpf/{process.pid}/{process.start}")
        except OSError:
            mark.close()
            return False
        self._held[key] = mark
        return True

    def claim_or_refuse(self, process: Process) -> None:
        """Mark a process. Raises CausalError when another profiler has it."""
        if not self.claim(process):
            raise CausalError(
                f"process {process.pid} ({process.name}) is being profiled by another causal-bpf",
                "wait until that one is done, or end it with Ctrl-C",
            )

    def release(self, pid: int) -> None:
        """Take away the mark of a process that has ended: each is a descriptor."""
        for key in [key for key in self._held if key[0] == pid]:
            self._held.pop(key).close()

    def close(self) -> None:
        """Take all marks away."""
        for mark in self._held.values():
            mark.close()
        self._held.clear()
