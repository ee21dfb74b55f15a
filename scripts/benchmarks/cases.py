"""The questions whose answers are known: which workload, with how much work, and which function is sped up."""

import contextlib
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "tests" / "workloads"
PROGRAMS = WORKLOADS / "build"
LEVELS = (0.25, 0.50, 0.75, 1.00)


@dataclass(frozen=True)
class Case:
    """One region of one workload.

    `amounts` are the program's positional arguments: units of work (about a microsecond each) or real
    microseconds of sleep. `reduced` are the positions of those that the region consumes. `function` is the region's
    name: a function, or with the unit `thread` a thread's label. `truth_options` are used instead of `options` where
    the truth would otherwise take too long to measure. `outside` is a program (with its arguments) that runs beside
    all the while and is not part of what is profiled. `options_at_full`: options with which the program really is as
    with a speedup of 100 %, where that is no matter of amounts. `latency`: begin and end of
    requests, as the profiler is told; the question is then their mean latency, which the program prints as well.
    """

    name: str
    program: str
    function: str
    amounts: tuple[int, ...]
    reduced: tuple[int, ...]
    options: tuple[str, ...] = ()
    group: str = "workloads"
    unit: str = "function"
    levels: tuple[float, ...] = LEVELS
    truth_options: tuple[str, ...] | None = None
    outside: tuple[str, ...] = ()
    options_at_full: tuple[str, ...] | None = None
    latency: str | None = None

    def arguments(self, speedup: float = 0.0) -> list[str]:
        """The amounts with the region's work reduced by `speedup` (a fraction)."""
        kept = [1 - speedup if position in self.reduced else 1.0 for position in range(len(self.amounts))]
        return [str(round(amount * share)) for amount, share in zip(self.amounts, kept, strict=True)]

    def command(self, programs: Path = PROGRAMS) -> list[str]:
        """The program as it is profiled."""
        return [str(programs / self.program), *self.arguments(), *self.options]

    def truth_command(self, speedup: float) -> list[str]:
        """The program that really has less to do."""
        options = self.options if self.truth_options is None else self.truth_options
        if speedup == 1.0 and self.options_at_full is not None:
            options = self.options_at_full
        return [str(PROGRAMS / self.program), *self.arguments(speedup), *options]


