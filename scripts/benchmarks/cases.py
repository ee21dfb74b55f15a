"""The questions whose answers are known: which workload, with how much work, and which function is sped up."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "tests" / "workloads"
PROGRAMS = WORKLOADS / "build"
LEVELS = (0.25, 0.50, 0.75, 1.00)


@dataclass(frozen=True)
class Case:
    """One function of one workload.

    `amounts` are the program's positional arguments: units of work (about a microsecond each) or real
    microseconds of sleep. `reduced` is the position of the one that the function consumes.
    """

    name: str
    program: str
    function: str
    amounts: tuple[int, ...]
    reduced: int
    options: tuple[str, ...] = ()

    def command(self, speedup: float = 0.0) -> list[str]:
        """The program with the function's work reduced by `speedup` (a fraction)."""
        amounts = list(self.amounts)
        amounts[self.reduced] = round(amounts[self.reduced] * (1 - speedup))
        return [str(PROGRAMS / self.program), *map(str, amounts), *self.options]


# Rounds take 5 to 10 ms: long against the sampling period, short enough for many visits in a window.
CASES = (
    Case("barrier", "barrier", "work_a", (8000, 6000), 0),
    Case("barrier-shorter", "barrier", "work_b", (8000, 6000), 1),
    Case("pipeline", "pipeline", "stage_slow", (6400, 8000), 1),
    Case("pipeline-fast", "pipeline", "stage_fast", (6400, 8000), 0),
    Case("pingpong", "pingpong", "ping_work", (4000, 4000), 0),
    Case("pingpong-processes", "pingpong", "ping_work", (4000, 4000), 0, ("--processes",)),
    Case("lock-critical", "lock", "critical_work", (3000, 5000), 1),
    Case("lock-local", "lock", "local_work", (5000, 3000), 0),
    Case("spin", "spin", "work_a", (4000, 4000), 0),
    Case("worksleep", "worksleep", "work_a", (4000, 3000), 0),
    Case("oversub", "oversub", "work_a", (4400, 3600), 0),
    Case("oversub-b", "oversub", "work_b", (4400, 3600), 1),
    Case("sleeper", "sleeper", "work_a", (4000, 3000), 0, ("--beside", "2")),
    Case("tcp", "tcp", "server_work", (4000, 4000), 1),
    Case("forker", "forker", "work_a", (4400, 3600), 0),
    Case("deadline", "deadline", "work_a", (8000, 4000), 1),
)


def select(names: list[str]) -> list[Case]:
    """Cases by case name or program name, all of them when `names` is empty; unknown names raise KeyError."""
    for name in names:
        if not any(name in (case.name, case.program) for case in CASES):
            raise KeyError(name)
    return [case for case in CASES if not names or case.name in names or case.program in names]
