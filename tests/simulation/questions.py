"""Answers the open questions about the rules with numbers: `python -m tests.simulation.questions [NAME ...]`.

README.md has what this printed, and what follows from it. Takes minutes; the tests check the conclusions on less.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tests.simulation import workloads
from tests.simulation.clock_rules import CoreClock, Peer, Rules
from tests.simulation.engine_model import Arm, Options, Sampler, Weight
from tests.simulation.experiment import Span, Timeline, predicted_gain, true_gain, virtually
from tests.simulation.programs import US, Program, S

LEVELS = (0.25, 0.5, 0.75)
# A sleep ends 5 to 60 us late, a signal costs 5 us and a sample 2 us: a machine between bare metal and a nested one.
# The rules as they were when the questions were asked.
REAL = Options(
    oversleep_ns=(5 * US, 60 * US), signal_ns=5 * US, sample_ns=2 * US, period_ns=997_000, skew=0.003,
    rules=Rules(keep_credit=False, peer=Peer.SINCE_BLOCK, spin_waits=False),
)  # fmt: skip
# What the answers suggest: the period wanders, a sample may stand for more, a credit survives a wakeup, and what comes
# from outside brings only what G grew since the target last sent something there.
MENDED = replace(REAL, wander=0.1, most_periods=64, rules=Rules())
SPAN = Span(3 * S // 2, S // 5)


@dataclass(frozen=True)
class Case:
    """Work varies by a tenth, as it does on a machine: otherwise programs fall into step with the ticks."""

    steady: Program
    region: str

    @property
    def program(self) -> Program:
        return replace(self.steady, jitter=0.1)


@dataclass(frozen=True)
class Answer:
    """Fractions: the truth, the mean of the predictions, their standard deviation over single windows."""

    truth: float
    mean: float
    spread: float

    @property
    def error(self) -> float:
        return self.mean - self.truth


@functools.cache
def _truth(case: Case, level: float, span: Span) -> float:
    return true_gain(case.program, case.region, level, replace(span, length_ns=3 * span.length_ns))


def ask(
    case: Case, level: float, options: Options, span: Span = SPAN, seeds: int = 2, baseline: Arm = Arm.PLACEBO
) -> Answer:
    truth = _truth(case, level, span)
    found = [predicted_gain(case.program, case.region, level, span, options, seed, baseline) for seed in range(seeds)]
    known = [gain for gain in found if not math.isnan(gain)]
    mean = statistics.fmean(known) if len(known) == seeds else math.nan
    return Answer(truth, mean, statistics.stdev(known) if len(known) > 1 else 0.0)


def _triple(values: Iterable[float]) -> str:
    return "/".join(f"{100 * value:.1f}" for value in values)


def _row(case: Case, cells: Sequence[str]) -> None:
    print(f"{case.program.name}: {case.region}".ljust(46) + "".join(cell.rjust(20) for cell in cells), flush=True)


def compare(cases: Sequence[Case], variants: dict[str, Options], span: Span = SPAN, seeds: int = 2) -> None:
    """A row per case: the truth, then what each variant predicts; last the mean absolute and the largest error."""
    print("case".ljust(46) + "".join(name.rjust(20) for name in ("truth", *variants)))
    errors: dict[str, list[float]] = {name: [] for name in variants}
    for case in cases:
        cells: list[str] = []
        for name, options in variants.items():
            answers = [ask(case, level, options, span, seeds) for level in LEVELS]
            if not cells:
                cells.append(_triple(answer.truth for answer in answers))
            cells.append(_triple(answer.mean for answer in answers))
            errors[name] += [abs(answer.error) for answer in answers]
        _row(case, cells)
    for title, summary in (("mean absolute error", statistics.fmean), ("largest error", max)):
        print(title.ljust(66) + "".join(f"{100 * summary(e):.2f}".rjust(20) for e in errors.values()))


def standard(scale: float = 1.0) -> list[Case]:
    """The synchronising programs, rounds of about 6 ms times `scale`."""
    k = scale
    return [
        Case(workloads.pipeline(4.8 * k, 6 * k), "slow"),
        Case(workloads.pipeline(4.8 * k, 6 * k), "fast"),
        Case(workloads.ping_pong(3 * k, 3 * k), "ping"),
        Case(workloads.barrier(6.7 * k, 6.4 * k), "a"),
        Case(workloads.barrier(6.7 * k, 3 * k), "a"),
        Case(workloads.lock(3 * k, 4 * k), "critical"),
        Case(workloads.lock(3 * k, 4 * k), "local"),
        Case(workloads.lock(3 * k, 1 * k), "local"),
        Case(workloads.spin(3 * k, 3 * k), "a"),
        Case(workloads.work_and_sleep(3 * k, 3 * k), "work"),
    ]


def parallel() -> list[Case]:
    """The region runs on several cores at once."""
    return [
        Case(workloads.independent(threads=2), "a"),
        Case(workloads.independent(threads=4, cores=4), "a"),
        Case(workloads.independent(6.0, 0.3, threads=2), "a"),
        Case(workloads.independent(6.0, 0.3, threads=4, cores=4), "a"),
    ]


def oversubscribed() -> list[Case]:
    return [
        *(Case(workloads.independent(threads=n), r) for n in (2, 3, 4, 8, 16) for r in "ab"),
        Case(workloads.independent(threads=8, pinned=True), "a"),
        Case(workloads.lock(3, 1, threads=4), "local"),
        Case(workloads.lock(3, 1, threads=4), "critical"),
        Case(workloads.ping_pong(cores=1), "ping"),
    ]


def with_rules(options: Options, **changes: object) -> Options:
    return replace(options, rules=replace(options.rules, **changes))  # type: ignore[arg-type]


def question_credit() -> None:
    """(a) Should a credit survive a wakeup?"""
    for scale in (1.0, 0.25):
        print(f"rounds of {6 * scale} ms")
        compare([c for c in standard(scale) if not c.program.name.startswith(('pipe', 'work'))], {
            "clamped": with_rules(MENDED, keep_credit=False), "credit": MENDED,
            "frozen": with_rules(MENDED, keep_credit=False, frozen=True),
            "frozen+credit": with_rules(MENDED, frozen=True),
        })  # fmt: skip


def question_cores() -> None:
    """(b) Core clocks."""
    variants = {"before": REAL, "mended": MENDED}
    for core in (CoreClock.NEVER, CoreClock.SCARCE, CoreClock.HANDED_OVER):
        variants[core.value] = with_rules(MENDED, core_clock=core)
    compare([*oversubscribed(), *parallel()[:2], *standard()[:2]], variants)


def question_entry() -> None:
    """(b) When an oversubscribed thread pauses, and whether it keeps its core."""
    handed = with_rules(MENDED, core_clock=CoreClock.HANDED_OVER)
    compare(oversubscribed(), {
        "before, on entry": replace(REAL, on_entry=True),
        "mended, on entry": replace(MENDED, on_entry=True),
        "mended, hold": replace(MENDED, hold=True),
        "handed, on entry": replace(handed, on_entry=True),
        "handed, hold": replace(handed, hold=True),
    })  # fmt: skip


def question_bursts() -> None:
    """(g) What a sample stands for where the target runs in short bursts: a, then b, then sleep."""
    bursts = [(a, b, 4.0) for a, b in ((0.1, 0.1), (0.5, 0.5), (0.2, 0.8), (0.8, 0.2), (0.2, 4.0), (3.0, 3.0))]
    cases = [Case(workloads.bursts(*burst), region) for burst in bursts for region in "ab"]
    others = {weight.value: replace(REAL, weight=weight) for weight in (Weight.PERIOD, Weight.UNPAUSED_CORE)}
    compare(cases, {"before": REAL, **others}, Span(3 * S, S // 5), 3)


def question_settle() -> None:
    """(c) How long queues take to settle: the gain seen in 0.5 s after so long, and the other samples per visit."""
    for capacity in (1, 8, 1000):
        program = workloads.backlog(4.8, 6.0, capacity)
        row = [f"queue of {capacity}".ljust(15)]
        for settle in (0.0, 0.1, 0.2, 0.5, 1.0, 5.0, 12.0):
            span = Span(S // 2, round(settle * S), S // 10)
            arms = (Arm.TREATED, Arm.PLACEBO)
            treated, placebo = (virtually(program, "slow", 0.5, span, MENDED, arm) for arm in arms)
            gain = 1 - treated.interval_ns / placebo.interval_ns
            others = _others_per_visit(treated) / _others_per_visit(placebo)
            row.append(f"{settle}s: {100 * gain:.1f} ({others:.2f})")
        print("  ".join(row), flush=True)


def _others_per_visit(timeline: Timeline) -> float:
    return timeline.counts["others_ns"] / len(timeline.visits)


def question_pool() -> None:
    """(d) Workers that take turns on an outside client."""
    shapes = ((1, 1, False), (2, 1, False), (4, 1, False), (4, 1, True), (4, 2, False), (4, 4, False), (2, 4, False))
    cases = [Case(workloads.pool(workers, clients, lifo=lifo), "work") for workers, clients, lifo in shapes]
    cases += [Case(workloads.split_server(workers), region) for workers in (1, 3) for region in ("work", "rest")]
    compare(cases, {peer.value: with_rules(MENDED, peer=peer) for peer in Peer})


def question_stuck() -> None:
    """(h) Threads that cannot pause (rule 10)."""
    cases = [
        Case(workloads.with_stuck(workloads.ping_pong(), 1), "ping"),
        Case(workloads.with_stuck(workloads.barrier(6.7, 6.4), 1), "a"),
        Case(workloads.with_stuck(workloads.barrier(6.7, 3.0), 1), "a"),
        Case(workloads.with_stuck(workloads.pipeline(), 0), "slow"),
        Case(workloads.with_stuck(workloads.pipeline(), 1), "fast"),
        Case(workloads.with_stuck(workloads.lock(3, 4), 1), "critical"),
        Case(workloads.with_stuck(workloads.independent(threads=4, cores=4), 0), "a"),
    ]
    compare(cases, {"before": REAL, "mended": MENDED})


def question_outsider() -> None:
    """(b) Beside a process outside the target that takes a core for 2 ms every 5 ms."""
    programs = [
        (workloads.independent(threads=2), "a"), (workloads.independent(threads=4), "a"),
        (workloads.pipeline(), "slow"), (workloads.barrier(6.7, 3.0), "a"), (workloads.lock(3, 4), "critical"),
        (workloads.ping_pong(), "ping"), (workloads.ping_pong(cores=1), "ping"),
    ]  # fmt: skip
    cases = [Case(workloads.with_outsider(program), region) for program, region in programs]
    compare(cases, {
        "before": REAL, "mended": with_rules(MENDED, outsiders_cost=False), "they prolong pauses": MENDED,
        "no wait pays": with_rules(MENDED, queue_pays=False),
        "handed over": with_rules(MENDED, core_clock=CoreClock.HANDED_OVER),
        "scarce": with_rules(MENDED, core_clock=CoreClock.SCARCE),
    })  # fmt: skip


def question_dilation() -> None:
    """(e) Dilation as the baseline."""
    cases = [*standard(), *parallel(), Case(workloads.deadline(), "work"), Case(workloads.pool(1, 1), "work")]
    print("case".ljust(46) + "".join(n.rjust(20) for n in ("truth", "against placebo", "against dilation", "spreads")))
    for case in cases:
        cells: list[str] = []
        spreads: list[float] = []
        for baseline in (Arm.PLACEBO, Arm.DILATION):
            answers = [ask(case, level, MENDED, seeds=4, baseline=baseline) for level in LEVELS]
            if not cells:
                cells.append(_triple(answer.truth for answer in answers))
            cells.append(_triple(answer.mean for answer in answers))
            spreads.append(statistics.fmean(answer.spread for answer in answers))
        _row(case, [*cells, _triple(spreads)])


def question_lumps() -> None:
    """(f) A period of 1 ms against rounds of 0.5 to 10 ms."""
    for scale in (1 / 12, 1 / 6, 1 / 3, 2 / 3, 5 / 3):
        print(f"rounds of {6 * scale:.1f} ms")
        compare(standard(scale), {
            "before": REAL, "mended": MENDED,
            "P = 0.25 ms": replace(MENDED, period_ns=250 * US),
        })  # fmt: skip


def question_aliasing() -> None:
    """(g) Rounds of which about a whole number fits into a period."""
    cases = [
        Case(workloads.ping_pong(0.25, 0.25), "ping"), Case(workloads.ping_pong(0.5, 0.5), "ping"),
        Case(workloads.work_and_sleep(0.25, 0.25), "work"), Case(workloads.work_and_sleep(0.5, 0.5), "work"),
        Case(workloads.ping_pong(1.0, 1.0), "ping"), Case(workloads.barrier(1.0, 0.5), "a"),
        Case(workloads.pipeline(0.4, 0.5), "slow"),
    ]  # fmt: skip
    unpaused = replace(REAL, weight=Weight.UNPAUSED_CORE)
    compare(cases, {
        "before": REAL, "at most 64 periods": replace(REAL, most_periods=64), "unpaused core": unpaused,
        "before, wander": replace(REAL, wander=0.1), "64, wander": replace(REAL, most_periods=64, wander=0.1),
        "unpaused, wander": replace(unpaused, wander=0.1),
    })  # fmt: skip


def question_spin() -> None:
    """(i) Threads that spin while they wait."""
    fine = replace(MENDED, period_ns=350 * US)
    for k in (1 / 3, 4 / 3):
        cases = [Case(workloads.spin(a * k, b * k), "a") for a, b in ((3, 3), (3, 1), (1, 3))]
        cases += [Case(workloads.spin_barrier(a * k, b * k), r) for a, b in ((4, 3), (4, 1), (3, 4)) for r in "ab"]
        compare(cases, {"for work": with_rules(fine, spin_waits=False), "for waiting": fine})


def question_lockstep() -> None:
    """(g) A thread whose pause begins at a tick is there again at the next one."""
    compare(parallel() + oversubscribed()[4:8] + standard(), {
        **{weight.value: replace(REAL, weight=weight) for weight in Weight},
        "tasks": replace(REAL, sampler=Sampler.TASKS),
    })  # fmt: skip


QUESTIONS: dict[str, Callable[[], None]] = {
    "credit": question_credit,
    "cores": question_cores,
    "entry": question_entry,
    "outsider": question_outsider,
    "settle": question_settle,
    "pool": question_pool,
    "dilation": question_dilation,
    "lumps": question_lumps,
    "lockstep": question_lockstep,
    "aliasing": question_aliasing,
    "bursts": question_bursts,
    "stuck": question_stuck,
    "spin": question_spin,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or QUESTIONS:
        print(f"\n== {name}: {QUESTIONS[name].__doc__}")
        QUESTIONS[name]()
