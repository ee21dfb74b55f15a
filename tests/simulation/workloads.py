"""Programs with known answers, as in tests/workloads and as published by others. Times in ms unless they say ns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.machine import Body, Machine
from tests.simulation.programs import (
    MS,
    Arrive,
    Cell,
    Client,
    DeviceCall,
    Get,
    Lock,
    Moment,
    Mutex,
    NextPeriod,
    Program,
    Put,
    Queue,
    Reply,
    Sleep,
    Spin,
    Store,
    Turnstile,
    Unlock,
    Visit,
    Work,
)


def ns(ms: float) -> int:
    return round(ms * MS)


def _program(name: str, cores: int, bodies: Callable[[], list[Body]]) -> Program:
    def build(machine: Machine) -> None:
        for body in bodies():
            machine.spawn(body)

    return Program(name, cores, build)


def pipeline(fast: float = 4.8, slow: float = 6.0, capacity: int = 8) -> Program:
    """A producer and a consumer with a bounded queue between them: the slow stage limits the program."""

    def bodies() -> list[Body]:
        queue = Queue(capacity)

        def producer() -> Body:
            while True:
                yield Work(ns(fast), "fast")
                yield Put(queue)

        def consumer() -> Body:
            while True:
                yield Get(queue)
                yield Work(ns(slow), "slow")
                yield Visit()

        return [producer(), consumer()]

    return _program(f"pipeline {fast:.3g}/{slow:.3g}, queue {capacity}", 2, bodies)


def full_queue(serve: float = 2.5, produce: float = 0.4, places: int = 3) -> Program:
    """Requests wait for `places` others; they begin in one thread and end in another. Point: their end."""

    def bodies() -> list[Body]:
        queue, room = Queue(), Queue()
        room.items.extend(range(places))

        def producer() -> Body:
            while True:
                yield Work(ns(produce), "produce")
                yield Get(room)
                yield Moment("begin")
                yield Put(queue)

        def server() -> Body:
            while True:
                yield Get(queue)
                yield Put(room)
                yield Work(ns(serve), "serve")
                yield Moment("end")

        return [producer(), server()]

    return _program(f"full queue {serve:.3g}, {places} places", 2, bodies)


def batches(serve: float = 3.3, produce: float = 1.65, size: int = 5) -> Program:
    """Each batch is put request by request and then waited for: a faster producer makes requests wait longer."""

    def bodies() -> list[Body]:
        queue, done = Queue(), Queue()

        def producer() -> Body:
            while True:
                for _ in range(size):
                    yield Work(ns(produce), "produce")
                    yield Moment("begin")
                    yield Put(queue)
                yield Get(done)

        def server() -> Body:
            while True:
                for _ in range(size):
                    yield Get(queue)
                    yield Work(ns(serve), "serve")
                    yield Moment("end")
                yield Put(done)

        return [producer(), server()]

    return _program(f"batches of {size}, {produce:.3g}/{serve:.3g}", 2, bodies)


def backlog(fast: float, slow: float, items: int) -> Program:
    """The same with a queue that holds `items` and is full at the start."""

    def bodies() -> list[Body]:
        queue = Queue(items)
        queue.items.extend(range(items))

        def producer() -> Body:
            while True:
                yield Work(ns(fast), "fast")
                yield Put(queue)

        def consumer() -> Body:
            while True:
                yield Get(queue)
                yield Work(ns(slow), "slow")
                yield Visit()

        return [producer(), consumer()]

    return _program(f"backlog {fast}/{slow}, queue {items}", 2, bodies)


def barrier(one: float = 6.7, other: float = 6.4, regions: tuple[str, str] = ("a", "b")) -> Program:
    """COZ's motivating example: two threads that meet; the longer one counts, and only as far as it is longer."""

    def bodies() -> list[Body]:
        turnstile = Turnstile(2)

        def part(length: float, region: str, visits: bool) -> Body:
            while True:
                yield Work(ns(length), region)
                yield Arrive(turnstile)
                if visits:
                    yield Visit()

        return [part(one, regions[0], True), part(other, regions[1], False)]

    return _program(f"barrier {one:.3g}/{other:.3g}", 2, bodies)


def amd(slow: float = 10.0) -> Program:
    """AMD's example: two threads, one takes 80 % of the other's time; both must be through for a round."""
    return barrier(0.8 * slow, slow, ("fast", "slow"))


