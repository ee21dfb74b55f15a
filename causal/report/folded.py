"""The samples as collapsed stacks, one line each, for flame graphs.

The profile keeps the samples of regions, not whole stacks, so a stack is program, binary and region.
"""

from __future__ import annotations

import os
from typing import TextIO

from causal.profile import Profile
from causal.report.symbols import printable


class FoldedReporter:
    """Writes `program;binary;region count` lines, as `flamegraph.pl`, speedscope and inferno read them."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def render(self, profile: Profile) -> None:
        """Writes all regions that were sampled, the most sampled first, and the rest as one frame."""
        command = profile.header.command
        program = _frame(os.path.basename(command[0])) if command else "program"
        binaries = {region.name: region.binary for region in profile.regions}
        for region, count in sorted(profile.samples.items(), key=lambda item: (-item[1], item[0])):
            binary = binaries.get(region)
            frames = [program, *([_frame(os.path.basename(binary))] if binary else []), _frame(region)]
            self._out.write(f"{';'.join(frames)} {count}\n")
        rest = 0 if profile.end is None else profile.end.samples - sum(profile.samples.values())
        if rest > 0:
            self._out.write(f"{program};[out of scope] {rest}\n")


def _frame(name: str) -> str:
    # A semicolon would begin another frame.
    return printable(name, "utf-8").replace(";", ":")
