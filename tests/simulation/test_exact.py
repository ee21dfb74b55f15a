"""Where the order of a program's locks and cores does not depend on timing, a virtual speedup is a real one.

The conditions, all of them:

1. every thread has a core whenever it wants one;
2. what a thread waits for is fixed: an item from one certain thread, a meeting of certain threads, a child's end, a
   sleep. No lock, no queue with two takers, no spinning: whom those let through depends on who comes first;
3. the region's progress is known without noise, and a thread in debt pauses at once (`Sampler.EXACT`).

Then a visit in effective time (wall time less G) is the visit of the really faster program, to within two thresholds: a
debt below the threshold is not paid at once, so a thread may be that much ahead when it visits or wakes another, and
the rules see to it that this does not add up. Here that is 0.2 us in runs of tens of milliseconds.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.clock_rules import Rules
from tests.simulation.engine_model import Arm, exact
from tests.simulation.experiment import Span, really, virtually
from tests.simulation.generated import plans
from tests.simulation.programs import S

QUANTUM = 9_973
FOREVER = Span(10 * S)
LEVELS = st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
BUILT = Rules(queue_noise_ns=0)
PURE = Rules(queue_noise_ns=0, frozen=True)


def same_visits(plan, arm, level, real_level, rules):
    program = plan.program()
    truth = really(program, "x", real_level, FOREVER).visits
    found = virtually(program, "x", level, FOREVER, exact(QUANTUM, rules), arm).visits
    assert len(truth) == len(found) == plan.rounds * plan.threads
    worst = max(abs(a - b) for a, b in zip(sorted(truth), sorted(found), strict=True))
    assert worst <= 2 * exact(QUANTUM).threshold_ns + 2


@settings(max_examples=25)
@given(plans(), LEVELS)
def test_virtual_speedup_is_the_real_one(plan, level):
    same_visits(plan, Arm.TREATED, level, level, BUILT)


@settings(max_examples=25)
@given(plans(), LEVELS)
def test_virtual_speedup_is_the_real_one_when_waits_stand_still(plan, level):
    same_visits(plan, Arm.TREATED, level, level, PURE)


@settings(max_examples=10)
@given(plans(), LEVELS)
def test_dilation_changes_nothing(plan, level):
    same_visits(plan, Arm.DILATION, level / 2, 0.0, BUILT)


@settings(max_examples=10)
@given(plans(), LEVELS)
def test_placebo_changes_nothing(plan, level):
    same_visits(plan, Arm.PLACEBO, level, 0.0, BUILT)
