"""A machine that runs small programs in simulated time: cores, threads, and the events between them.

A thread's body is a generator of operations (programs.py). Cores share work round robin with a time slice: each has a
queue of its own, an idle core steals, a woken thread goes to an idle core if it may run there. Whoever wants to know
what happens (the clock, engine_model.py) is an `Observer`. All times in ns; equal inputs give equal runs.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.clock_rules import CoreState, PeerClock, ThreadClock

Body = Generator["Operation", Any, None]
# More operations than this at one instant mean a program that makes no progress.
_STUCK = 100_000
NEVER = 1 << 62


class Operation(Protocol):
    """What a body yields."""

    system_call: bool

    def begin(self, machine: Machine, thread: Thread) -> bool:
        """Do it. True: done at once; False: the thread computes, spins or is blocked."""

    def resume(self, machine: Machine, thread: Thread) -> bool:
        """The thread that was blocked in it runs again. True: done; False: blocked once more."""

    def met(self) -> bool:
        """Has come what the thread spins for?"""


class Observer:
    """Told of everything that the real engine sees; this one does not care."""

    def before_event(self) -> None: ...
    def after_event(self) -> None: ...
    def on_progress(self, thread: Thread, ran: int) -> None: ...
    def on_operation(self, thread: Thread, system_call: bool) -> None: ...
    def on_switch_out(self, core: Core, thread: Thread, preempted: bool) -> None: ...
    def on_switch_in(self, core: Core, thread: Thread, target_held: bool, handed_over: bool) -> None: ...
    def on_waking(self, thread: Thread, waker: Thread | None, peer: PeerClock | None) -> None: ...
    def on_fork(self, child: Thread, parent: Thread | None) -> None: ...
    def on_send(self, thread: Thread, peer: PeerClock) -> None: ...
    def on_handler(self, thread: Thread) -> None: ...

    def effective(self) -> int:
        """Time that counts for progress."""
        raise NotImplementedError

    def virtual(self, thread: Thread) -> int:
        """The thread's own time in the sped-up world."""
        return self.effective()


@dataclass(eq=False)
class Thread:
    """One thread. `outside`: it is no part of the target. `left`: what remains of its current work."""

    name: str
    body: Body
    affinity: frozenset[int]
    pausable: bool = True
    outside: bool = False
    clock: ThreadClock = field(default_factory=ThreadClock)
    left: int = 0
    region: str | None = None
    operation: Operation | None = None
    core: Core | None = None
    last_core: int = 0
    blocked: bool = False
    done: bool = False
    spinning: bool = False
    reply: Any = None  # what the operation hands to the body
    wait: str | None = None  # the region that its wait belongs to
    in_handler: bool = False
    handler_left: int = 0
    queued_since: int | None = None
    epoch: int = 0
    joiners: list[Thread] = field(default_factory=list)


@dataclass(eq=False)
class Core:
    number: int
    thread: Thread | None = None
    queue: deque[Thread] = field(default_factory=deque)
    since: int = 0  # up to here the progress of its thread is accounted
    slice_end: int = 0
    epoch: int = 0
    state: CoreState = field(default_factory=CoreState)


