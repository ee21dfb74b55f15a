"""Programs whose order depends on timing, under the real sampler: how far off, as a distribution.

Whoever comes first gets the lock or the core, samples alone tell who spins, and a sample is a lump: so no equality
here. The bounds are wide on purpose; README.md has the numbers, and what they depend on.
"""

import statistics

import pytest

from tests.simulation import questions, workloads
from tests.simulation.experiment import Span
from tests.simulation.programs import S
from tests.simulation.questions import Case

SPAN = Span(S, S // 5)


def errors(cases, options):
    """Of the mean of two windows, in points, at 25 and 50 %."""
    return [100 * abs(questions.ask(case, level, options, SPAN).error) for case in cases for level in (0.25, 0.5)]


LOCKS = [
    Case(workloads.lock(3, 4), "critical"),
    Case(workloads.lock(5, 1, threads=3, cores=3), "local"),
    Case(workloads.lock(2, 6, threads=3, cores=3, fair=True), "critical"),
]
SPINS = [Case(workloads.spin(6, 3), "a"), Case(workloads.spin(3, 6), "b")]
CROWDS = [Case(workloads.independent(threads=4), "a"), Case(workloads.lock(3, 1, threads=4), "local")]
PARALLEL = [Case(workloads.independent(threads=2), "a"), Case(workloads.independent(6.0, 0.3, threads=2), "a")]


@pytest.mark.parametrize(
    ("cases", "mean", "worst"), [(LOCKS, 2.5, 6), (SPINS, 2, 4), (CROWDS, 2.5, 6), (PARALLEL, 2, 4)]
)
def test_errors_stay_within_bounds(cases, mean, worst):
    found = errors(cases, questions.MENDED)
    assert statistics.fmean(found) <= mean
    assert max(found) <= worst


def test_spinning_must_not_be_taken_for_work():
    taken_for_work = questions.with_rules(questions.MENDED, spin_waits=False)
    assert statistics.fmean(errors(SPINS, taken_for_work)) > 2 * statistics.fmean(errors(SPINS, questions.MENDED))


def test_pauses_that_take_too_long():
    """Who waits for a thread whose pause took too long is as late as that thread, and owes no more than it."""
    late = questions.replace(questions.MENDED, period_ns=500_000, oversleep_ns=(5_000, 1_500_000))
    cases = [Case(workloads.lock(3, 4), "local"), Case(workloads.barrier(2.0, 0.9), "a")]
    assert max(errors(cases, late)) <= 2
    assert max(errors(cases, questions.with_rules(late, credit_travels=False))) > 4


def test_a_sample_must_not_stand_for_a_pause():
    """Why a sample counts for less after a pause: with whole periods a region that runs twice at once is overrated."""
    whole = questions.replace(questions.MENDED, weight=questions.Weight.PERIOD)
    assert min(errors(PARALLEL, whole)) > 2 * max(errors(PARALLEL, questions.MENDED))