@contextlib.contextmanager
def surroundings(case: Case) -> Iterator[None]:
    """What has to run beside the case while it is measured."""
    if not case.outside:
        yield
        return
    program, *arguments = case.outside
    beside = subprocess.Popen([str(PROGRAMS / program), *arguments], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        beside.kill()
        beside.wait()


# Rounds take 5 to 10 ms: long against the sampling period, short enough for many visits in a window.
WORKLOAD_CASES = (
    Case("barrier", "barrier", "work_a", (8000, 6000), (0,)),
    Case("barrier-shorter", "barrier", "work_b", (8000, 6000), (1,)),
    Case("pipeline", "pipeline", "stage_slow", (6400, 8000), (1,)),
    Case("pipeline-fast", "pipeline", "stage_fast", (6400, 8000), (0,)),
    Case("pingpong", "pingpong", "ping_work", (4000, 4000), (0,)),
    Case("pingpong-processes", "pingpong", "ping_work", (4000, 4000), (0,), ("--processes",)),
    Case("lock-critical", "lock", "critical_work", (3000, 5000), (1,)),
    Case("lock-local", "lock", "local_work", (5000, 3000), (0,)),
    Case("spin", "spin", "work_a", (4000, 4000), (0,)),
    Case("worksleep", "worksleep", "work_a", (4000, 3000), (0,)),
    Case("oversub", "oversub", "work_a", (4400, 3600), (0,)),
    Case("oversub-b", "oversub", "work_b", (4400, 3600), (1,)),
    Case("sleeper", "sleeper", "work_a", (4000, 3000), (0,), ("--beside", "2")),
    Case("tcp", "tcp", "server_work", (4000, 4000), (1,)),
    Case("forker", "forker", "work_a", (4400, 3600), (0,)),
    Case("deadline", "deadline", "work_a", (8000, 4000), (1,)),
    Case("pool", "pool", "work_a", (6000, 2000), (0,), ("--workers", "4"), outside=("pool_client", "4000")),
)

# What others have published answers for, and what gets slower.
KNOWN_ANSWERS = (
    Case("coz-example-a", "coz_example", "work_a", (6700, 6400), (0,), group="known answers"),
    Case("coz-example-b", "coz_example", "work_b", (6700, 6400), (1,), group="known answers"),
    Case("amd-slow", "amd", "work_slow", (4800, 6000), (1,), group="known answers", levels=(0.10, 0.20, 0.30)),
    Case("amd-fast", "amd", "work_fast", (4800, 6000), (0,), group="known answers", levels=(0.10, 0.20, 0.30)),
    Case("false-sharing", "false_sharing", "prepare", (6000, 7000), (0,), group="known answers"),
    Case("contended", "contended", "local_work", (6000, 7000), (0,), group="known answers"),
)

# How long a queue takes to fill and drain: at these rates that of 1000 items, several seconds.
QUEUE_CASES = tuple(
    Case(f"pipeline-{capacity}", "pipeline", "stage_slow", (1200, 2000), (1,), ("--capacity", str(capacity)), "queues")
    for capacity in (1, 8, 1000)
)

# The truth does not depend on the length of a phase, but its short runs must hold many whole phases.
_BRIEF = ("--phase-rounds", "2")
PHASE_CASES = (
    Case("phases", "phases", "work_a", (6000, 0, 0, 6000), (0, 2), group="phases", truth_options=_BRIEF),
    Case("phases-beside", "phases", "work_a", (8000, 4000, 4000, 8000), (0, 2), group="phases", truth_options=_BRIEF),
)

THREAD_CASES = (
    Case("thread-barrier", "barrier", "barrier (main)", (8000, 6000), (0,), group="threads", unit="thread"),
    Case("thread-pipeline", "pipeline", "pipeline (main)", (6400, 8000), (1,), group="threads", unit="thread"),
    Case("thread-pingpong", "pingpong", "pingpong/1", (4000, 4000), (1,), group="threads", unit="thread"),
    Case("thread-amd", "amd", "slow", (4800, 6000), (1,), group="threads", unit="thread"),
)

# Beside a program that is not profiled: one that takes a CPU for 2 ms of every 5 or so, one that computes all the time.
_NOW_AND_THEN = ("worksleep", "2000", "3000")
_ALWAYS = ("worksleep", "10000", "0")
BUSY_CASES = (
    Case("busy-barrier", "barrier", "work_a", (8000, 4000), (0,), group="beside others", outside=_NOW_AND_THEN),
    Case("busy-pipeline", "pipeline", "stage_slow", (6400, 8000), (1,), group="beside others", outside=_NOW_AND_THEN),
    Case("busy-lock", "lock", "critical_work", (3000, 5000), (1,), group="beside others", outside=_NOW_AND_THEN),
    Case("busy-pingpong", "pingpong", "ping_work", (4000, 4000), (0,), group="beside others", outside=_NOW_AND_THEN),
    Case("crowded-barrier", "barrier", "work_a", (8000, 4000), (0,), ("--apart",), "beside others", outside=_ALWAYS),
    Case("crowded-pipeline", "pipeline", "stage_slow", (6400, 8000), (1,), group="beside others", outside=_ALWAYS),
)

# Waits. Only the region's waits are reduced: the sleeps, the time a device takes. A real disk is not faster when reads
# are left out: with it only the work beside it, and reads that have no effect, have known answers. Threads that read
# have a CPU of their own but in `device-together`: where no core is free, who pauses may get one before who reads.
_APART = ("--device", "--apart")
WAIT_CASES = (
    Case("rest", "rest", "rest", (2000, 4000), (1,), group="waits"),
    Case("rest-4-threads", "rest", "rest", (1000, 5000), (1,), ("--threads", "4"), group="waits"),
    Case("rest-work", "rest", "work_a", (4000, 3000), (0,), group="waits"),
    Case("device-shorter", "disk", "disk_io", (8000, 10, 400), (2,), _APART, "waits"),
    Case("device-longer", "disk", "disk_io", (5000, 20, 400), (2,), _APART, "waits"),
    Case("device-together", "disk", "disk_io", (5000, 20, 400), (2,), ("--device",), "waits"),
    Case("device-call", "disk", "read", (5000, 20, 400), (2,), _APART, "waits", unit="syscall"),
    Case("io-class", "disk", "I/O", (5000, 20, 400), (2,), _APART, "waits", unit="wait"),
    Case("disk-work", "disk", "work_a", (16000, 20), (0,), group="waits"),
    Case("disk-beside", "disk", "disk_io", (16000, 20), (1,), group="waits"),
    Case("idle-pool", "rest", "idle_rest", (2000, 4000), (), ("--idle", "2"), "waits"),
    Case("idle-queue", "rest", "idle_take", (2000, 4000), (), ("--queue", "2"), "waits"),
    Case("convoy", "lock", "critical_work", (1000, 3000), (1,), ("--threads", "4"), "waits"),
    Case("convoy-local", "lock", "local_work", (1000, 3000), (0,), ("--threads", "4"), "waits"),
    Case("more-cores", "oversub", "runqueue", (4400, 3600), (), ("--threads", "2", "--cpus", "1"), "waits", "wait",
         levels=(1.0,), options_at_full=("--threads", "2", "--cpus", "2")),
    Case("sleep-class", "rest", "sleep", (2000, 4000), (1,), group="waits", unit="wait"),
)

# One thread begins a request, another one ends it. Three places are always full; of five at once each waits for those
# before it, so that a faster server saves more than its part and a faster producer makes requests wait longer.
_BATCH = ("--batch", "5")
LATENCY_CASES = (
    Case("latency-full", "queue", "serve", (3000, 500), (0,), group="latencies", latency="put,served"),
    Case("latency-batch", "queue", "serve", (4000, 2000), (0,), _BATCH, "latencies", levels=(0.1, 0.25, 0.4, 0.5),
         latency="put,served"),
    Case("latency-producer", "queue", "produce", (4000, 2000), (1,), _BATCH, "latencies", latency="put,served"),
)

GRANULARITIES_MS = (0.5, 1, 2, 8, 25, 100)
# Program, function, the amounts as parts of a round, which of them is reduced.
_GRANULAR: tuple[tuple[str, str, tuple[float, float], int], ...] = (
    ("barrier", "work_a", (1.0, 0.75), 0),
    ("lock", "critical_work", (0.3, 0.5), 1),
    ("pingpong", "ping_work", (0.5, 0.5), 0),
    ("pipeline", "stage_slow", (0.8, 1.0), 1),
    ("spin", "work_a", (0.5, 0.5), 0),
)
OVERSUBSCRIPTIONS = (2, 3, 4, 6, 8, 12, 16)


def _granularity_cases() -> Iterator[Case]:
    for program, function, parts, reduced in _GRANULAR:
        for ms in GRANULARITIES_MS:
            amounts = tuple(round(part * ms * 1000) for part in parts)
            yield Case(f"{program}-{ms:g}ms", program, function, amounts, (reduced,), group=f"{ms:g} ms per round")


def _oversubscription_cases() -> Iterator[Case]:
    for threads in OVERSUBSCRIPTIONS:
        options = ("--threads", str(threads), "--cpus", "2")
        yield Case(f"oversub-{threads}", "oversub", "work_a", (4400, 3600), (0,), options, "threads on 2 CPUs")


ALL_CASES = (
    *WORKLOAD_CASES,
    *KNOWN_ANSWERS,
    *QUEUE_CASES,
    *PHASE_CASES,
    *THREAD_CASES,
    *BUSY_CASES,
    *WAIT_CASES,
    *LATENCY_CASES,
    *_oversubscription_cases(),
    *sorted(_granularity_cases(), key=lambda case: float(case.group.split()[0])),
)
SETS: dict[str, tuple[Case, ...]] = {"quick": WORKLOAD_CASES, "full": ALL_CASES}


def select(names: Iterable[str], chosen: Sequence[Case] = ALL_CASES) -> list[Case]:
    """Those of the `chosen` cases that have a name, a program or a group among `names`; all when there are no names.

    A name that is not among the chosen ones is looked for in all cases; unknown names raise KeyError.
    """
    wanted = list(names)
    if not wanted:
        return list(chosen)
    found: list[Case] = []
    for name in wanted:
        pool = chosen if any(_is_called(case, name) for case in chosen) else ALL_CASES
        matching = [case for case in pool if _is_called(case, name)]
        if not matching:
            raise KeyError(name)
        found += matching
    return [case for case in ALL_CASES if case in found]


def _is_called(case: Case, name: str) -> bool:
    return name in (case.name, case.program, case.group)
