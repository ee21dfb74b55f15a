"""The engine without a kernel: the sampler, the pauses and the hooks that apply the rules to a simulated machine.

Two samplers. `Sampler.TICKS` is the real one: each core has a timer; what it interrupts is in the region or is not; a
pause begins only there or on the way out of a system call. `Sampler.EXACT` is the clock without sampling noise: the
region's progress is known at every event, at least once per period, and whoever is in debt then pauses at once. What
remains of the period is how far a thread runs ahead before its pause begins.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation import clock_rules as rules_of
from tests.simulation.clock_rules import Clock, PeerClock, Rules
from tests.simulation.machine import Core, Machine, Observer, Thread

_REDRAW_NS = 50_000_000
# What would more cores bring? Waits for a core are a region by themselves.
QUEUE = "runqueue"
_SLICE_NS = 5_000_000  # of a pause, as in bpf/stub/stub.c


class Arm(enum.Enum):
    PLAIN = "plain"
    PLACEBO = "placebo"
    TREATED = "treated"
    DILATION = "dilation"


class Sampler(enum.Enum):
    TICKS = "ticks"
    EXACT = "exact"
    TASKS = "tasks"  # each thread has a timer of its own that counts its running time


class Weight(enum.Enum):
    """How much running time a sample stands for."""

    RAN = "ran"  # all that the target ran on that core since the last sample, at most `most_periods`
    PERIOD = "period"
    UNPAUSED = "unpaused"  # the period less the part of it that the sampled thread was in a pause
    UNPAUSED_CORE = "unpaused core"  # the period less the part of it that the core idled through a pause


@dataclass(frozen=True)
class Options:
    """Times in ns. `skew`: how much longer the period of each further core is, as a fraction.

    `wander`: each core draws its period anew every 50 ms, so much longer or shorter at most, as a fraction.
    """

    sampler: Sampler = Sampler.TICKS
    weight: Weight = Weight.RAN
    period_ns: int = 1_000_000
    skew: float = 0.0
    wander: float = 0.0
    most_periods: int = 4
    threshold_ns: int = 50_000
    slack_ns: int = 20_000
    oversleep_ns: tuple[int, int] = (0, 0)  # how much too long a sleep is, uniform
    signal_ns: int = 0  # what a signal and its handler cost
    sample_ns: int = 0  # what a sample costs
    calls: bool = False  # the regions are system calls, which last until their thread runs again
    on_entry: bool = False  # rule 7: a thread in debt also pauses as it gets a core
    hold: bool = False  # a pause keeps the core, while others wait for it
    rules: Rules = field(default_factory=Rules)


EXACT_RULES = Rules(queue_noise_ns=0)


def exact(quantum_ns: int, rules: Rules | None = None) -> Options:
    """The clock without sampling noise; nobody runs ahead by more than about a quantum."""
    fine = max(quantum_ns // 100, 1)
    return Options(Sampler.EXACT, period_ns=quantum_ns, threshold_ns=fine, slack_ns=fine, rules=rules or EXACT_RULES)


@dataclass
class Pause:
    """The pause a thread is in, or was in last."""

    began: int = 0
    unpaid: int | None = None  # since when its time is not in L yet
    busy: int | None = None  # since when it keeps a core busy
    ended: int = 0
    paid: int = 0  # of its length, without waiting for a core


class EngineModel(Observer):
    """Watches one machine. `granted`, `cost` and `counts` are for the experiment to read."""

    def __init__(
        self, machine: Machine, options: Options, arm: Arm, region: str | None, speedup: float, rng: random.Random
    ) -> None:
        self.machine, self.options, self.rules = machine, options, options.rules
        self.arm, self.region, self.speedup = arm, region, speedup
        self.clock = Clock()
        self.cost = 0
        self.counts: Counter[str] = Counter()
        self.active = False
        self._rng = rng
        self._costs: dict[Thread, int] = {}
        self._pauses: dict[Thread, Pause] = {}
        self._runnable: set[Thread] = set()
        self._sends = PeerClock()
        self._ran_ns = self._given_ns = 0
        self._waiting: set[Thread] = set()  # in the selected region
        self._waits_seen = self._waits_ns = 0
        self._woken: set[Thread] = set()  # from a wait in the selected region
        self._task_left: dict[Thread, int] = {}
        self._task_since: dict[Thread, int] = {}
        self._ran: Counter[Core] = Counter()
        self._idle_since: dict[Core, int] = {}  # left by a thread that went to pause, and nobody took it
        self._idled: Counter[Core] = Counter()  # in this period, through pauses

    def begin(self) -> None:
        """An experiment begins now (rule 6)."""
        self.active = True
        self._waits_seen = self.machine.now
        for thread in self.machine.threads:
            rules_of.boundary(thread.clock, self.clock, self.machine.now)
        for core in self.machine.cores:
            rules_of.core_boundary(core.state, self.clock, self.machine.now)
        self._start_ticks()

    def effective(self) -> int:
        return self.machine.now - (self.cost if self.arm is Arm.PLACEBO else self.clock.granted)

    def virtual(self, thread: Thread) -> int:
        late = self._costs.get(thread, 0) if self.arm is Arm.PLACEBO else thread.clock.local
        return self.machine.now - late

    # --- samples -----------------------------------------------------------------------------------------------------

    def _start_ticks(self) -> None:
        if self.options.sampler is Sampler.EXACT:
            self._tick_exactly()
            return
        if self.options.sampler is Sampler.TASKS:
            for core in self.machine.cores:
                if core.thread is not None:
                    self._start_task_timer(core, core.thread)
            return
        for core in self.machine.cores:
            period = round(self.options.period_ns * (1 + self.options.skew * core.number))
            self._tick_at(core, self.machine.now + self._rng.randrange(1, period + 1), period)

    def _tick_exactly(self) -> None:
        self.machine.at(self.machine.now + self.options.period_ns, self._tick_exactly)

    def _start_task_timer(self, core: Core, thread: Thread) -> None:
        left = self._task_left.setdefault(thread, self._rng.randrange(1, self.options.period_ns + 1))
        self._task_since[thread] = since = self.machine.now

        def ring() -> None:
            if core.thread is thread and self._task_since.get(thread) == since:
                self._task_left[thread] = self.options.period_ns
                self._start_task_timer(core, thread)
                self._sample(core, self.options.period_ns)

        self.machine.at(since + left, ring)

    def _tick_at(self, core: Core, time: int, usual: int, period: int = 0, redraw: int = 0) -> None:
        if time >= redraw:
            wander = self.options.wander
            period = round(usual * self._rng.uniform(1 - wander, 1 + wander)) if wander else usual
            redraw = time + _REDRAW_NS

        def tick() -> None:
            self._tick_at(core, time + period, usual, period, redraw)
            self._sample(core, period)

        self.machine.at(time, tick)

    def _look_at_waits(self) -> None:
        """G grows while waits go on, not in a lump as they end; rounded in total."""
        if not self.active or self.arm is Arm.PLAIN:
            return
        before = round(self._waits_ns * self.speedup)
        self._waits_ns += self.machine.now - self._waits_seen
        self._waits_seen = self.machine.now
        rules_of.grant_waits(self.clock, len(self._waiting), round(self._waits_ns * self.speedup) - before)

    def _begin_wait(self, thread: Thread, region: str | None) -> None:
        if region is not None and region == self.region:
            # Up to now it was one less that waited. What ticks alone see is no fair share: pauses begin there.
            self._look_at_waits()
            thread.clock.waits = self.clock.waited
            self._waiting.add(thread)

    def _end_wait(self, thread: Thread) -> int:
        if thread in self._waiting:
            self._look_at_waits()
        self._waiting.discard(thread)
        granted = rules_of.end_wait(thread.clock, self.clock)
        return 0 if self.arm is Arm.DILATION else granted

    def _sample(self, core: Core, period: int) -> None:
        if core.number == 0:
            self._look_at_waits()
        self.machine.account(core)
        thread = core.thread
        if core in self._idle_since:
            self._end_idling(core)
            self._idle_since[core] = self.machine.now
        idled, self._idled[core] = self._idled[core], 0
        if thread is None or thread.outside or thread.in_handler or self.arm is Arm.PLAIN:
            return
        span = self._weight(thread, period, idled, core)
        # Before the clock moves: what is granted now is no part of that wait.
        rules_of.look(thread.clock, self.clock, self.machine.now, self.rules, thread.spinning)
        self.counts["samples"] += 1
        if thread.region is not None and thread.region == self.region:
            self.counts["selected"] += 1
            self._grant(thread, core, span)
        else:
            self.counts["others_ns"] += span
        if not thread.spinning:
            thread.left += self.options.sample_ns
        if self.options.weight is Weight.RAN and self.arm in (Arm.TREATED, Arm.DILATION):
            # A tick costs the same however little it stands for: what is too much is given back.
            excess = self.options.sample_ns * (period - span) // period
            thread.clock.local += excess
            core.state.local += excess
        if not (thread.spinning and self.rules.spin_waits):
            self._maybe_pause(thread)

    def _see(self, thread: Thread) -> None:
        thread.clock.seen = rules_of.Mark(self.machine.now, self.clock.granted)

    def _grant(self, thread: Thread, core: Core, span: int) -> None:
        amount = round(span * self.speedup)
        rules_of.grant(thread.clock, core.state, self.clock, amount, exempt=self.arm is not Arm.DILATION)

    def _end_idling(self, core: Core) -> None:
        if core in self._idle_since:
            self._idled[core] += self.machine.now - self._idle_since.pop(core)

    def _weight(self, thread: Thread, period: int, idled: int, core: Core) -> int:
        if self.options.weight is Weight.RAN:
            return min(self._ran.pop(core, 0), self.options.most_periods * period)
        if self.options.weight is Weight.PERIOD:
            return period
        if self.options.weight is Weight.UNPAUSED_CORE:
            return period - idled
        pause = self._pauses.get(thread)
        paused = pause.ended - max(pause.began, self.machine.now - period) if pause else 0
        return period - max(paused, 0)

    def before_event(self) -> None:
        if self.options.sampler is Sampler.EXACT:
            self._look_at_waits()
            for core in self.machine.cores:
                self.machine.account(core)

    def on_progress(self, thread: Thread, ran: int) -> None:
        assert thread.core is not None
        self._ran[thread.core] += ran
        exactly = self.options.sampler is Sampler.EXACT and self.active and self.arm is not Arm.PLAIN
        if exactly and thread.region is not None and thread.region == self.region:
            # Rounded in total, not each time: otherwise many short stretches would add up to an error.
            self._ran_ns += ran
            amount = round(self._ran_ns * self.speedup) - self._given_ns
            self._given_ns += amount
            rules_of.grant(thread.clock, thread.core.state, self.clock, amount, exempt=self.arm is not Arm.DILATION)

    def after_event(self) -> None:
        if self.options.sampler is Sampler.EXACT:
            for core in self.machine.cores:
                if core.thread is not None and not core.thread.outside and not core.thread.in_handler:
                    self._maybe_pause(core.thread)

    # --- pauses ------------------------------------------------------------------------------------------------------

    def _maybe_pause(self, thread: Thread) -> None:
        """Rule 7."""
        if not self.active or rules_of.debt(thread.clock, self.clock) <= self.options.threshold_ns:
            return
        thread.clock.stuck = not thread.pausable
        if not thread.pausable:
            return
        now = self.machine.now
        self._pauses[thread] = Pause(began=now, unpaid=now, busy=now)
        self.counts["pauses"] += 1
        self.machine.enter_handler(thread, self.options.signal_ns)

    def on_operation(self, thread: Thread, system_call: bool) -> None:
        if (system_call or self.options.sampler is Sampler.EXACT) and not thread.in_handler:
            self._maybe_pause(thread)

    def on_handler(self, thread: Thread) -> None:
        """The stub asks how long still."""
        self._credit_pause(thread)
        if thread.core is not None:
            self._end_idling(thread.core)
        pause = self._pauses[thread]
        owed = rules_of.debt(thread.clock, self.clock)
        if self.arm is Arm.PLACEBO or owed < max(self.options.slack_ns, 1):
            self._end_pause(thread, pause)
            return
        pause.unpaid = self.machine.now
        assert thread.core is not None
        if self.options.hold and thread.core.queue:
            self._idle_since[thread.core] = self.machine.now
            self.machine.stay_in_handler(thread, min(owed, _SLICE_NS))
            return
        late = self._rng.randint(*self.options.oversleep_ns)
        self.machine.sleep_in_handler(thread, min(owed, _SLICE_NS) + late)

    def _credit_pause(self, thread: Thread) -> None:
        pause = self._pauses[thread]
        if pause.unpaid is not None:
            rules_of.pay(thread.clock, self.machine.now - pause.unpaid)
            pause.paid += self.machine.now - pause.unpaid
            pause.unpaid = None

    def _core_was_busy(self, core: Core, pause: Pause) -> None:
        """The machinery of a pause keeps the core from other threads as the pause itself does not."""
        if pause.busy is not None and self.arm is not Arm.PLACEBO:
            rules_of.core_pays(core.state, self.clock, self.machine.now - pause.busy)
        pause.busy = None

    def _end_pause(self, thread: Thread, pause: Pause) -> None:
        now = self.machine.now
        assert thread.core is not None
        self._core_was_busy(thread.core, pause)
        pause.ended = now
        self._see(thread)
        self.counts["paused_ns"] += pause.paid
        if self.arm is Arm.PLACEBO:
            thread.clock.local = self.clock.granted
            self._costs[thread] = self._costs.get(thread, 0) + pause.paid
            self.cost = max(self.cost, self._costs[thread])
        self.machine.leave_handler(thread)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def on_waking(self, thread: Thread, waker: Thread | None, peer: PeerClock | None) -> None:
        now = self.machine.now
        if thread.in_handler:
            self._credit_pause(thread)  # rule 9
        else:
            self._runnable.add(thread)
            if thread in self._waiting:
                self._woken.add(thread)
            granted = self._end_wait(thread)
            if waker is not None:
                self._settle_cost(thread, waker)
                owed = rules_of.hand_on(waker.clock, self.clock)
                # A wait that a thread of the target ends shrinks when that thread gets faster, and only then: nothing
                # is granted for it.
                rules_of.wake(thread.clock, owed, self.clock, now, self.rules)
            else:
                if self.rules.peer is rules_of.Peer.SINCE_ANY_SEND:
                    peer = self._sends
                thread.clock.local += granted
                rules_of.wake_from_outside(thread.clock, peer, self.clock, now, self.rules)
        self._begin_wait(thread, QUEUE)  # also after a pause: it ended at its wakeup
        thread.clock.queued = rules_of.Mark(now, self.clock.granted)

    def _settle_cost(self, thread: Thread, waker: Thread) -> None:
        mine, theirs = self._costs.get(thread, 0), self._costs.get(waker, 0)
        if thread.clock.blocked and mine > theirs:
            mine -= min(self.machine.now - thread.clock.blocked.time, mine - theirs)
        self._costs[thread] = max(mine, theirs)

    def on_send(self, thread: Thread, peer: PeerClock) -> None:
        for whom in (peer, self._sends):
            rules_of.send_outside(thread.clock, whom, self.clock, self.machine.now)

    def on_fork(self, child: Thread, parent: Thread | None) -> None:
        now = self.machine.now
        if parent is not None:
            rules_of.inherit(child.clock, parent.clock)
        else:
            child.clock.local = self.clock.granted
        child.clock.queued = rules_of.Mark(now, self.clock.granted)

    # --- cores -------------------------------------------------------------------------------------------------------

    def on_switch_out(self, core: Core, thread: Thread, preempted: bool) -> None:
        now = self.machine.now
        pause = self._pauses.get(thread)
        unpaid = now - pause.unpaid if pause and pause.unpaid is not None else 0
        rules_of.leave_core(thread.clock, core.state, unpaid, now, self.rules)
        if thread.in_handler and pause:
            self._core_was_busy(core, pause)
            if not preempted:
                self._idle_since[core] = now
        if thread in self._task_since:
            self._task_left[thread] -= now - self._task_since.pop(thread)
        if preempted:
            if thread.in_handler:
                self._credit_pause(thread)
            thread.clock.queued = rules_of.Mark(now, self.clock.granted)
            self._begin_wait(thread, QUEUE)
        elif not thread.in_handler:
            rules_of.block(thread.clock, self.clock, now)
            self._runnable.discard(thread)
            self._begin_wait(thread, thread.wait)

    def _grant_start(self, thread: Thread, after_target: bool) -> None:
        queued, woken = thread.clock.queued, thread in self._woken
        self._woken.discard(thread)
        if self.options.calls and self.active and self.arm is not Arm.PLAIN and woken and queued and not after_target:
            amount = round((self.machine.now - queued.time) * self.speedup)
            rules_of.grant_start(thread.clock, self.clock, amount, exempt=self.arm is not Arm.DILATION)

    def on_switch_in(self, core: Core, thread: Thread, target_held: bool, handed_over: bool) -> None:
        thread.clock.local += self._end_wait(thread)
        self._grant_start(thread, after_target=handed_over and target_held)
        # With more cores nobody would have held up this thread.
        if self.active and self.arm is not Arm.PLACEBO and self.region != QUEUE:
            rules_of.enter_core(
                thread.clock, core.state, self.clock, self.machine.now, self.rules,
                target_held=target_held, scarce=len(self._runnable) > len(self.machine.cores), handed_over=handed_over,
            )  # fmt: skip
        self._runnable.add(thread)
        self._end_idling(core)
        if self.active and self.options.sampler is Sampler.TASKS:
            self._start_task_timer(core, thread)
        thread.clock.queued = thread.clock.blocked = None
        self._see(thread)
        if thread.in_handler:
            pause = self._pauses[thread]
            pause.unpaid = pause.busy = self.machine.now
            if self.rules.outsiders_cost and not target_held and thread.queued_since is not None:
                pause.unpaid = thread.queued_since
        elif self.options.on_entry:
            self._maybe_pause(thread)
