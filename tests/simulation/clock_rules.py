"""The rules of the virtual clock as pure functions: what bpf/clock.h, pause.h and sched.h do, without a kernel.

G is the virtual speedup granted so far, L what a thread has paid or been spared; all times in ns. A thread's debt is
G - L. v = t - L is its time in the sped-up world, and t - G is that world's own time: a thread in debt has run ahead.

  1 a sample in the selected region: L += s*P, G += s*P     `grant`
    time in which n threads wait in the selected region     `grant_waits`, `end_wait`
  2 a pause: L += its length                                `pay`
  3 blocking                                                `block`
  4 woken by a thread on the clock                          `wake`, `look`
  5 woken by anything else                                  `wake_from_outside`
  6 new threads, experiment boundaries                      `inherit`, `boundary`
  7 when to pause                                           `debt` above a threshold (engine_model.py)
  8 cores owe too                                           `core_pays`, `leave_core`, `enter_core`
  9 a pause ends at its wakeup                              (engine_model.py)
 10 threads that cannot pause hand their debt on            `hand_on`

`Rules` names the variants that were compared; its defaults are what bpf/ does. A change of a rule starts here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CoreClock(enum.Enum):
    """What a thread takes over from the core that it is switched in on (rule 8)."""

    OWES = "core owes"  # cores have debts like threads; who waited for a core owes at least what it owes
    NEVER = "never"
    SCARCE = "scarce"  # the virtual time of what left it, while runnable threads outnumber the cores
    HANDED_OVER = "handed over"  # ... when the thread was waiting for the core as its predecessor left
    ALWAYS = "always"


class Peer(enum.Enum):
    """What a thread owes that was woken from outside (rule 5)."""

    SINCE_BLOCK = "since block"  # all that G grew while it was blocked
    SINCE_SEND = "since send"  # ... since the target last sent something to that peer
    SINCE_ANY_SEND = "since any send"  # ... since the target last sent anything to the outside


# Spins of that many samples are no accident.
_LONG_SPIN = 2


@dataclass(frozen=True)
class Rules:
    """Variants of the rules. Times in ns."""

    keep_credit: bool = True  # rules 4 and 8: may a wait leave a negative debt, the overshoot of a pause?
    credit_travels: bool = True  # rule 4: does what was woken by a thread with a credit have it too?
    frozen: bool = False  # rule 4: v stands still during a wait, even when G grows faster than time passes
    core_clock: CoreClock = CoreClock.OWES
    core_latest: bool = True  # a core's clock never goes back; else it is that of the last thread that left
    queue_pays: bool = True  # rule 8: waiting for a core pays debts
    outsiders_cost: bool = True  # rule 9: a pause goes on while its thread waits for a core that outsiders hold
    queue_noise_ns: int = 30_000  # rule 8: a shorter wait for a core is the cost of a switch
    peer: Peer = Peer.SINCE_ANY_SEND
    spin_waits: bool = True  # rule 4: threads that spin wait


@dataclass
class Clock:
    """The global clock. `waited`: what a thread was granted that has waited in the selected region ever since."""

    granted: int = 0
    waited: int = 0


@dataclass
class Mark:
    """Since when a thread waits: the time and G then."""

    time: int
    granted: int


@dataclass
class ThreadClock:
    """What the clock knows of one thread."""

    local: int = 0
    blocked: Mark | None = None
    queued: Mark | None = None
    seen: Mark | None = None  # when it was last looked at
    spun: int = 0  # how many looks in a row found it spinning
    waits: int | None = None  # `waited` when it began to wait in the selected region
    stuck: bool = False  # it cannot pause


@dataclass
class CoreState:
    """What the clock knows of one core: its own L, and the virtual time at which target threads left it."""

    local: int = 0
    left: int | None = None  # since when the target has not run here
    virtual: int | None = None


@dataclass
class PeerClock:
    """Someone outside: when the target last sent it something, and the sender's debt."""

    sent: Mark | None = None
    debt: int = 0


def debt(thread: ThreadClock, clock: Clock) -> int:
    return clock.granted - thread.local


def grant(thread: ThreadClock, core: CoreState, clock: Clock, amount: int, exempt: bool = True) -> None:
    """Rule 1. `exempt` is false in dilation, where nobody is spared."""
    if exempt:
        thread.local += amount
        core.local += amount
    clock.granted += amount


def grant_waits(clock: Clock, waiters: int, amount: int) -> None:
    """Rule 1 for waits: each thread that waits in the selected region was granted so much since the last look."""
    clock.waited += amount
    clock.granted += waiters * amount


def end_wait(thread: ThreadClock, clock: Clock) -> int:
    """What a wait in the selected region was granted in all; it is over."""
    granted = 0 if thread.waits is None else clock.waited - thread.waits
    thread.waits = None
    return granted


def grant_start(thread: ThreadClock, clock: Clock, amount: int, exempt: bool = True) -> None:
    """Rule 1 for system calls: a call lasts until its thread runs again, unless others of the target had the core."""
    if exempt:
        thread.local += amount
    clock.granted += amount


def pay(thread: ThreadClock, span: int) -> None:
    """Rule 2: the thread paused for so long."""
    thread.local += max(span, 0)


def block(thread: ThreadClock, clock: Clock, now: int) -> None:
    """Rule 3."""
    thread.blocked = Mark(now, clock.granted)


def after_wait(owed: int, since: Mark, clock: Clock, now: int, rules: Rules) -> int:
    """What is left of a debt after a wait: in debt, the thread would have paused while it waited anyway."""
    stood_still = (now - since.time) - (clock.granted - since.granted)
    if rules.frozen:
        return owed - stood_still
    return owed - min(max(stood_still, 0), max(owed, 0))


