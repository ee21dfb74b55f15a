"""Known answers, with the real sampler: 1 ms ticks, pauses that begin at ticks and end late, signals that cost time.

Bounds are in points (hundredths). They are what README.md reports, rounded up; a single window of a second scatters.
"""

import statistics

import pytest

from tests.simulation import questions, workloads
from tests.simulation.engine_model import Arm
from tests.simulation.experiment import Span, predicted_gain, true_gain
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
    truth, found = points(workloads.convoy(), "local", 0.75)
    assert truth < -20
    assert found == pytest.approx(truth, abs=5)
