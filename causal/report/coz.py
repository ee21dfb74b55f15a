"""The profile as COZ writes its own, for COZ's viewer and for whatever else reads that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from causal.profile import Profile, coz_point


class CozReporter:
    """Writes JSON Lines with COZ's records only: its viewer complains about every other one."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def render(self, profile: Profile) -> None:
        """Writes the experiments, with placebo windows as COZ's baseline; void windows are left out."""
        for record in _records(profile):
            self._out.write(json.dumps(record, separators=(",", ":")) + "\n")


def _records(profile: Profile) -> Iterator[dict[str, Any]]:
    yield {"type": "startup", "time": profile.startup_ns or 0}
    for window in profile.windows:
        if window.void is not None or window.arm not in ("treated", "placebo"):
            continue
        yield {
            "type": "experiment",
            "selected": window.region,
            "speedup": window.speedup,
            "duration": window.effective_ns,
            "selected_samples": window.selected_samples,
        }
        for visits in window.points:
            yield coz_point(visits)
    if profile.runtime_ns is not None:
        yield {"type": "runtime", "time": profile.runtime_ns}
    for region, count in profile.samples.items():
        yield {"type": "samples", "location": region, "count": count}
