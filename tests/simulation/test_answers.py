"""Known answers, with the real sampler: 1 ms ticks, pauses that begin at ticks and end late, signals that cost time.

Bounds are in points (hundredths). They are what README.md reports, rounded up; a single window of a second scatters.
"""

import statistics
from dataclasses import replace

import pytest

from tests.simulation import questions, workloads
from tests.simulation.clock_rules import Peer
from tests.simulation.engine_model import QUEUE, Arm
from tests.simulation.experiment import Span, predicted_gain, really, true_gain, virtually
from tests.simulation.programs import S

SPAN = Span(S, S // 5)


def points(program, region, level, options=questions.MENDED, span=SPAN, seeds=2, baseline=Arm.PLACEBO):
    """The truth and the mean prediction, in points."""
    found = [predicted_gain(program, region, level, span, options, seed, baseline) for seed in range(seeds)]
    return 100 * true_gain(program, region, level, span), 100 * statistics.fmean(found)


@pytest.mark.parametrize("level", [0.1, 0.25, 0.5, 1.0])
def test_coz_example(level):
    """Two threads of 6.7 and 6.4: at most 4.5 % however fast the longer one gets, nothing for the other."""
    truth, found = points(workloads.barrier(6.7, 6.4), "a", level)
    assert truth == pytest.approx(4.48, abs=0.1)
    assert found == pytest.approx(truth, abs=1)
    truth, found = points(workloads.barrier(6.7, 6.4), "b", level)
    assert truth == pytest.approx(0, abs=0.1)
    assert found == pytest.approx(0, abs=1)


@pytest.mark.parametrize(("region", "level", "gain"), [
    ("slow", 0.1, 10), ("slow", 0.2, 20), ("slow", 0.3, 20), ("fast", 0.1, 0), ("fast", 0.2, 0), ("fast", 0.3, 0),
])  # fmt: skip
def test_amd_example(region, level, gain):
    """Two threads, the fast one takes 80 % of the slow one's time."""
    program = workloads.amd()
    truth, found = points(program, region, level)
    assert truth == pytest.approx(gain, abs=0.2)
    assert found == pytest.approx(gain, abs=1)


def test_a_convoy_has_a_negative_slope():
    truth, found = points(workloads.convoy(25, 5, 2.5), "local", 0.75)
    assert truth < -20
    assert found == pytest.approx(truth, abs=2)


@pytest.mark.parametrize("level", [0.25, 0.5])
def test_paced_from_outside(level):
    """A deadline loop gains nothing. Against the placebo it seems to gain; dilation shows the same false gain."""
    truth, found = points(workloads.deadline(), "work", level)
    assert truth == pytest.approx(0, abs=0.2)
    assert found > 8
    _, found = points(workloads.deadline(), "work", level, baseline=Arm.DILATION)
    assert found == pytest.approx(0, abs=1)


@pytest.mark.parametrize(("workers", "clients"), [(2, 1), (4, 1), (4, 2)])
def test_a_pool_that_takes_turns_on_outside_clients(workers, clients):
    """A request must not be paid for once more by the worker that happens to serve the next one (rule 5)."""
    program = workloads.pool(workers, clients)
    for peer in (Peer.SINCE_SEND, Peer.SINCE_ANY_SEND):
        truth, found = points(program, "work", 0.5, questions.with_rules(questions.MENDED, peer=peer))
        assert found == pytest.approx(truth, abs=4)
    _, found = points(program, "work", 0.5, questions.with_rules(questions.MENDED, peer=Peer.SINCE_BLOCK))
    assert found < truth - 20


def test_beside_a_program_that_takes_a_core_now_and_then():
    """It gets a core whose thread pauses, and keeps it for longer than the pause was to take (rule 9)."""
    program = workloads.with_outsider(workloads.pipeline())
    truth, found = points(program, "slow", 0.5)
    assert found == pytest.approx(truth, abs=8)
    _, found = points(program, "slow", 0.5, questions.with_rules(questions.MENDED, outsiders_cost=False))
    assert found < truth - 12


def test_a_debt_moves_on_from_a_thread_that_cannot_pause():
    """Pong cannot pause; what it owes goes to ping (rule 10)."""
    truth, found = points(workloads.with_stuck(workloads.ping_pong(), 1), "ping", 0.5)
    assert found == pytest.approx(truth, abs=1)


def test_ticks_that_fall_in_step_with_rounds():
    """About two rounds in a period: what wanders and may stand for more is right, what stays and is capped is not."""
    program = workloads.ping_pong(0.25, 0.25)
    truth, found = points(program, "ping", 0.5)
    assert found == pytest.approx(truth, abs=2)


def test_a_long_queue_that_drains_shows_in_the_other_samples_per_visit():
    """Both halves of such a window agree; but what is taken from a queue is not produced."""

    def others(items, arm):
        span = Span(S // 2, S // 5, S // 10)
        window = virtually(workloads.backlog(4.8, 6.0, items), "slow", 0.5, span, questions.MENDED, arm)
        return window.counts["others_ns"] / len(window.visits)

    assert others(8, Arm.TREATED) / others(8, Arm.PLACEBO) == pytest.approx(1, abs=0.08)
    assert others(1000, Arm.TREATED) / others(1000, Arm.PLACEBO) < 0.8


@pytest.mark.parametrize(("work", "io"), [(8, 6), (6, 8)])
@pytest.mark.parametrize("level", [0.25, 0.5, 1.0])
def test_computing_and_waiting_for_a_disk(work, io, level):
    """They meet: whichever is longer gains as far as it is longer, the other gains nothing."""
    program = workloads.work_and_io(work, io)
    whole = max(work, io)
    for region, left in (("work", max(work * (1 - level), io)), ("io", max(io * (1 - level), work))):
        truth, found = points(program, region, level)
        assert truth == pytest.approx(100 * (1 - left / whole), abs=0.5)
        assert found == pytest.approx(truth, abs=1.5)


@pytest.mark.parametrize("level", [0.25, 0.5, 1.0])
def test_a_program_that_mostly_sleeps(level):
    truth, found = points(workloads.work_and_sleep(1, 5), "sleep", level)
    assert truth == pytest.approx(500 / 6 * level, abs=0.5)
    assert found == pytest.approx(truth, abs=1.5)


@pytest.mark.parametrize("level", [0.25, 0.75])
def test_many_threads_that_wait_at_once(level):
    truth, found = points(workloads.disk_users(), "io", level)
    assert truth == pytest.approx(500 / 6 * level, abs=1)
    assert found == pytest.approx(truth, abs=2)


@pytest.mark.parametrize("level", [0.5, 1.0])
@pytest.mark.parametrize(("threads", "cores"), [(1, 1), (2, 2), (4, 1)])
def test_a_call_lasts_until_its_thread_runs_again(threads, cores, level):
    """A third of it is a core that gets going. Where threads wait for each other's core it gains nothing."""
    program = workloads.device_users(threads, cores)
    truth, found = points(program, "call", level, replace(questions.MENDED, calls=True))
    assert found == pytest.approx(truth, abs=2)
    if threads > cores:
        assert truth == pytest.approx(0, abs=2)


@pytest.mark.parametrize("level", [0.25, 0.5])
@pytest.mark.parametrize(
    ("program", "region", "truths"),
    [
        (workloads.full_queue(), "serve", {0.25: 25, 0.5: 50}),
        (workloads.batches(), "serve", {0.25: 37.5, 0.5: 75}),  # more than its part: it catches up with the producer
        (workloads.batches(), "produce", {0.25: -12.5, 0.5: -25}),  # requests come sooner and wait longer
    ],
    ids=["full queue", "batches: serve", "batches: produce"],
)
def test_latencies(program, region, level, truths):
    """Also where pauses take much too long, as beside other programs."""
    base = really(program, region, 0.0, SPAN).latency_ns
    truth = 100 * (1 - really(program, region, level, SPAN).latency_ns / base)
    assert truth == pytest.approx(truths[level], abs=1)
    for late_us in (60, 1500):
        options = questions.replace(questions.MENDED, period_ns=300_000, oversleep_ns=(5_000, 1000 * late_us))
        treated = virtually(program, region, level, SPAN, options).latency_ns
        placebo = virtually(program, region, level, SPAN, options, Arm.PLACEBO, seed=2).latency_ns
        assert 100 * (1 - treated / placebo) == pytest.approx(truth, abs=1.5)


def test_an_idle_pool_gains_nothing():
    """Nothing depends on its waiting, however much of it there is."""
    truth, found = points(workloads.idle_pool(), "idle", 0.5)
    assert truth == pytest.approx(0, abs=0.1)
    assert found == pytest.approx(0, abs=1)


@pytest.mark.parametrize(("threads", "cores"), [(4, 2), (3, 1)])
def test_more_cores(threads, cores):
    """Without any wait for a core the program is as fast as on enough of them."""
    here, roomy = (workloads.independent(threads=threads, cores=n) for n in (cores, threads))
    truth = 100 * (1 - really(roomy, None, 0, SPAN).interval_ns / really(here, None, 0, SPAN).interval_ns)
    found = [100 * predicted_gain(here, QUEUE, 1.0, SPAN, questions.MENDED, seed) for seed in range(2)]
    assert statistics.fmean(found) == pytest.approx(truth, abs=4)
