"""The wish to end early, which whatever waits or loops looks at."""

from __future__ import annotations


class Interruption:
    """Set by the first Ctrl-C."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested
