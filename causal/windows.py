"""What is asked of the engine and what it answers: windows, their readings, and the engine's sizes and thresholds.

Plain values, so that experiments can be planned, run against a fake and tested without a kernel. Times in ns.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Arm(enum.IntEnum):
    """What the clock does in a window; as in bpf/clock.h."""

    OFF = 0
    PLAIN = 1
    PLACEBO = 2
    TREATED = 3
    DILATION = 4


class Attribution(enum.IntEnum):
    """What of a stack decides about its region; as in bpf/sampler.h."""

    INNERMOST = 0
    CALL_SITE = 1  # the innermost frame in scope with the next one above it
    ANY_FRAME = 2


@dataclass(frozen=True)
class EngineOptions:
    """Sizes and thresholds, with defaults for a large program. All times in ns."""

    period_ns: int = 1_000_000
    threshold_ns: int = 50_000
    pause_slack_ns: int = 20_000
    max_pause_ns: int = 200_000_000
    max_threads: int = 16_384
    max_processes: int = 1_024
    max_ranges: int = 1_048_576
    max_range_pages: int = 1_048_576
    max_mappings: int = 65_536
    max_spaces: int = 1_024
    max_points: int = 32
    max_macros: int = 128
    max_latencies: int = 8
    max_stretches: int = 4_096
    max_calls: int = 8_192
    max_waits: int = 65_536
    max_frames: int = 128
    max_unwind_rows: int = 4_194_304
    max_unwind_pages: int = 262_144
    max_unwind_modules: int = 16_384
    max_answers: int = 8_192
    max_sites: int = 65_536
    attribution: Attribution = Attribution.INNERMOST

    @property
    def max_regions(self) -> int:
        """Of code each range may be one; call sites have the numbers behind those."""
        return max(self.max_ranges, 65_536) + self.max_sites + 1


@dataclass(frozen=True)
class WindowPlan:
    """One window to measure. `region` is an id of the region table, `speedup` a fraction, times in ns."""

    arm: Arm
    region: int
    speedup: float
    settle_ns: int
    length_ns: int


@dataclass(frozen=True)
class PointReading:
    """Visits of one progress point in a window; first and last in effective ns since its start.

    Of a latency, `visits` are the requests that ended, `arrivals` those that began, and `in_flight_ns` is the integral
    of the requests in flight over effective time.
    """

    visits: int
    half_visits: int
    first_ns: int | None
    last_ns: int | None
    arrivals: int | None = None
    in_flight_ns: int | None = None

    def pace(self, effective_ns: int) -> float:
        """What a gain raises: visits per effective ns; of a latency, one over its mean. 0 where there is nothing."""
        time_ns = effective_ns if self.in_flight_ns is None else self.in_flight_ns
        return self.visits / time_ns if time_ns > 0 else 0.0


@dataclass(frozen=True)
class WindowReading:
    """What the kernel cut at the edges of one window."""

    start_ns: int
    wall_ns: int
    delay_ns: int
    effective_ns: int
    half_effective_ns: int
    selected_samples: int
    selected_ns: int
    samples: int
    counters: dict[str, int]
    points: list[PointReading]