class Machine:
    """Runs threads until a time or until nothing is left to do.

    Work in `region` is shortened by `speedup`, and each piece of work varies by a fraction `jitter`, uniformly.
    """

    def __init__(
        self, cores: int, region: str | None = None, speedup: float = 0.0, *,
        jitter: float = 0.0, seed: int = 0, slice_ns: int = 3_000_000,
    ) -> None:  # fmt: skip
        self.now = 0
        self.cores = [Core(i) for i in range(cores)]
        self.threads: list[Thread] = []
        self.visits: dict[str, list[int]] = {}
        self.observer: Observer = Observer()
        self.region, self.speedup, self.slice_ns = region, speedup, slice_ns
        self.jitter, self._rng = jitter, random.Random(seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._instant = 0
        self._alive = 0

    # --- events ------------------------------------------------------------------------------------------------------

    def at(self, time: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, action))

    def run(self, until: Callable[[], bool]) -> None:
        """Until the condition holds, checked after each event, or all threads of the target ended."""
        while self._events and self._alive and not until():
            time, _, action = heapq.heappop(self._events)
            self._instant = self._instant + 1 if time == self.now else 0
            if self._instant > _STUCK:
                raise RuntimeError(f"no progress at {time} ns")
            self.now = time
            self.observer.before_event()
            action()
            self.observer.after_event()

    # --- threads -----------------------------------------------------------------------------------------------------

    def spawn(
        self, body: Body, name: str = "", affinity: frozenset[int] | None = None,
        pausable: bool = True, outside: bool = False, parent: Thread | None = None,
    ) -> Thread:  # fmt: skip
        cores = affinity or frozenset(range(len(self.cores)))
        thread = Thread(name or f"thread {len(self.threads)}", body, cores, pausable, outside)
        thread.last_core = min(cores)
        self.threads.append(thread)
        self._alive += not outside
        if not outside:
            self.observer.on_fork(thread, parent)
        self._enqueue(thread)
        return thread

    def wake(
        self, thread: Thread, waker: Thread | None, peer: PeerClock | None = None, start_ns: int = 0
    ) -> None:
        """End the wait of a blocked thread, or of one that sleeps in a pause. `start_ns`: until a core gets going."""
        assert thread.blocked, thread.name
        thread.blocked = False
        thread.epoch += 1
        if not thread.outside:
            self.observer.on_waking(thread, None if waker is None or waker.outside else waker, peer)
        thread.wait = None
        if start_ns:
            self.at(self.now + start_ns, lambda: self._enqueue(thread))
        else:
            self._enqueue(thread)

    def wake_at(self, time: int, thread: Thread, start_ns: int = 0) -> None:
        epoch = thread.epoch

        def ring() -> None:
            if thread.blocked and thread.epoch == epoch:
                self.wake(thread, None, start_ns=start_ns)

        self.at(time, ring)

    def block(self, thread: Thread) -> None:
        """The thread, which runs, waits until somebody wakes it."""
        core = thread.core
        assert core is not None
        thread.blocked = True
        self._leave(core, thread, preempted=False)
        self._fill(core, not thread.outside)

    def look(self, thread: Thread) -> None:
        """What a spinning thread waits for may have come: it looks, unless it is off its core or in a pause."""
        if thread.core is not None and not thread.in_handler:
            self.account(thread.core)
            self._schedule(thread.core)

    # --- cores -------------------------------------------------------------------------------------------------------

    def account(self, core: Core) -> None:
        """Bring what the core's thread has done up to now."""
        thread, ran = core.thread, self.now - core.since
        core.since = self.now
        if thread is None or ran <= 0:
            return
        if thread.in_handler:
            thread.handler_left = max(thread.handler_left - ran, 0)
            return
        if not thread.spinning:
            thread.left = max(thread.left - ran, 0)
        if not thread.outside:
            self.observer.on_progress(thread, ran)

    def _enqueue(self, thread: Thread) -> None:
        idle = [core for core in self.cores if core.thread is None and core.number in thread.affinity]
        thread.queued_since = self.now
        if idle:
            core = next((c for c in idle if c.number == thread.last_core), idle[0])
            self._enter(core, thread, handed_over=False, target_held=False)
            return
        allowed = [core for core in self.cores if core.number in thread.affinity]
        core = min(allowed, key=lambda c: (len(c.queue), c.number != thread.last_core, c.number))
        core.queue.append(thread)
        self._schedule(core)

    def _enter(self, core: Core, thread: Thread, handed_over: bool, target_held: bool) -> None:
        core.thread, thread.core, thread.last_core = thread, core, core.number
        core.since = self.now
        core.slice_end = self.now + self.slice_ns
        if not thread.outside:
            self.observer.on_switch_in(core, thread, target_held, handed_over)
        thread.queued_since = None
        # Not at once: whoever caused this switch finishes first.
        self._schedule(core, now=True)

    def _leave(self, core: Core, thread: Thread, preempted: bool) -> None:
        self.account(core)
        if not thread.outside:
            self.observer.on_switch_out(core, thread, preempted)
        core.thread = thread.core = None
        core.epoch += 1

    def _fill(self, core: Core, target_held: bool) -> None:
        """Somebody left this core: the next one enters, from another core's queue if need be."""
        donor = core
        if not core.queue:
            fitting = [c for c in self.cores if any(core.number in t.affinity for t in c.queue)]
            if not fitting:
                return
            donor = max(fitting, key=lambda c: (len(c.queue), -c.number))
        thread = next(t for t in donor.queue if core.number in t.affinity)
        donor.queue.remove(thread)
        self._enter(core, thread, handed_over=True, target_held=target_held)

    def _schedule(self, core: Core, now: bool = False) -> None:
        """Plan the next thing that happens on a core by itself."""
        thread = core.thread
        if thread is None:
            return
        core.epoch += 1
        epoch = core.epoch
        due = self.now if now else self._due(core, thread)
        if core.queue:
            due = min(due, max(core.slice_end, self.now))
        if due < NEVER:
            self.at(due, lambda: self._on_core_event(core, epoch))

    def _due(self, core: Core, thread: Thread) -> int:
        """When the thread will be through with what it does now."""
        if thread.in_handler:
            return core.since + thread.handler_left
        if not thread.spinning:
            return core.since + thread.left
        assert thread.operation is not None
        return self.now if thread.operation.met() else NEVER

    def _on_core_event(self, core: Core, epoch: int) -> None:
        if core.epoch != epoch or core.thread is None:
            return
        thread = core.thread
        self.account(core)
        if core.queue and self.now >= core.slice_end:
            self._leave(core, thread, preempted=True)
            thread.queued_since = self.now
            core.queue.append(thread)
            self._fill(core, not thread.outside)
            return
        self._advance(core)

    def _advance(self, core: Core) -> None:
        """Let the core's thread go on with whatever it is in."""
        thread = core.thread
        if thread is not None and thread.in_handler:
            if thread.handler_left == 0:
                self.observer.on_handler(thread)
        elif thread is not None:
            if thread.spinning and thread.operation is not None and thread.operation.met():
                thread.spinning = False
            self._step(core, thread)
        if core.thread is thread and thread is not None:
            self._schedule(core)

    def _step(self, core: Core, thread: Thread) -> None:
        """Finish the current operation and begin others until one of them takes time."""
        while core.thread is thread and not thread.in_handler and thread.left == 0 and not thread.spinning:
            operation = thread.operation
            if operation is not None:
                if not operation.resume(self, thread):
                    continue  # blocked, or computes again
                self._finish(thread, operation)
                continue
            thread.region = None
            try:
                operation = thread.body.send(thread.reply)
            except StopIteration:
                self._end(thread)
                return
            thread.reply = None
            thread.operation = operation
            if operation.begin(self, thread):
                self._finish(thread, operation)

    def _finish(self, thread: Thread, operation: Operation) -> None:
        thread.operation = None
        if not thread.outside:
            self.observer.on_operation(thread, operation.system_call)

    def _end(self, thread: Thread) -> None:
        thread.done = True
        self._alive -= not thread.outside
        for other in thread.joiners:
            self.wake(other, thread)
        self.block(thread)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def enter_handler(self, thread: Thread, cost_ns: int) -> None:
        """A signal: the running thread leaves what it does for the handler, and asks after `cost_ns`."""
        core = thread.core
        assert core is not None
        self.account(core)
        thread.in_handler, thread.handler_left = True, cost_ns
        self._schedule(core, now=cost_ns == 0)

    def sleep_in_handler(self, thread: Thread, span: int) -> None:
        self.block(thread)
        self.wake_at(self.now + span, thread)

    def stay_in_handler(self, thread: Thread, span: int) -> None:
        """The handler goes on for so long without giving its core away."""
        assert thread.core is not None
        self.account(thread.core)
        thread.handler_left = span
        self._schedule(thread.core)

    def leave_handler(self, thread: Thread) -> None:
        thread.in_handler = False
        if thread.core is not None:
            self.account(thread.core)
            self._schedule(thread.core, now=True)

    def work(self, span: int, region: str | None) -> int:
        """How long this work takes here."""
        faster = self.speedup if region is not None and region == self.region else 0.0
        luck = self._rng.uniform(1 - self.jitter, 1 + self.jitter) if self.jitter else 1.0
        return round(span * (1 - faster) * luck)

    def visit(self, point: str) -> None:
        self.visits.setdefault(point, []).append(self.observer.effective())
