"""From a recorded profile to what it means: gains with intervals, verdicts, and how far to trust them.

Pure functions of the profile: nothing here needs root, the profiled machine, or the program that was profiled.
"""

from __future__ import annotations

from causal.analysis.results import Analysis
from causal.profile import Profile

__all__ = ["Analysis", "analyse"]


def analyse(profile: Profile) -> Analysis:
    """Analyses a whole profile; also of an unfinished run, as often as wanted (milliseconds per region)."""
    # Here and not above: the statistics packages take a second to import, and showing --help must not.
    from causal.analysis.estimate import estimate

    return estimate(profile)
