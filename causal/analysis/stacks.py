"""How the stacks of the samples were unwound: what share is whole, by which method, what information was missing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Less than this share of the samples is not worth a line.
_NOTABLE_SHARE = 0.01
_MOST_NAMED = 3
_WITHOUT_CALLERS = {
    "call_site": "where the call site lay above, the time counts as called from nothing in scope",
    "any_frame": "regions that lie above got too little of the time",
}


@dataclass(frozen=True, slots=True)
class Stacks:
    """Numbers of stacks. `whole` and `guessed` reached the outermost frame: by call-frame information alone, and with
    frame pointers where there was none. `deep` ended at the limit of frames, `lost` where memory could not be read or
    the caller was nowhere."""

    whole: int
    guessed: int
    deep: int
    lost: int

    @property
    def total(self) -> int:
        return self.whole + self.guessed + self.deep + self.lost

    def __str__(self) -> str:
        """One sentence for people."""
        reached = self.whole + self.guessed
        text = f"{reached / self.total:.1%} of {self.total:,} stacks reached the outermost frame"
        if self.guessed:
            text += f", {self.guessed / self.total:.1%} by way of frame pointers"
        if self.deep:
            text += f"; {self.deep / self.total:.1%} were deeper than the limit"
        if self.lost:
            text += f"; {self.lost / self.total:.1%} broke off where a caller could not be found"
        return text


def read_stacks(counters: Mapping[str, Any]) -> Stacks | None:
    """From the last record of a profile; None where it does not tell, or there were no stacks."""
    values = [counters.get(f"stacks_{name}") for name in ("whole", "guessed", "deep", "lost")]
    if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in values):
        return None
    stacks = Stacks(*(int(value) for value in values if value is not None))
    return stacks if stacks.total else None


def cut_short(counters: Mapping[str, Any], attribution: object) -> str | None:
    """What stacks that were cut short mean where callers count (`attribution` as the profile has it), None when they
    do not, or hardly any stacks were."""
    stacks = read_stacks(counters)
    meaning = _WITHOUT_CALLERS.get(attribution) if isinstance(attribution, str) else None
    if stacks is None or meaning is None or stacks.deep + stacks.lost <= _NOTABLE_SHARE * stacks.total:
        return None
    return f"{(stacks.deep + stacks.lost) / stacks.total:.0%} of the stacks were cut short: {meaning}"


def missing_information(counters: Mapping[str, Any], samples: int) -> str | None:
    """Names the modules whose callers were guessed, None when that hardly happened."""
    unwinding = counters.get("unwinding")
    listed = unwinding.get("without") if isinstance(unwinding, dict) else None
    frames: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("frames"), int):
            frames[str(entry.get("path"))] = entry["frames"]
            reasons[str(entry.get("path"))] = str(entry.get("reason") or "")
    notable = [path for path, count in frames.items() if count > _NOTABLE_SHARE * samples]
    if not notable:
        return None
    named = [
        os.path.basename(path) + (f" ({reasons[path]})" if reasons[path] else "") for path in notable[:_MOST_NAMED]
    ]
    more = f" and {len(notable) - _MOST_NAMED} more" if len(notable) > _MOST_NAMED else ""
    return (
        f"callers were found by frame pointers, right only in code built with them, in {', '.join(named)}{more}"
    )
