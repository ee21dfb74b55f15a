"""The errors a user can meet: one sentence that says what is wrong, one that says what to do."""

from __future__ import annotations


class CausalError(Exception):
    """Something the user can act on; printed as an `error:` and a `hint:` line, never as a traceback.

    `message` states the fact, `hint` the remedy (empty when there is none), `exit_code` what the
    process returns: 1 for ours, 2 for usage, 126/127 for a command that cannot be run.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class UsageError(CausalError):
    """The command line asks for something that does not make sense."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, exit_code=2)
