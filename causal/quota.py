"""CPU quotas of control groups: they count in real time, so a window in which one bit says nothing."""

from __future__ import annotations

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
