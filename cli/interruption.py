"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from causal.interruption import Interruption


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Until the end of the block the first signal sets what is yielded, the second raises KeyboardInterrupt."""
    interruption = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for number, action in before.items():
            signal.signal(number, action)
