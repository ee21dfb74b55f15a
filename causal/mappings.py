"""Which file, and which bytes of it, a running process has mapped where: /proc/PID/maps.

The file offset of an address is `address - mapping.start + mapping.offset`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from causal.errors import CausalError

_LINE = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) (?P<perms>\S{4}) (?P<offset>[0-9a-f]+) "
    r"(?P<dev>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+)(?: +(?P<path>.*))?$"
)
_DELETED = " (deleted)"
# Where the kernel puts the probed instructions that it steps through, a page for the whole process.
PROBED = "[uprobes]"
# Memory that looks like a file; just-in-time compilers put code there. /dev/zero and SYSV are shared memory.
_MEMORY_FILES = ("/memfd:", "/dev/zero", "/SYSV", "//anon", "/dev/ashmem")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One executable mapping: addresses `start` to `end` (exclusive) show the file from byte `offset` on.

    `kind` is "file", "vdso" (kernel code: [vdso], [vsyscall]) or "anonymous" (just-in-time code). `path` is
    as the process sees it, in its own mount namespace; for the other kinds the kernel's label, or "[anonymous]".
    `device` is "major:minor" in hex. `deleted`: the file was removed or replaced, so its path leads elsewhere.
    """

    start: int
    end: int
    offset: int
    path: str
    inode: int
    device: str
    kind: str
    deleted: bool

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    def file_offset(self, address: int) -> int:
        return address - self.start + self.offset


def parse_maps(text: str) -> list[Mapping]:
    """The executable mappings in the text of /proc/PID/maps, in address order. Lines it cannot read are skipped."""
    mappings = (_mapping(match) for match in map(_LINE.match, text.split("\n")) if match and match["perms"][2] == "x")
    return sorted(mappings, key=lambda mapping: mapping.start)


def read_maps(pid: int, proc: str = "/proc") -> list[Mapping]:
    """The executable mappings of a process; [] when it has ended. Raises CausalError when we may not look."""
    try:
        with open(os.path.join(proc, str(pid), "maps"), encoding="utf-8", errors="surrogateescape") as file:
            return parse_maps(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return []
    except PermissionError as error:
        raise CausalError(f"may not read the memory map of process {pid}", "run as root") from error


def open_path(pid: int, mapping: Mapping, proc: str = "/proc") -> str:
    """A path that opens the mapped file from here: also in another mount namespace, also after it was deleted."""
    if mapping.deleted:
        return os.path.join(proc, str(pid), "map_files", f"{mapping.start:x}-{mapping.end:x}")
    return os.path.join(proc, str(pid), "root") + mapping.path


def _mapping(match: re.Match[str]) -> Mapping:
    # The kernel writes only newlines of a path as octal (fs/proc/task_mmu.c); a backslash stays itself.
    path = (match["path"] or "").replace("\\012", "\n")
    deleted = path.endswith(_DELETED)
    path = path.removesuffix(_DELETED)
    inode = int(match["inode"])
    if path.startswith("[v"):
        kind = "vdso"
    elif path.startswith("/") and inode and not path.startswith(_MEMORY_FILES):
        kind = "file"
    else:
        kind = "anonymous"
    start, end, offset = (int(match[field], 16) for field in ("start", "end", "offset"))
    return Mapping(start, end, offset, path or "[anonymous]", inode, match["dev"], kind, deleted)
