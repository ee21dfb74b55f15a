"""What is said of a region, from the gain at its best speedup."""

from types import SimpleNamespace

import pytest

from causal.analysis.results import Gain, Verdict
from causal.analysis.verdict import judge


@pytest.mark.parametrize(
    ("gain", "low", "high", "expected"),
    [
        (0.2, 0.1, 0.3, Verdict.OPTIMISE),
        (-0.2, -0.3, -0.1, Verdict.CONTENTION),
        (-0.019, -0.037, -0.001, Verdict.NO_EFFECT),  # measured, where the truth is nothing
        (-0.033, -0.062, -0.004, Verdict.UNDECIDED),  # the same
        (0.0, -0.02, 0.02, Verdict.NO_EFFECT),
        (0.0, -0.2, 0.2, Verdict.UNDECIDED),
    ],
)
def test_by_the_interval(gain, low, high, expected):
    fit = SimpleNamespace(knee=None, max_level=1.0, at=lambda level: Gain(gain, (low, high)), is_evidence=True)
    assert judge(fit, 0.001 if low * high > 0 else 0.5, False, "")[0] is expected
