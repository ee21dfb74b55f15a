"""Results that took long, kept in the user's cache directory.

An entry is a directory with one array per file. Entries that cannot be read, or are of another version, count as
missing; that nothing can be written costs only time.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Goes up whenever what is stored changes its meaning.
CACHE_VERSION = 2
_MAX_ENTRIES = 64


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/causal-bpf`, or below `~/.cache` of the user we run as.

    The environment may be that of the user who called sudo: in a directory of theirs root would leave files that they
    cannot remove, and follow links that they made.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    chosen = Path(base) if base.startswith("/") else Path(os.path.expanduser("~"), ".cache")
    if not _is_ours(chosen):
        with contextlib.suppress(KeyError):
            chosen = Path(pwd.getpwuid(os.geteuid()).pw_dir, ".cache")
    return chosen / "causal-bpf"


def _is_ours(path: Path) -> bool:
    nearest = next(each for each in (path, *path.parents) if os.path.exists(each))
    return os.stat(nearest).st_uid in (0, os.geteuid())


def load(
    key: str, dtypes: Mapping[str, np.dtype[np.void]], root: Path
) -> tuple[dict[str, NDArray[np.void]], object] | None:
    """Arrays of these dtypes (one-dimensional, mapped from the file) and the description stored with them, or None."""
    entry = root / key
    try:
        stored = json.loads((entry / "entry.json").read_text())
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in dtypes}
        if stored["version"] != CACHE_VERSION or any(
            arrays[name].dtype != dtype or arrays[name].shape != (stored["sizes"][name],)
            for name, dtype in dtypes.items()
        ):
            return None
        os.utime(entry)
        return arrays, stored["about"]
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def store(
    key: str, arrays: Mapping[str, NDArray[np.void]], about: object, root: Path, max_entries: int = _MAX_ENTRIES
) -> bool:
    """Keep an entry; returns whether that worked. It appears whole or not at all; of more than `max_entries` the oldest
    give way."""
    fresh = None
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array, allow_pickle=False)
        sizes = {name: len(array) for name, array in arrays.items()}
        (fresh / "entry.json").write_text(json.dumps({"version": CACHE_VERSION, "sizes": sizes, "about": about}))
        entry = root / key
        if entry.exists():
            shutil.rmtree(entry)
        fresh.rename(entry)
        _make_room(root, max_entries)
        return True
    except OSError:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
        return False


def _make_room(root: Path, max_entries: int) -> None:
    entries = [path for path in root.iterdir() if not path.name.startswith(".")]
    with contextlib.suppress(OSError):
        entries.sort(key=lambda path: path.stat().st_mtime)
        for old in entries[: max(len(entries) - max_entries, 0)]:
            shutil.rmtree(old, ignore_errors=True)
