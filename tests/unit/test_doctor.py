"""What `doctor --self-test` says about the prediction it made."""

import json

import pytest

from causal.selftest import SelfTest
from cli.doctor import as_json, describe


def outcome(predicted, half_width, true):
    return SelfTest(predicted, predicted - half_width, predicted + half_width, true, 15_800, 160_000)


def test_numbers_in_words():
    first, second, third = describe(outcome(0.245, 0.009, 0.254))
    assert "50% faster: predicted 24.5 ± 0.9%, really 25.4%" in first
    assert "error -0.9 points" in second
    assert "15.8 us" in third and "0.16 ms" in third


@pytest.mark.parametrize(
    ("predicted", "half_width", "fine"),
    [(0.25, 0.01, True), (0.22, 0.005, True), (0.15, 0.12, True), (0.15, 0.02, False)],
)
def test_an_error_beyond_interval_and_truth_is_not_passed_over(predicted, half_width, fine):
    line = describe(outcome(predicted, half_width, 0.25))[1]
    assert ("as it should be" in line) == fine
    assert ("run it again" in line) != fine


def test_as_json():
    found = json.loads(json.dumps(as_json([], outcome(0.2, 0.01, 0.25))))
    assert found["self_test"]["error"] == pytest.approx(-0.05) and found["self_test"]["covered"] is False
    assert "self_test" not in as_json([])
