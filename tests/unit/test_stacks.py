"""What a report says about the unwinding of stacks."""

import pytest

from causal.analysis.stacks import Stacks, cut_short, missing_information, read_stacks


def counters(**changes):
    return {"stacks_whole": 90, "stacks_guessed": 6, "stacks_deep": 1, "stacks_lost": 3} | changes


def test_shares():
    stacks = read_stacks(counters())
    assert stacks == Stacks(90, 6, 1, 3) and stacks.total == 100
    assert "3.0% broke off" in str(stacks) and "1.0% were deeper" in str(stacks)
    assert "96.0% of 100 stacks" in str(stacks) and "6.0% by way of frame pointers" in str(stacks)
    assert "frame pointers" not in str(Stacks(10, 0, 0, 0)) and "100.0%" in str(Stacks(10, 0, 0, 0))


@pytest.mark.parametrize("value", [None, "x", -1, float("nan"), [1]])
def test_profiles_that_do_not_tell(value):
    assert read_stacks(counters(stacks_lost=value)) is None
    assert read_stacks({}) is None
    assert read_stacks(dict.fromkeys(counters(), 0)) is None


def test_callers_that_are_missing_are_told_where_callers_count():
    assert "4% of the stacks were cut short" in cut_short(counters(), "call_site")
    assert cut_short(counters(), "call_site") != cut_short(counters(), "any_frame")
    for attribution in ("innermost", None, 3, "of a later version"):
        assert cut_short(counters(), attribution) is None
    assert cut_short(counters(stacks_whole=1000), "any_frame") is None
    assert cut_short({}, "any_frame") is None


def test_modules_without_information_are_named():
    without = [
        {"path": "/opt/lib/libold.so", "frames": 50, "reason": "it has no call-frame information"},
        {"path": "[anonymous]", "frames": 20, "reason": ""},
        {"path": "/bin/rare", "frames": 5, "reason": ""},
    ]
    text = missing_information({"unwinding": {"without": without}}, 1000)
    assert "libold.so (it has no call-frame information), [anonymous]" in text and "rare" not in text
    assert missing_information({"unwinding": {"without": without}}, 100_000) is None
    for broken in (3, {"without": {}}, {"without": [1, {"frames": "x"}]}):
        assert missing_information({"unwinding": broken}, 100) is None
    assert missing_information({}, 100) is None
