"""The rules one by one, with numbers small enough to follow."""

import pytest

from tests.simulation import clock_rules as rules_of
from tests.simulation.clock_rules import Clock, CoreClock, CoreState, Mark, Peer, PeerClock, Rules, ThreadClock

RULES = Rules(queue_noise_ns=0)


def owing(amount, clock):
    return ThreadClock(local=clock.granted - amount)


def test_a_sample_makes_everybody_else_owe():
    clock, sampled, other = Clock(), ThreadClock(), ThreadClock()
    rules_of.grant(sampled, CoreState(), clock, 5)
    assert (rules_of.debt(sampled, clock), rules_of.debt(other, clock)) == (0, 5)


def test_in_dilation_nobody_is_exempt():
    clock, sampled = Clock(), ThreadClock()
    rules_of.grant(sampled, CoreState(), clock, 5, exempt=False)
    assert rules_of.debt(sampled, clock) == 5


@pytest.mark.parametrize(
    ("owed", "wait", "growth", "waker", "left"),
    [
        (7, 3, 0, 0, 4),  # waiting pays
        (7, 30, 0, 0, 0),
        (7, 30, 0, 5, 5),  # not behind of what woke it
        (7, 3, 3, 0, 7),  # G grew as fast as time passed: nothing was paid, nothing came on top
        (0, 3, 9, 0, 0),
        (-2, 9, 3, -5, -5),  # as late as its waker
        (7, 30, 0, -5, -5),
        (7, 9, 0, -5, -2),  # ... but no later than its own time, which stood still
        (0, 3, 9, -5, 0),
        (-2, 9, 3, -1, -1),
        (-2, 9, 3, 0, 0),
    ],
)
def test_woken_by_the_target(owed, wait, growth, waker, left):
    clock = Clock(100)
    thread = owing(owed, clock)
    rules_of.block(thread, clock, now=1000)
    clock.granted += growth
    rules_of.wake(thread, waker, clock, 1000 + wait, RULES)
    assert rules_of.debt(thread, clock) == left
    assert thread.blocked is None


def test_a_credit_that_does_not_travel_is_kept_as_far_as_the_waker_lets_it():
    clock = Clock(100)
    thread = owing(-2, clock)
    rules_of.block(thread, clock, now=1000)
    clock.granted += 3
    rules_of.wake(thread, -5, clock, 1009, Rules(credit_travels=False))
    assert rules_of.debt(thread, clock) == -2


def test_without_credit_a_wakeup_clears_the_overshoot_of_a_pause():
    clock = Clock(100)
    thread = owing(-2, clock)
    rules_of.block(thread, clock, now=1000)
    rules_of.wake(thread, -5, clock, 1009, Rules(keep_credit=False))
    assert rules_of.debt(thread, clock) == 0


def test_a_wakeup_before_the_switch_out_pays_nothing():
    clock = Clock(100)
    thread = owing(7, clock)
    rules_of.wake(thread, 0, clock, 1000, RULES)
    assert rules_of.debt(thread, clock) == 7


def test_a_frozen_wait_leaves_a_thread_where_it_was_in_virtual_time():
    clock, rules = Clock(100), Rules(frozen=True, keep_credit=True)
    thread = owing(-2, clock)
    rules_of.block(thread, clock, now=1000)
    virtual = 1000 - thread.local
    clock.granted += 9
    rules_of.wake(thread, -50, clock, 1003, rules)
    assert 1003 - thread.local == virtual


def test_woken_from_outside_owes_what_the_clock_grew():
    clock = Clock(100)
    thread = owing(2, clock)
    rules_of.block(thread, clock, now=1000)
    clock.granted += 3
    rules_of.wake_from_outside(thread, None, clock, 1010, RULES)
    assert rules_of.debt(thread, clock) == 5


