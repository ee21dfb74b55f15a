"""Creates the file a recording goes to: never over another one unasked, and as the user who called sudo."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from causal.errors import CausalError


def open_new(path: Path, force: bool) -> int:
    """A descriptor to write to. An existing regular file is refused with CausalError unless `force` replaces it."""
    try:
        if _is_device(path):
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        if force:
            # Remove instead of truncate: a symbolic link planted in a shared directory must not make root write to
            # (and below give away) the file it points to.
            path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise CausalError(f"{path} exists", "choose another name with -o, or overwrite it with --force") from error
    except OSError as error:
        raise CausalError(
            f"cannot create {path}: {error.strerror}", "choose a file in a writable directory with -o"
        ) from error
    _give_to_caller(fd)
    return fd


def _is_device(path: Path) -> bool:
    # /dev/null and pipes have nothing to lose: no --force needed, nothing to remove, no owner to change.
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _give_to_caller(fd: int) -> None:
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not uid.isdecimal():
        return
    # Some file systems (NFS with root squashing, vfat) refuse a new owner; the profile is good all the same.
    with contextlib.suppress(OSError):
        os.fchown(fd, int(uid), int(gid) if gid.isdecimal() else -1)


def write_error(path: Path, error: OSError) -> CausalError:
    """What to tell the user about a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CausalError(
            f"cannot write {path}: the disk is full ({error.strerror})",
            "free some space, or write to another disk with -o; what was recorded so far can be read",
        )
    return CausalError(f"cannot write {path}: {error.strerror}", "check the disk, or choose another file with -o")