def ping_pong(ping: float = 3.0, pong: float = 3.0, cores: int = 2) -> Program:
    """Two threads that take turns over a socket."""

    def bodies() -> list[Body]:
        there, back = Queue(), Queue()

        def first() -> Body:
            while True:
                yield Work(ns(ping), "ping")
                yield Put(there)
                yield Get(back)
                yield Visit()

        def second() -> Body:
            while True:
                yield Get(there)
                yield Work(ns(pong), "pong")
                yield Put(back)

        return [first(), second()]

    return _program(f"ping-pong {ping:.3g}/{pong:.3g}", cores, bodies)


def lock(local: float = 3.0, critical: float = 4.0, threads: int = 2, cores: int = 2, fair: bool = False) -> Program:
    """Local work outside, critical work inside one lock."""

    def bodies() -> list[Body]:
        mutex = Mutex(fair)

        def rounds() -> Body:
            while True:
                yield Work(ns(local), "local")
                yield Lock(mutex)
                yield Work(ns(critical), "critical")
                yield Unlock(mutex)
                yield Visit()

        return [rounds() for _ in range(threads)]

    return _program(f"lock {local:.3g}/{critical:.3g}, {threads} threads", cores, bodies)


def spin(a: float = 3.0, b: float = 3.0) -> Program:
    """Two threads that take turns; the waiting one spins."""

    def bodies() -> list[Body]:
        turn = Cell(0)

        def first() -> Body:
            while True:
                yield Work(ns(a), "a")
                yield Store(turn, 1)
                yield Spin(turn, 0, "spin")
                yield Visit()

        def second() -> Body:
            while True:
                yield Spin(turn, 1, "spin")
                yield Work(ns(b), "b")
                yield Store(turn, 0)

        return [first(), second()]

    return _program(f"spin {a:.3g}/{b:.3g}", 2, bodies)


def spin_barrier(one: float = 4.0, other: float = 3.0) -> Program:
    """Two threads that meet; who comes first spins."""

    def bodies() -> list[Body]:
        rounds = [Cell(0), Cell(0)]

        def part(length: float, region: str, mine: int) -> Body:
            number = 0
            while True:
                number += 1
                yield Work(ns(length), region)
                yield Store(rounds[mine], number)
                yield Spin(rounds[1 - mine], number, "spin", at_least=True)
                if not mine:
                    yield Visit()

        return [part(one, "a", 0), part(other, "b", 1)]

    return _program(f"spin barrier {one:.3g}/{other:.3g}", 2, bodies)


def independent(a: float = 3.3, b: float = 2.7, threads: int = 8, cores: int = 2, pinned: bool = False) -> Program:
    """Threads that have nothing to do with each other but their cores."""

    def build(machine: Machine) -> None:
        def rounds(offset: float) -> Body:
            yield Work(ns(offset))
            while True:
                yield Work(ns(a), "a")
                yield Work(ns(b), "b")
                yield Visit()

        for i in range(threads):
            affinity = frozenset({i % cores}) if pinned else None
            machine.spawn(rounds((a + b) * i / threads), affinity=affinity)

    return Program(f"{threads} independent threads on {cores} cores{', pinned' if pinned else ''}", cores, build)


def convoy(local: float = 5.0, critical: float = 1.0, penalty: float = 0.5, threads: int = 4) -> Program:
    """A lock whose critical section takes longer the more threads wait for it (its cache lines travel): faster
    local work means more waiters, so the program gets slower."""

    def bodies() -> list[Body]:
        mutex = Mutex(fair=True)

        def rounds() -> Body:
            while True:
                yield Work(ns(local), "local")
                yield Lock(mutex)
                yield Work(ns(critical + penalty * len(mutex.waiters)), "critical")
                yield Unlock(mutex)
                yield Visit()

        return [rounds() for _ in range(threads)]

    return _program(f"convoy {local}/{critical}+{penalty}", threads, bodies)


def work_and_sleep(work: float = 3.0, sleep: float = 3.0) -> Program:
    def bodies() -> list[Body]:
        def rounds() -> Body:
            while True:
                yield Work(ns(work), "work")
                yield Sleep(ns(sleep), "sleep")
                yield Visit()

        return [rounds()]

    return _program(f"work and sleep {work:.3g}/{sleep:.3g}", 1, bodies)


def work_and_io(work: float = 8.0, io: float = 6.0) -> Program:
    """Two threads that meet, one computes and one waits for its disk (Ahn et al., blocked samples, OSDI 2024)."""

    def bodies() -> list[Body]:
        turnstile = Turnstile(2)

        def computing() -> Body:
            while True:
                yield Work(ns(work), "work")
                yield Arrive(turnstile)
                yield Visit()

        def waiting() -> Body:
            while True:
                yield Sleep(ns(io), "io")
                yield Arrive(turnstile)

        return [computing(), waiting()]

    return _program(f"work {work:.3g} and io {io:.3g} at a barrier", 2, bodies)


