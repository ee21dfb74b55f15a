"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second stops at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted:
    """Whether an end was asked for; anything that waits looks at it."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested


@contextmanager
def orderly_interruption() -> Iterator[Interrupted]:
    """Until the end of the block the first signal sets what is yielded, the second raises KeyboardInterrupt."""
    interrupted = Interrupted()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupted.requested:
            raise KeyboardInterrupt
        interrupted.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, action in before.items():
            signal.signal(number, action)
