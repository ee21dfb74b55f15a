"""A target on the clock for a look, without experiments: a command that is started and ended, or processes that run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from causal import capabilities
from causal.attachment import AttachOptions, Members, examine_members, find_members
from causal.child import Child
from causal.engine import Engine
from causal.recording import Subject
from causal.running import RunOptions, examine

_PATIENCE_S = 5.0


@contextmanager
def started(options: RunOptions, points: int = 0) -> Iterator[tuple[Engine, Subject, Child]]:
    """The command, on the clock; it is ended with the block. `points`: how many progress points may be attached.

    Raises CausalError with a remedy.
    """
    capabilities.require()
    subject = examine(options)
    with Engine(options.engine) as engine:
        engine.load(points)
        child = Child.start(subject.program, options.command, None, subject.owner)
        engine.add_process(child.pid)
        child.release()
        try:
            yield engine, subject, child
        finally:
            child.terminate(_PATIENCE_S, time.sleep)


@contextmanager
def joined(options: AttachOptions, points: int = 0) -> Iterator[tuple[Engine, Subject, Members]]:
    """Processes that run already, on the clock; nothing is done to them. Otherwise as `started`."""
    capabilities.require()
    members = find_members(options)
    subject = examine_members(options, members)
    with Engine(options.engine) as engine:
        engine.load(points)
        for process in members.all:
            engine.add_process(process.pid, follow=options.children)
            engine.add_blocked(process.pid)
        yield engine, subject, members
