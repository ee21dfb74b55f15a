"""What simulated threads can do: the operations their bodies yield, and the objects they share.

def worker(queue):
    while True:
        item = yield Get(queue)
        yield Work(6 * MS, "stage_slow")
        yield Visit("done")
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clock_rules import PeerClock
from tests.simulation.machine import Body, Machine, Thread

US = 1_000
MS = 1_000_000
S = 1_000_000_000


@dataclass(frozen=True)
class Program:
    """A program and the machine it needs; `build` spawns its threads, `jitter` is how much its work varies."""

    name: str
    cores: int
    build: Callable[[Machine], None]
    point: str = "round"
    jitter: float = 0.0


@dataclass(eq=False)
class Mutex:
    """`fair`: handed over to the first waiter; else it is free when released and whoever comes first has it."""

    fair: bool = False
    owner: Thread | None = None
    waiters: deque[Thread] = field(default_factory=deque)


@dataclass(eq=False)
class Condition:
    waiters: deque[Thread] = field(default_factory=deque)


@dataclass(eq=False)
class Turnstile:
    """A barrier for `size` threads."""

    size: int
    waiters: list[Thread] = field(default_factory=list)


@dataclass(eq=False)
class Queue:
    capacity: int = 1 << 30
    items: deque[Any] = field(default_factory=deque)
    getters: deque[Thread] = field(default_factory=deque)
    putters: deque[tuple[Thread, Any]] = field(default_factory=deque)
    lifo: bool = False  # wake the getter that came last

    def hand_in(self, machine: Machine, item: Any, waker: Thread | None, peer: PeerClock | None = None) -> None:
        if self.getters:
            getter = self.getters.pop() if self.lifo else self.getters.popleft()
            getter.reply = item
            machine.wake(getter, waker, peer)
        else:
            self.items.append(item)


@dataclass(eq=False)
class Cell:
    """A word of memory that threads spin on."""

    value: Any = 0
    spinners: list[Thread] = field(default_factory=list)


@dataclass(eq=False)
class Client:
    """Outside the target, with its own clock, real time: thinks, sends a request, waits for the answer, thinks."""

    requests: Queue
    think_ns: int
    peer: PeerClock = field(default_factory=PeerClock)

    def start(self, machine: Machine, delay_ns: int = 0) -> None:
        machine.at(machine.now + delay_ns, lambda: self.requests.hand_in(machine, self, None, self.peer))


class _Instant:
    """An operation that takes no time."""

    system_call = False

    def begin(self, machine: Machine, thread: Thread) -> bool:
        raise NotImplementedError

    def resume(self, machine: Machine, thread: Thread) -> bool:
        return True

    def met(self) -> bool:
        return False


@dataclass
class Work(_Instant):
    """Compute for so long, in a region or in none."""

    span: int
    region: str | None = None

    def begin(self, machine: Machine, thread: Thread) -> bool:
        thread.left, thread.region = machine.work(self.span, self.region), self.region
        return thread.left == 0


@dataclass
class Visit(_Instant):
    """A progress point."""

    point: str = "round"

    def begin(self, machine: Machine, thread: Thread) -> bool:
        machine.visit(self.point)
        return True


@dataclass
class Moment(_Instant):
    """A begin or an end of a request, by the thread's own time."""

    point: str

    def begin(self, machine: Machine, thread: Thread) -> bool:
        machine.visits.setdefault(self.point, []).append(machine.observer.virtual(thread))
        return True


class _Call(_Instant):
    """An operation that enters the kernel."""

    system_call = True


@dataclass
class Lock(_Call):
    mutex: Mutex

    def begin(self, machine: Machine, thread: Thread) -> bool:
        # Without contention there is no system call to pause at.
        self.system_call = self.mutex.owner is not None
        return self._take(machine, thread, first=False)

    def resume(self, machine: Machine, thread: Thread) -> bool:
        return self.mutex.owner is thread or self._take(machine, thread, first=True)

    def _take(self, machine: Machine, thread: Thread, first: bool) -> bool:
        if self.mutex.owner is None:
            self.mutex.owner = thread
            return True
        if first:
            self.mutex.waiters.appendleft(thread)
        else:
            self.mutex.waiters.append(thread)
        machine.block(thread)
        return False


@dataclass
class Unlock(_Call):
    mutex: Mutex

    def begin(self, machine: Machine, thread: Thread) -> bool:
        assert self.mutex.owner is thread
        self.mutex.owner = None
        self.system_call = bool(self.mutex.waiters)
        if self.mutex.waiters:
            heir = self.mutex.waiters.popleft()
            if self.mutex.fair:
                self.mutex.owner = heir
            machine.wake(heir, thread)
        return True


@dataclass
class Release(_Call):
    """Wait at a condition: the mutex is given up; the body takes it again (see `wait`)."""

    condition: Condition
    mutex: Mutex

    def begin(self, machine: Machine, thread: Thread) -> bool:
        Unlock(self.mutex).begin(machine, thread)
        self.condition.waiters.append(thread)
        machine.block(thread)
        return False


