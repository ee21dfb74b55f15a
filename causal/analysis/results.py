"""What an analysis finds: plain values, in fractions and seconds, that every report is rendered from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from causal.analysis.stacks import Stacks

Interval = tuple[float, float]

# Half of all the gains there can be, 0 to 100 %: a longer interval is no number.
_LONGEST = 0.5
# A curve must be known better, but never to less than 25 points.
_CLOSE_ENOUGH = 0.25


class Verdict(Enum):
    """What to do about a region, in as few words as fit a table column."""

    OPTIMISE = "worth optimising"
    NO_EFFECT = "no effect"
    CONTENTION = "contention"
    PACED = "paced from outside"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PointResult:
    """The effect of one virtual speedup. `raw` is the gain as measured, without corrections and never withheld;
    `program_speedup` and `ci` are None where there is no trustworthy number. `visits` counts both arms."""

    speedup: float
    program_speedup: float | None
    ci: Interval | None
    raw: float | None
    experiments: int
    visits: int


@dataclass(frozen=True, slots=True)
class Gain:
    """An estimated gain of the program (fraction of time per visit saved) with its 95 % interval."""

    gain: float
    ci: Interval

    @property
    def margin(self) -> float:
        """The longer arm of the interval: what may honestly follow a plus-minus sign."""
        return max(self.gain - self.ci[0], self.ci[1] - self.gain)

    @property
    def noise(self) -> float:
        """The half-width that the interval would have about no gain; infinite where nothing is known.

        Whether a number is shown must depend on the noise and not on the number: else those shown would be the lucky
        ones, and their intervals too short.
        """
        low, high = self.ci
        return math.sqrt((1.0 - low) / (1.0 - high)) - 1.0 if high < 1.0 else math.inf

    @property
    def is_evidence(self) -> bool:
        """Whether the interval is short enough to be a number at all."""
        return self.noise <= _LONGEST


@dataclass(frozen=True, slots=True)
class Curve:
    """A candidate gain(s) = slope * min(s, knee) with the half-width of the slope's interval; a line has knee 1."""

    knee: float
    slope: float
    half_width: float


@dataclass(frozen=True, slots=True)
class CurveFit:
    """The curve gain(s) = slope * min(s, knee) through the origin; `knee` is None for a straight line.

    `max_level` is the largest virtual speedup that was tried: beyond it the curve is a guess. `plausible` are all the
    curves that the data do not rule out, the chosen one among them: intervals of gains cover them all.
    """

    slope: float
    ci: Interval
    p_value: float
    knee: float | None
    max_level: float
    plausible: tuple[Curve, ...]

    @property
    def is_evidence(self) -> bool:
        """Whether the curve says more than is known without an experiment.

        What makes a part s faster makes all of it at most s faster: s/2 give or take s/2 is known beforehand.
        """
        return self.at(self.max_level).noise <= max(_CLOSE_ENOUGH, self.max_level / 2)

    def at(self, speedup: float) -> Gain:
        """The fitted gain at a virtual speedup, with its interval."""
        low = min((curve.slope - curve.half_width) * min(speedup, curve.knee) for curve in self.plausible)
        high = max((curve.slope + curve.half_width) * min(speedup, curve.knee) for curve in self.plausible)
        return Gain(self.slope * min(speedup, 1.0 if self.knee is None else self.knee), (low, high))


@dataclass(frozen=True, slots=True)
class RegionResult:
    """A region at one progress point.

    `slope`, `slope_ci` and `knee` are None below five levels; `fit` is the same curve without that rule, None only
    when nothing could be estimated. `p_value` is adjusted (Benjamini-Hochberg) for all regions tried. `explanation`
    is the verdict as a sentence, `dilation` the false gain of the dilation arm. `source` and `function`: where a line
    is, None for other units. `phase_factor` is what all gains were multiplied by because the region runs in some phases
    only (`causal.analysis.phases`). Of `kind` "latency", `baseline_rate` is the mean latency in seconds, and a
    gain is the part of it that is saved.
    """

    region: str
    unit: str
    progress_point: str
    baseline_rate: float | None
    cpu_share: float | None
    points: tuple[PointResult, ...]
    verdict: Verdict
    explanation: str
    slope: float | None = None
    slope_ci: Interval | None = None
    knee: float | None = None
    p_value: float | None = None
    kind: str = "throughput"
    unit_of_point: str = "visits/s"
    off_cpu_share: float | None = None
    serial_share: float | None = None
    phase_factor: float = 1.0
    fit: CurveFit | None = None
    dilation: Gain | None = None
    pairs: int = 0
    source: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What profiling cost. `startup_s` in seconds; `sampling`: share of the throughput lost to signals, and where the
    target was left alone at the end (`undisturbed`, visits/s of the point visited most) to samples and hooks as well;
    `delays`: share of the measured time spent in inserted pauses. None where unknown."""

    startup_s: float | None = None
    sampling: float | None = None
    delays: float | None = None
    undisturbed: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How far the results can be trusted. Counts are of the whole run; `coverage` is the share of the in-scope samples
    that lie in regions tried. `conclusion` is set when nothing can be concluded: the likely cause and what to do."""

    experiments: int
    regions_tried: int
    samples: int | None
    samples_in_scope: int | None
    coverage: float | None
    visits: dict[str, int]
    stacks_truncated: int | None = None
    signals_lost: int | None = None
    pause_error_p99_ns: int | None = None
    conclusion: str | None = None
    messages: tuple[str, ...] = ()
    stacks: Stacks | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything there is to report about a profile; `regions` are ranked, the most rewarding first.

    What needs no experiments: `shares` of the CPU samples by region, the largest first, and `serial_shares`, of the
    serial path; visits/s by point in `rates`; how many threads waited on average, by class of wait in `waits`, by
    region and class in `places`.
    """

    path: str
    command: tuple[str, ...]
    progress_points: tuple[str, ...]
    regions: tuple[RegionResult, ...]
    overhead: Overhead
    diagnosis: Diagnosis
    dilation: dict[str, Gain] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    serial_shares: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    places: dict[str, dict[str, float]] = field(default_factory=dict)
