"""Which events the kernel offers as progress points, from the file system that lists them."""

from __future__ import annotations

from causal.capabilities import as_root, ensure_tracefs
from causal.errors import CausalError


def available_events() -> frozenset[str]:
    """All tracepoints as `category:name`. Raises CausalError when tracefs cannot be had."""
    path = ensure_tracefs() / "available_events"
    try:
        return frozenset(path.read_text().split())
    except OSError as error:  # a file of root's, also where others may look into the directory
        raise CausalError(f"cannot read {path}: {error.strerror}", as_root()) from error


def events_if_readable() -> frozenset[str]:
    """The same for advice only: none where this user may not see them."""
    try:
        return available_events()
    except CausalError:
        return frozenset()
