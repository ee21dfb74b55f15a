"""Random programs whose order does not depend on timing, for which the virtual speedup must equal the real one.

A program is a list of steps in one order that everybody agrees on: a thread computes or sleeps, two threads hand over
an item, some threads meet, a thread starts a child and waits for it. Each thread runs its own steps of the list, round
after round. Carried out one by one the list is a valid run, so no program of this kind can get stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hypothesis import strategies as st

from tests.simulation.machine import Body, Machine
from tests.simulation.programs import (
    US,
    Arrive,
    Get,
    Join,
    Program,
    Put,
    Queue,
    Sleep,
    Start,
    Turnstile,
    Visit,
    Work,
)


@dataclass(frozen=True)
class Compute:
    thread: int
    span: int
    region: str | None


@dataclass(frozen=True)
class Nap:
    """A sleep, or a wait for a disk: it may belong to a region as work does."""

    thread: int
    span: int
    region: str | None


@dataclass(frozen=True)
class HandOver:
    giver: int
    taker: int
    capacity: int


@dataclass(frozen=True)
class Meet:
    threads: frozenset[int]


@dataclass(frozen=True)
class Fork:
    """A child computes while its parent does; then they join."""

    thread: int
    child_span: int
    own_span: int
    region: str | None


Step = Compute | Nap | HandOver | Meet | Fork


@dataclass(frozen=True)
class Plan:
    threads: int
    rounds: int
    steps: tuple[Step, ...]

    def program(self) -> Program:
        # A core for everybody at any time: threads, and at most one child of each.
        return Program("generated", 2 * self.threads, lambda machine: _spawn(self, machine))


def _spawn(plan: Plan, machine: Machine) -> None:
    queues = {step: Queue(step.capacity) for step in plan.steps if isinstance(step, HandOver)}
    turnstiles = {step: Turnstile(len(step.threads)) for step in plan.steps if isinstance(step, Meet)}
    for number in range(plan.threads):
        machine.spawn(_body(number, plan, queues, turnstiles), f"thread {number}")


def _body(number: int, plan: Plan, queues: dict[HandOver, Queue], turnstiles: dict[Meet, Turnstile]) -> Body:
    for _ in range(plan.rounds):
        for step in plan.steps:
            match step:
                case Compute(thread, span, region) if thread == number:
                    yield Work(span, region)
                case Nap(thread, span, region) if thread == number:
                    yield Sleep(span, region)
                case HandOver(giver, _, _) if giver == number:
                    yield Put(queues[step])
                case HandOver(_, taker, _) if taker == number:
                    yield Get(queues[step])
                case Meet(threads) if number in threads:
                    yield Arrive(turnstiles[step])
                case Fork(thread, child_span, own_span, region) if thread == number:
                    child = yield Start(partial(_child, child_span, region))
                    yield Work(own_span)
                    yield Join(child)
        yield Visit()


def _child(span: int, region: str | None) -> Body:
    yield Work(span, region)


def plans(threads: Sequence[int] = (1, 2, 3)) -> st.SearchStrategy[Plan]:
    regions = st.sampled_from(["x", "x", "y", None])
    spans = st.integers(300 * US, 3_000 * US)

    def steps(count: int) -> st.SearchStrategy[Plan]:
        who = st.integers(0, count - 1)
        kinds: list[st.SearchStrategy[Step]] = [
            st.builds(Compute, who, spans, regions),
            st.builds(Compute, who, spans, regions),
            st.builds(Nap, who, spans, regions),
            st.builds(Fork, who, spans, spans, regions),
        ]
        if count > 1:
            pairs = st.tuples(who, who).filter(lambda pair: pair[0] != pair[1])
            kinds.append(st.tuples(pairs, st.integers(1, 3)).map(lambda p: HandOver(p[0][0], p[0][1], p[1])))
            kinds.append(st.frozensets(who, min_size=2).map(Meet))
        return st.lists(st.one_of(kinds), min_size=3, max_size=8).map(lambda made: Plan(count, 3, tuple(made)))

    return st.sampled_from(list(threads)).flatmap(steps)
