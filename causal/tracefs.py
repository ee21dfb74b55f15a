"""Which events the kernel offers, from the file system that lists them."""

from __future__ import annotations

from pathlib import Path

from causal.errors import CausalError


def available_events() -> frozenset[str]:
    """All tracepoints as `category:name`. Raises CausalError when tracefs is not mounted."""
    for directory in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        path = Path(directory) / "available_events"
        if path.exists():
            return frozenset(line.strip() for line in path.read_text().splitlines())
    raise CausalError("tracefs is not mounted", "sudo mount -t tracefs nodev /sys/kernel/tracing")
