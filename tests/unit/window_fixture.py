"""Readings of windows for tests that care about some of their fields only: the others are 0 or empty."""

import dataclasses

from causal.windows import PointReading, WindowReading


def reading(wall_ns, effective_ns, *, points=(), counters=None, **fields):
    """A WindowReading; half of its effective time is in its first half."""
    values = {
        **{field.name: 0 for field in dataclasses.fields(WindowReading)},
        "wall_ns": wall_ns,
        "effective_ns": effective_ns,
        "delay_ns": wall_ns - effective_ns,
        "half_effective_ns": effective_ns // 2,
        "points": list(points),
        "counters": counters or {},
    }
    return WindowReading(**values | fields)


def point(visits, effective_ns):
    """Visits spread evenly over a window."""
    return PointReading(visits, visits // 2, 0 if visits else None, effective_ns if visits else None)
