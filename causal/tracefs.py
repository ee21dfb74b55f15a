"""Which events the kernel offers as progress points, from the file system that lists them."""

from __future__ import annotations

from causal.capabilities import ensure_tracefs
from causal.errors import CausalError


def available_events() -> frozenset[str]:
    """All tracepoints as `category:name`. Raises CausalError when tracefs cannot be had."""
    return frozenset((ensure_tracefs() / "available_events").read_text().split())


def events_if_readable() -> frozenset[str]:
    """The same for advice only: none where this user may not see them."""
    try:
        return available_events()
    except CausalError:
        return frozenset()
