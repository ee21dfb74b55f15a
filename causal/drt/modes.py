"""Classes are modes: between the lines of two classes there are clearly fewer traces than along either line.

Times have long tails, and any likelihood of bell-shaped scatter is improved by giving a tail a line of its own. But
from a class into its tail the traces only grow fewer, whereas between two classes there is a valley.
"""

from __future__ import annotations

import numpy as np

from causal.drt.problem import Problem
from causal.drt.traces import Floats, Ints

# The difference of two counts, in its standard deviations. Both ends must exceed the middle by it, which three Poisson
# counts of equal means do in 2 % of the cases (in 6 % with 1.0, in 0.4 % with 2.0), and a tail, whose far end is its
# lower one, more rarely. Smaller values let tails of a hundred traces pass, larger ones miss classes of ten traces.
_CLEARLY = 1.5


def all_distinct(problem: Problem, lines: Floats, sigma: Floats, labels: Ints) -> bool:
    """Whether there is a valley between any two of the lines (K, Q); `labels` (N,) are negative for no class."""
    members = [np.flatnonzero(labels == k) for k in range(len(lines))]
    for a in range(len(lines)):
        for b in range(a):
            rows = np.concatenate([members[a], members[b]])
            if not has_valley_between(problem.design[rows], problem.target[rows], lines[[a, b]], sigma[[a, b]]):
                return False
    return True


def has_valley_between(design: Floats, target: Floats, lines: Floats, sigma: Floats) -> bool:
    """Whether there is a valley between two lines (2, Q) with scatters (2,), over the traces of both."""
    gap = design @ (lines[1] - lines[0])
    # Where the lines meet nobody can tell.
    apart = np.abs(gap) > sigma.sum()
    return has_valley((target - design @ lines[0])[apart] / gap[apart])


def has_valley(place: Floats) -> bool:
    """Whether places, 0 being at one line and 1 at the other, are clearly rarer around the middle than at both."""
    ends = [int((np.abs(place - end) < 0.25).sum()) for end in (0.0, 1.0)]
    middle = int((np.abs(place - 0.5) < 0.25).sum())
    smaller = min(ends)
    return bool(smaller - middle > _CLEARLY * np.sqrt(smaller + middle))
