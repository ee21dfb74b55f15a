"""What keeps CPU time from the target: quotas of control groups, which count in real time, and the host of a guest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def throttled_periods(pid: int, root: Path = _ROOT, proc: Path = Path("/proc")) -> int:
    """How many quota periods the groups of a process were throttled in so far; 0 where there is no quota."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return 0
    return sum(_throttled(path) for path in _stat_files(lines, root))


def _stat_files(lines: list[str], root: Path) -> Iterator[Path]:
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            yield root / group.lstrip("/") / "cpu.stat"
        elif "cpu" in controllers.split(","):
            yield root / "cpu" / group.lstrip("/") / "cpu.stat"


def _throttled(path: Path) -> int:
    try:
        words = dict(line.split() for line in path.read_text().splitlines())
        return int(words.get("nr_throttled", 0))
    except (OSError, ValueError):
        return 0


def stolen_ns(stat: Path = Path("/proc/stat")) -> int:
    """CPU time of all cores that the host of a virtual machine gave to others so far, in ns (proc(5)); 0 elsewhere."""
    first = stat.read_text().partition("\n")[0].split()
    return int(first[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if first[0] == "cpu" and len(first) > 8 else 0
