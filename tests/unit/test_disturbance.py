"""Windows in which other programs took CPU time count as void: those that differ from the usual, whatever they show."""

from causal.analysis.disturbance import REASON, busy_messages, mark_disturbed
from causal.profile import Window

S = 1_000_000_000


def windows(*taken, key="outside_ns"):
    """One window of a second for each share of a CPU that others took."""
    return [
        Window(region="r", arm="placebo", pair=i, level=0.5, speedup=0.0, effective_ns=S, wall_ns=S,
               audit={key: share * S})
        for i, share in enumerate(taken)
    ]  # fmt: skip


def void(found):
    return [i for i, window in enumerate(found) if window.void == REASON]


def test_the_one_that_was_disturbed():
    assert void(mark_disturbed(windows(0.02, 0.03, 0.4, 0.02, 0.01))) == [2]
    assert void(mark_disturbed(windows(0.0, 0.0, 0.0, 0.2, 0.0, key="steal_ns"))) == [3]


def test_small_differences_are_none():
    assert void(mark_disturbed(windows(0.02, 0.05, 0.01, 0.14, 0.02))) == []


def test_what_is_always_there_disturbs_nothing():
    assert void(mark_disturbed(windows(0.8, 0.82, 0.81, 0.79, 0.8))) == []
    assert void(mark_disturbed(windows(0.8, 0.6, 0.9, 0.7, 1.0, 0.75))) == []


def test_without_a_usual_state_none_is_void():
    assert void(mark_disturbed(windows(0.0, 0.5, 0.9, 0.0, 0.7))) == []


def test_void_windows_keep_their_reason_and_do_not_count():
    others = windows(0.01, 0.01, 0.9)
    marked = Window(region="r", arm="placebo", pair=9, level=0.5, speedup=0.0, effective_ns=S, wall_ns=S, void="quota")
    found = mark_disturbed([marked, *others])
    assert found[0].void == "quota" and void(found) == [3]


def test_old_profiles_without_the_counters():
    plain = Window(region="r", arm="placebo", pair=1, level=0.5, speedup=0.0, effective_ns=S, wall_ns=S)
    assert mark_disturbed([plain, plain]) == (plain, plain)
    assert mark_disturbed([]) == ()


def test_a_busy_machine_is_named():
    (message,) = busy_messages(windows(0.9, 0.95, 0.85), 2)
    assert "other programs take 0.9 of 2 CPUs" in message
    assert not list(busy_messages(windows(0.9, 0.95, 0.85), 64))
    assert not list(busy_messages(windows(0.05, 0.9, 0.1), 2))
    assert not list(busy_messages([], 2)) and not list(busy_messages(windows(0.9), 0))
