"""Our BPF programs on their way into the kernel: their sources as one text, and what bcc needs and does not do.

bcc is imported here and where its programs are attached (causal/point_probes.py, causal/tracing), nowhere else.
"""

from __future__ import annotations

import importlib
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from causal.errors import CausalError

BPF_DIRECTORY = Path(__file__).resolve().parent.parent / "bpf"


def import_bcc(module: str = "bcc") -> Any:
    """bcc, or a module of it, told where our kernel headers are. Raises CausalError when it is not installed."""
    os.environ["BCC_KERNEL_SOURCE"] = str(BPF_DIRECTORY / "kernel")
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CausalError("the Python package bcc is missing", "sudo apt install python3-bpfcc") from None


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn bcc's exceptions and what it prints meanwhile into one CausalError: "the kernel refused `what`"."""
    with captured_output() as output:
        try:
            yield
        except Exception as error:  # bcc raises nothing more specific
            raise CausalError(
                f"the kernel refused {what} ({error})", f"run `causal-bpf doctor`; details: {output()[-1500:]}"
            ) from error


# Since Linux 5.1 new system calls have the same number on all machines. bcc's own list ends before.
_RECENT_CALLS = """
pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick
pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd
landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
"""


def system_calls() -> dict[int, str]:
    """The names of system calls by their numbers on this machine. Raises CausalError without bcc, which knows most."""
    older = {number: name.decode() for number, name in import_bcc("bcc.syscall").syscalls.items()}
    return dict(enumerate(_RECENT_CALLS.split(), start=424)) | older


def inlined(path: Path) -> str:
    """A source with its local headers put in place, since bcc rewrites map accesses only in the main text."""
    parts = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = re.fullmatch(r'#include "([\w./]+)"', line)
        if match:
            parts += [f'#line 1 "{match[1]}"', inlined(path.parent / match[1]), f'#line {number + 1} "{path.name}"']
        else:
            parts.append(line)
    return "\n".join(parts)


def counter_names() -> list[str]:
    """Names of the kernel side's counters in the order of `enum counter`, lower case without the prefix."""
    body = re.search(r"enum counter \{(.*?)\};", (BPF_DIRECTORY / "clock.h").read_text(), re.DOTALL)
    assert body
    names = re.findall(r"^\s*C_(\w+),?", body[1], re.MULTILINE)
    return [name.lower() for name in names if name != "LAST"]


@contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Catch what C++ code writes to the standard streams, which Python cannot redirect."""
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(1), os.dup(2)]
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield text
        finally:
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def map_array(bpf: Any, name: str, dtype: np.dtype[Any], length: int, keep: list[mmap.mmap]) -> npt.NDArray[Any]:
    """A BPF array with BPF_F_MMAPABLE as memory of ours; `keep` holds what must live as long as it."""
    size = (length * dtype.itemsize + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    mapped = mmap.mmap(bpf[name].map_fd, size)
    keep.append(mapped)
    return np.frombuffer(mapped, dtype=dtype, count=length)