def test_a_known_peer_brings_only_what_grew_since_it_was_sent_something():
    clock, rules, peer = Clock(100), Rules(peer=Peer.SINCE_SEND), PeerClock()
    waiting, sender = owing(0, clock), owing(0, clock)
    rules_of.block(waiting, clock, now=1000)
    rules_of.grant(sender, CoreState(), clock, 30)
    rules_of.send_outside(sender, peer, clock, 1060)
    clock.granted += 4
    rules_of.wake_from_outside(waiting, peer, clock, 1080, rules)
    assert rules_of.debt(waiting, clock) == 4


def test_a_boundary_clears_debts_and_starts_waits_anew():
    clock = Clock(100)
    thread = owing(9, clock)
    thread.blocked = Mark(5, 50)
    rules_of.boundary(thread, clock, 1000)
    assert rules_of.debt(thread, clock) == 0
    assert thread.blocked == Mark(1000, 100)


@pytest.mark.parametrize(
    ("core_clock", "scarce", "handed_over", "left"),
    [
        (CoreClock.SCARCE, True, False, 6),
        (CoreClock.SCARCE, False, True, 0),
        (CoreClock.HANDED_OVER, False, True, 6),
        (CoreClock.HANDED_OVER, True, False, 0),
        (CoreClock.NEVER, True, True, 0),
    ],
)
def test_a_core_does_not_run_two_threads_at_the_same_virtual_time(core_clock, scarce, handed_over, left):
    clock, core, rules = Clock(100), CoreState(), Rules(core_clock=core_clock, queue_noise_ns=0)
    before, after = owing(6, clock), owing(0, clock)
    rules_of.leave_core(before, core, 0, 1000, rules)
    rules_of.enter_core(
        after, core, clock, 1000, rules, target_held=True, scarce=scarce, handed_over=handed_over
    )  # fmt: skip
    assert rules_of.debt(after, clock) == left


@pytest.mark.parametrize(("waited", "left"), [(40, 6), (0, 0)])
def test_who_waited_for_a_core_owes_what_the_core_owes(waited, left):
    clock, core, thread = Clock(100), CoreState(local=94), owing(0, Clock(100))
    thread.queued = Mark(1000 - waited, 100)
    rules_of.enter_core(thread, core, clock, 1000, RULES, target_held=True, scarce=False, handed_over=False)
    assert rules_of.debt(thread, clock) == left


def test_a_core_pays_while_the_target_does_not_run_on_it_but_earns_no_credit():
    clock, core = Clock(100), CoreState(local=94)
    rules_of.core_pays(core, clock, 4)
    assert core.local == 98
    rules_of.core_pays(core, clock, 40)
    assert core.local == 100


@pytest.mark.parametrize(("target_held", "left"), [(True, 2), (False, 8)])
def test_waiting_for_a_core_pays_only_if_the_target_held_it(target_held, left):
    clock, thread = Clock(100), ThreadClock(96)
    thread.queued = Mark(1000, 100)
    clock.granted += 4
    rules = Rules(core_clock=CoreClock.NEVER, queue_noise_ns=0)
    rules_of.enter_core(
        thread, CoreState(), clock, 1006, rules, target_held=target_held, scarce=True, handed_over=True
    )  # fmt: skip
    assert rules_of.debt(thread, clock) == left


def test_one_that_cannot_pause_gives_its_debt_away_once():
    clock = Clock(100)
    thread = owing(7, clock)
    thread.stuck = True
    assert [rules_of.hand_on(thread, clock), rules_of.hand_on(thread, clock)] == [7, 0]


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        ((False,), 13),  # at work: it owes what grew
        ((True,), 0),  # it waited for 20 and G grew by 10: its debt of 3 is paid, nothing is added
        ((True, False), 10),  # a short spin may be one of many: only what is seen counts
        ((True, True, False), 0),  # after a long one, what ended it is not long ago
        ((True, True, False, False), 10),
    ],
)
def test_a_spinning_thread_waits(looks, left):
    clock, thread = Clock(100), ThreadClock(local=97)
    rules_of.look(thread, clock, 1000, Rules(), spins=False)
    for number, spins in enumerate(looks):
        clock.granted += 10
        rules_of.look(thread, clock, 1020 + 20 * number, Rules(), spins)
    assert rules_of.debt(thread, clock) == left