def wait(condition: Condition, mutex: Mutex) -> Body:
    """pthread_cond_wait: `yield from wait(condition, mutex)`."""
    yield Release(condition, mutex)
    yield Lock(mutex)


@dataclass
class Notify(_Call):
    condition: Condition
    everyone: bool = False

    def begin(self, machine: Machine, thread: Thread) -> bool:
        self.system_call = bool(self.condition.waiters)
        while self.condition.waiters:
            machine.wake(self.condition.waiters.popleft(), thread)
            if not self.everyone:
                break
        return True


@dataclass
class Arrive(_Call):
    """Wait at a barrier."""

    turnstile: Turnstile

    def begin(self, machine: Machine, thread: Thread) -> bool:
        waiters = self.turnstile.waiters
        if len(waiters) + 1 < self.turnstile.size:
            waiters.append(thread)
            machine.block(thread)
            return False
        self.turnstile.waiters = []
        for other in waiters:
            machine.wake(other, thread)
        return True


@dataclass
class Put(_Call):
    queue: Queue
    item: Any = None

    def begin(self, machine: Machine, thread: Thread) -> bool:
        queue = self.queue
        if len(queue.items) >= queue.capacity and not queue.getters:
            queue.putters.append((thread, self.item))
            machine.block(thread)
            return False
        self.system_call = bool(queue.getters)
        queue.hand_in(machine, self.item, thread)
        return True


@dataclass
class Get(_Call):
    queue: Queue

    def begin(self, machine: Machine, thread: Thread) -> bool:
        queue = self.queue
        if not queue.items:
            queue.getters.append(thread)
            machine.block(thread)
            return False
        thread.reply = queue.items.popleft()
        self.system_call = bool(queue.putters)
        if queue.putters:
            putter, item = queue.putters.popleft()
            queue.items.append(item)
            machine.wake(putter, thread)
        return True


@dataclass
class Sleep(_Call):
    """Wait for so long, for a timer or a disk: time that belongs to a region, or to none."""

    span: int
    region: str | None = None

    def begin(self, machine: Machine, thread: Thread) -> bool:
        span = machine.work(self.span, self.region) if self.region else self.span
        thread.wait = self.region
        machine.block(thread)
        machine.wake_at(machine.now + span, thread)
        return False


@dataclass
class DeviceCall(_Call):
    """A system call that waits for a device, then for a core to get going: all of it is time of the call."""

    span: int
    start: int
    region: str

    def begin(self, machine: Machine, thread: Thread) -> bool:
        span, start = machine.work(self.span, self.region), machine.work(self.start, self.region)
        if span + start == 0:
            return True
        thread.wait = self.region
        machine.block(thread)
        machine.wake_at(machine.now + span, thread, start)
        return False


@dataclass
class NextPeriod(_Call):
    """Sleep until the next multiple of a period: a deadline loop, paced from outside."""

    period: int

    def begin(self, machine: Machine, thread: Thread) -> bool:
        machine.block(thread)
        machine.wake_at((machine.now // self.period + 1) * self.period, thread)
        return False


@dataclass
class Store(_Instant):
    cell: Cell
    value: Any

    def begin(self, machine: Machine, thread: Thread) -> bool:
        self.cell.value = self.value
        for other in self.cell.spinners:
            machine.look(other)
        return True


@dataclass
class Spin(_Instant):
    """Keep the core until the cell has this value, or at least this one."""

    cell: Cell
    value: Any
    region: str | None = None
    at_least: bool = False

    def met(self) -> bool:
        return bool(self.cell.value >= self.value if self.at_least else self.cell.value == self.value)

    def begin(self, machine: Machine, thread: Thread) -> bool:
        if self.met():
            return True
        thread.region, thread.spinning = self.region, True
        self.cell.spinners.append(thread)
        return False

    def resume(self, machine: Machine, thread: Thread) -> bool:
        self.cell.spinners.remove(thread)
        return True


@dataclass
class Reply(_Call):
    """Answer an outside client, which then thinks and asks again."""

    client: Client

    def begin(self, machine: Machine, thread: Thread) -> bool:
        machine.observer.on_send(thread, self.client.peer)
        self.client.start(machine, self.client.think_ns)
        return True


@dataclass
class Start(_Call):
    """Create a thread; the body gets it."""

    body: Callable[[], Body]
    name: str = ""

    def begin(self, machine: Machine, thread: Thread) -> bool:
        thread.reply = machine.spawn(self.body(), self.name, parent=thread)
        return True


@dataclass
class Join(_Call):
    other: Thread

    def begin(self, machine: Machine, thread: Thread) -> bool:
        if self.other.done:
            return True
        self.other.joiners.append(thread)
        machine.block(thread)
        return False