def wake(thread: ThreadClock, waker_debt: int, clock: Clock, now: int, rules: Rules) -> None:
    """Rule 4: what waited pays, and cannot be behind of what woke it."""
    left = debt(thread, clock)
    if thread.blocked:
        owed = thread.blocked.granted - thread.local
        left = after_wait(owed, thread.blocked, clock, now, rules)
        if rules.credit_travels and not rules.frozen:
            # Its time stood still: how far it may fall behind the world's is for its waker to say.
            left = min(left, owed - max((now - thread.blocked.time) - (clock.granted - thread.blocked.granted), 0))
    left = max(left, waker_debt)
    if not rules.keep_credit:
        left = max(left, 0)
    thread.local = clock.granted - left
    thread.blocked = None


def look(thread: ThreadClock, clock: Clock, now: int, rules: Rules, spins: bool) -> None:
    """Rule 4 where no wakeup says when a wait began and ended: a sample either finds the thread spinning or not.

    It waited since it was last looked at when it spins now, and also, after a long spin, when it no longer does: what
    ended the spin is at most a period ago. Whose debt it takes over is not known.
    """
    if rules.spin_waits and thread.seen and (spins or thread.spun >= _LONG_SPIN):
        owed = debt(thread, clock)
        left = after_wait(owed - (clock.granted - thread.seen.granted), thread.seen, clock, now, rules)
        thread.local = clock.granted - min(left, owed)
    thread.spun = thread.spun + 1 if spins else 0
    thread.seen = Mark(now, clock.granted)


def send_outside(thread: ThreadClock, peer: PeerClock, clock: Clock, now: int) -> None:
    """The target answers someone outside."""
    peer.sent = Mark(now, clock.granted)
    peer.debt = debt(thread, clock)


def wake_from_outside(thread: ThreadClock, peer: PeerClock | None, clock: Clock, now: int, rules: Rules) -> None:
    """Rule 5: no credit, it owes what G grew; from a known peer, what G grew since it was last sent something."""
    if rules.peer is not Peer.SINCE_BLOCK and peer and peer.sent and thread.blocked:
        owed = thread.blocked.granted - thread.local
        left = max(after_wait(owed, thread.blocked, clock, now, rules), peer.debt + clock.granted - peer.sent.granted)
        # The answer may be older than the block; then nothing happened in between that could be paid already.
        left = min(left, debt(thread, clock))
        thread.local = clock.granted - (left if rules.keep_credit else max(left, 0))
    thread.blocked = None


def inherit(child: ThreadClock, parent: ThreadClock) -> None:
    """Rule 6: a new thread."""
    child.local = parent.local


def boundary(thread: ThreadClock, clock: Clock, now: int) -> None:
    """Rule 6: an experiment begins. Debts are cleared; what waits has been waiting since now."""
    thread.local = clock.granted
    if thread.waits is not None:
        thread.waits = clock.waited
    for mark in (thread.blocked, thread.queued):
        if mark:
            mark.time, mark.granted = now, clock.granted


def core_boundary(core: CoreState, clock: Clock, now: int) -> None:
    """Rule 6 for a core."""
    core.local, core.virtual = clock.granted, None
    if core.left is not None:
        core.left = now


def core_pays(core: CoreState, clock: Clock, span: int) -> None:
    """Rule 8: a core pays, as far as it owes, while the target does not run on it, or is busy with a pause."""
    core.local += min(max(span, 0), max(clock.granted - core.local, 0))


def leave_core(thread: ThreadClock, core: CoreState, pausing_for: int, now: int, rules: Rules) -> None:
    """Rule 8: a core remembers how far its threads got. `pausing_for`: length of a pause not yet in L."""
    core.left = now
    virtual = now - thread.local - pausing_for
    if core.virtual is None or not rules.core_latest or virtual > core.virtual:
        core.virtual = virtual


def enter_core(
    thread: ThreadClock, core: CoreState, clock: Clock, now: int, rules: Rules, *,
    target_held: bool, scarce: bool, handed_over: bool,
) -> None:  # fmt: skip
    """Rule 8: waiting for a core that the target held pays debts, and one core cannot run two threads at once."""
    if core.left is not None:
        core_pays(core, clock, now - core.left)
    core.left = None
    owed = left = debt(thread, clock)
    waited = thread.queued is not None and target_held and now > thread.queued.time + rules.queue_noise_ns
    if waited and thread.queued and rules.queue_pays:
        left = min(after_wait(thread.queued.granted - thread.local, thread.queued, clock, now, rules), owed)
    takes = {
        CoreClock.OWES: waited, CoreClock.NEVER: False, CoreClock.SCARCE: scarce,
        CoreClock.HANDED_OVER: handed_over, CoreClock.ALWAYS: True,
    }[rules.core_clock]  # fmt: skip
    if takes and rules.core_clock is CoreClock.OWES:
        left = max(left, clock.granted - core.local)
    elif takes and core.virtual is not None:
        left = max(left, clock.granted - (now - core.virtual))
    if left != owed and (left >= 0 or rules.keep_credit):
        thread.local = clock.granted - left
    thread.queued = None
    thread.blocked = None


def hand_on(thread: ThreadClock, clock: Clock) -> int:
    """Rule 10: the debt that a waker passes on; one that cannot pause gives its debt away, once."""
    owed = debt(thread, clock)
    if owed > 0 and thread.stuck:
        thread.local = clock.granted
    return owed
