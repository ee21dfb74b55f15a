"""The program a command line really starts: found in PATH, and for scripts the interpreter behind the `#!` line."""

from __future__ import annotations

import os
import shutil

from causal.errors import CausalError

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit codes, as shells have them
_SHEBANG_SIZE = 256  # the kernel reads no more (BINPRM_BUF_SIZE)
_MAX_INTERPRETERS = 5  # nor follows more scripts than this (fs/exec.c)


def find_command(command: str, search_path: str | None = None) -> str:
    """The file that `command` names: itself when it has a slash, else the first match in PATH (or `search_path`).

    Raises CausalError with exit code 127 (not found) or 126 (found, not executable).
    """
    found = command if "/" in command else shutil.which(command, path=search_path)
    if found is None or not os.path.exists(found):
        raise CausalError(f"command not found: {command}", "check its spelling, or give its path", exit_code=_NOT_FOUND)
    if not os.path.isfile(found):
        raise _not_executable(found, "it is not a file")
    if not os.access(found, os.X_OK):
        raise _not_executable(found, "permission denied", f"make it executable: chmod +x {found}")
    return found


def resolve_executable(command: str, search_path: str | None = None) -> str:
    """The ELF file that will run when `command` is executed; scripts and links are followed.

    `#!/usr/bin/env NAME` is followed to NAME, as that is what the process soon becomes. Nothing is executed.
    Raises CausalError as find_command, and with exit code 126 when there is neither an ELF program nor a `#!` line.
    """
    path = find_command(command, search_path)
    for _ in range(_MAX_INTERPRETERS):
        head = _head(path)
        if head.startswith(b"\x7fELF"):
            return os.path.realpath(path)
        if not head.startswith(b"#!"):
            raise _not_executable(
                path, "it is neither a program nor a script with a #! line", f"run it by a shell: sh {path}"
            )
        words = head[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split()
        if not words:
            raise _not_executable(path, "its #! line names no interpreter", "write the interpreter after #!")
        path = find_command(_behind_env(words) or words[0], search_path)
    raise _not_executable(path, "its interpreters form a loop")


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_SHEBANG_SIZE)
    except OSError as error:
        # A program may be executable without being readable; its symbols are then out of reach.
        raise _not_executable(path, error.strerror or str(error), "make it readable, or run as root") from error


def _behind_env(words: list[str]) -> str | None:
    """NAME of `/usr/bin/env [-S] [VAR=value] NAME`, None for other interpreters."""
    if os.path.basename(words[0]) != "env":
        return None
    return next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)


def _not_executable(path: str, reason: str, hint: str = "give a program, or a script with a #! line") -> CausalError:
    return CausalError(f"cannot execute {path}: {reason}", hint, exit_code=_NOT_EXECUTABLE)