def idle_pool(idle: int = 4) -> Program:
    """Threads that wait for their timers and do nothing for the progress of the one that works."""

    def bodies() -> list[Body]:
        def working() -> Body:
            while True:
                yield Work(ns(5), "work")
                yield Visit()

        def idling() -> Body:
            while True:
                yield Sleep(ns(20), "idle")

        return [working(), *(idling() for _ in range(idle))]

    return _program(f"{idle} idle threads", 2, bodies)


def disk_users(threads: int = 4, work: float = 1.0, io: float = 5.0) -> Program:
    """Threads that each compute, then wait for a disk."""

    def bodies() -> list[Body]:
        def rounds() -> Body:
            while True:
                yield Work(ns(work), "work")
                yield Sleep(ns(io), "io")
                yield Visit()

        return [rounds() for _ in range(threads)]

    return _program(f"{threads} threads of {work:.3g} and io {io:.3g}", 2 * threads, bodies)


def device_users(threads: int, cores: int, work: float = 2.0, device: float = 0.6, start: float = 0.3) -> Program:
    """Threads that each compute, then call for a device; so long it takes until they run again."""

    def bodies() -> list[Body]:
        def rounds() -> Body:
            while True:
                yield Work(ns(work), "work")
                yield DeviceCall(ns(device), ns(start), "call")
                yield Visit()

        return [rounds() for _ in range(threads)]

    return _program(f"{threads} threads that call for a device, {cores} cores", cores, bodies)


def bursts(a: float, b: float, sleep: float) -> Program:
    def bodies() -> list[Body]:
        def rounds() -> Body:
            while True:
                yield Work(ns(a), "a")
                yield Work(ns(b), "b")
                yield Sleep(ns(sleep))
                yield Visit()

        return [rounds()]

    return _program(f"bursts of {a}+{b}, sleep {sleep}", 1, bodies)


def deadline(work: float = 5.0, period: float = 10.0) -> Program:
    """Paced from outside: a true gain of 0 whatever is sped up."""

    def bodies() -> list[Body]:
        def rounds() -> Body:
            while True:
                yield Work(ns(work), "work")
                yield Visit()
                yield NextPeriod(ns(period))

        return [rounds()]

    return _program(f"deadline {work} of {period}", 1, bodies)


def pool(
    workers: int = 2, clients: int = 1, work: float = 6.0, rest: float = 2.0, think: float = 4.0, lifo: bool = False
) -> Program:
    """Workers that take turns on outside clients, each of which waits for its answer before it asks again."""

    def build(machine: Machine) -> None:
        requests = Queue(lifo=lifo)

        def worker() -> Body:
            while True:
                client = yield Get(requests)
                yield Work(ns(work), "work")
                yield Work(ns(rest), "rest")
                yield Visit()
                yield Reply(client)

        for _ in range(workers):
            machine.spawn(worker())
        for i in range(clients):
            Client(requests, ns(think)).start(machine, ns(1 + i))

    return Program(f"pool of {workers} for {clients} clients", max(workers, 2), build)


def split_server(workers: int = 1, work: float = 6.0, rest: float = 2.0, think: float = 4.0) -> Program:
    """One thread receives from an outside client, others work and answer."""

    def build(machine: Machine) -> None:
        requests, jobs = Queue(), Queue()

        def receiver() -> Body:
            while True:
                client = yield Get(requests)
                yield Work(ns(rest), "rest")
                yield Put(jobs, client)

        def worker() -> Body:
            while True:
                client = yield Get(jobs)
                yield Work(ns(work), "work")
                yield Visit()
                yield Reply(client)

        machine.spawn(receiver())
        for _ in range(workers):
            machine.spawn(worker())
        Client(requests, ns(think)).start(machine, ns(1))

    return Program(f"receiver and {workers} workers", workers + 1, build)


def with_stuck(program: Program, number: int) -> Program:
    """The same, but one thread cannot pause."""

    def build(machine: Machine) -> None:
        program.build(machine)
        machine.threads[number].pausable = False

    return replace(program, name=f"{program.name}, {number} stuck", build=build)


def with_outsider(program: Program, work: float = 2.0, sleep: float = 3.0) -> Program:
    """The same, beside a process that is none of ours and takes a core now and then."""

    def build(machine: Machine) -> None:
        def outsider() -> Body:
            while True:
                yield Work(ns(work))
                yield Sleep(ns(sleep))

        program.build(machine)
        machine.spawn(outsider(), outside=True)

    return replace(program, name=f"{program.name}, outsider", build=build)
