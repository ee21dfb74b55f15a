"""The drawings of the web page: a region's curve with every experiment, and the run on its time axis. Plain SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from causal.analysis.experiments import Experiment, Moment
from causal.analysis.results import RegionResult
from causal.report.symbols import printable

T = TypeVar("T")

# Drawing units; the page scales them.
_WIDTH, _HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 30
_MIN_SCALE = 0.1
# An interval that reaches further says nothing; drawn in full it would flatten everything else.
_FARTHEST = 1.2
# Dots per curve and marks per timeline beyond which the page would only get slower: evenly thinned, and said so.
MOST_DOTS, MOST_MARKS = 5000, 6000
_BAND_STEPS = 24
_LANES = 14
_LANE_HEIGHT = 15
_RATE_HEIGHT = 120
_TIMELINE_WIDTH = 960
_TIMELINE_LEFT = 170


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def inside(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))


def curve_svg(result: RegionResult, experiments: Sequence[Experiment]) -> str:
    """The gain of the program against the virtual speedup of the region: dots, intervals, and the fitted curve."""
    x = _Scale(0.0, 1.0, _LEFT, _WIDTH - _RIGHT)
    y = _gain_scale(result, experiments)
    parts = [
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_curve_label(result)}">',
        _axes(x, y),
    ]
    if result.fit is not None:
        parts.append(_fit(result, x, y))
    parts.append(_dots(experiments, x, y))
    parts += [_error_bar(point.speedup, point.program_speedup, point.ci, x, y) for point in result.points]
    parts.append("</svg>")
    return "".join(parts)


def _curve_label(result: RegionResult) -> str:
    measured = [point for point in result.points if point.program_speedup is not None and point.speedup > 0]
    levels = "; ".join(f"{p.speedup * 100:.0f}%: {(p.program_speedup or 0) * 100:+.1f}%" for p in measured)
    return escape(f"gain of the program by virtual speedup of {_shown(result.region)}: {levels or 'no numbers'}")


def _gain_scale(result: RegionResult, experiments: Sequence[Experiment]) -> _Scale:
    seen = [0.0, _MIN_SCALE]
    for point in result.points:
        if point.program_speedup is not None and point.ci is not None:
            seen += [point.program_speedup, max(point.ci[0], -_FARTHEST), min(point.ci[1], _FARTHEST)]
    gains = sorted(experiment.gain for experiment in experiments)
    if gains:
        # All but the wildest tenth of the dots; those are drawn at the edge.
        seen += [max(gains[len(gains) // 20], -_FARTHEST), min(gains[-1 - len(gains) // 20], _FARTHEST)]
    room = 0.06 * (max(seen) - min(seen))
    return _Scale(min(seen) - room, max(seen) + room, _HEIGHT - _BOTTOM, _TOP)


def _axes(x: _Scale, y: _Scale) -> str:
    parts = []
    for value in _ticks(y.low, y.high):
        kind = "zero" if abs(value) < 1e-9 else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value * 100:.0f}%</text>')
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "middle" if level < 1.0 else "end"
        parts.append(f'<text x="{x(level):.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}">{level * 100:.0f}%</text>')
    return "".join(parts)


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _fit(result: RegionResult, x: _Scale, y: _Scale) -> str:
    fit = result.fit
    assert fit is not None
    levels = [fit.max_level * step / _BAND_STEPS for step in range(_BAND_STEPS + 1)]
    gains = [fit.at(level) for level in levels]
    top = [f"{x(s):.1f} {y.inside(gain.ci[1]):.1f}" for s, gain in zip(levels, gains, strict=True)]
    bottom = [f"{x(s):.1f} {y.inside(gain.ci[0]):.1f}" for s, gain in zip(levels, gains, strict=True)]
    line = [f"{x(s):.1f} {y.inside(gain.gain):.1f}" for s, gain in zip(levels, gains, strict=True)]
    area = "L".join(top + bottom[::-1])
    return f'<path class="band" d="M{area}Z"/><path class="fit" d="M{"L".join(line)}"/>'


def _dots(experiments: Sequence[Experiment], x: _Scale, y: _Scale) -> str:
    # One path for all: a zero-length stroke with round ends is a dot, in a tenth of the text of a circle.
    marks = []
    for number, experiment in enumerate(thinned(experiments, MOST_DOTS)):
        # Beside the interval and beside each other; the shift is small beside the distance of levels.
        shift = (4.0 + 6.0 * ((number * 0.618034) % 1.0)) * (1 if number % 2 else -1)
        marks.append(f"M{x(experiment.speedup) + shift:.1f} {y.inside(experiment.gain):.1f}h0")
    return f'<path class="dots" d="{"".join(marks)}"/>' if marks else ""


def _error_bar(level: float, gain: float | None, ci: tuple[float, float] | None, x: _Scale, y: _Scale) -> str:
    if gain is None or ci is None or level <= 0:
        return ""
    at, low, high = x(level), y.inside(ci[0]), y.inside(ci[1])
    note = f"{level * 100:.0f}% faster: {gain * 100:+.1f}% ({ci[0] * 100:+.1f}% to {ci[1] * 100:+.1f}%)"
    return (
        f'<g class="level"><path d="M{at:.1f} {low:.1f}V{high:.1f}'
        f'M{at - 4:.1f} {low:.1f}h8M{at - 4:.1f} {high:.1f}h8"/>'
        f'<circle cx="{at:.1f}" cy="{y.inside(gain):.1f}" r="4"/><title>{note}</title></g>'
    )


def timeline_svg(moments: Sequence[Moment], points: Sequence[str]) -> str:
    """The run from left to right: the rate of each point in every window, and which region was tried when."""
    if not moments:
        return ""
    end_s = max(moment.start_s + moment.wall_s for moment in moments)
    x = _Scale(0.0, max(end_s, 1e-3), _TIMELINE_LEFT, _TIMELINE_WIDTH - 10)
    lanes = _lanes(moments)
    height = len(points) * (_RATE_HEIGHT + 24) + (len(lanes) + 1) * _LANE_HEIGHT + 36
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_TIMELINE_WIDTH} {height}" role="img" '
        f'aria-label="experiments and progress rate over {end_s:.0f} seconds">'
    ]
    top = 0.0
    for point in points:
        parts.append(_rates(moments, point, x, top))
        top += _RATE_HEIGHT + 24
    by_region: dict[str, list[Moment]] = {}
    for moment in moments:
        by_region.setdefault(moment.region, []).append(moment)
    for row, (label, names) in enumerate(lanes):
        own = [moment for name in names for moment in by_region.get(name, [])]
        own.sort(key=lambda moment: moment.start_s)
        parts.append(_lane(own, label, x, top + row * _LANE_HEIGHT))
    bottom = top + len(lanes) * _LANE_HEIGHT + 16
    for value in _ticks(0.0, end_s, 8):
        parts.append(f'<text x="{x(value):.1f}" y="{bottom:.1f}" text-anchor="middle">{value:g} s</text>')
    parts.append("</svg>")
    return "".join(parts)


def _lanes(moments: Sequence[Moment]) -> list[tuple[str, frozenset[str]]]:
    # The regions tried most often have a lane each, all others share one.
    count = Counter(moment.region for moment in moments if moment.arm != "plain")
    names = [name for name, _ in count.most_common()]
    lanes = [(name, frozenset([name])) for name in names[:_LANES]]
    if len(names) > _LANES:
        lanes.append((f"{len(names) - _LANES} more", frozenset(names[_LANES:])))
    return lanes


def _rates(moments: Sequence[Moment], point: str, x: _Scale, top: float) -> str:
    rates = [moment.rates[point] for moment in moments if moment.void is None and point in moment.rates]
    if not rates:
        return ""
    # One window of a few milliseconds must not decide the scale of all.
    high = sorted(rates)[-1 - len(rates) // 50] * 1.1 or 1.0
    y = _Scale(0.0, high, top + _RATE_HEIGHT, top + 14)
    parts = [f'<text class="name" x="0" y="{top + 10:.1f}">{escape(_short(point, 60))}, visits/s</text>']
    for value in _ticks(0.0, high, 4):
        parts.append(f'<path class="grid" d="M{_TIMELINE_LEFT} {y(value):.1f}H{_TIMELINE_WIDTH - 10}"/>')
        parts.append(f'<text x="{_TIMELINE_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.6g}</text>')
    for arm in ("plain", "placebo", "dilation", "treated"):
        own = [moment for moment in moments if moment.arm == arm and moment.void is None and point in moment.rates]

        def mark(moment: Moment) -> str:
            middle = x(moment.start_s + moment.wall_s / 2)
            return f"M{middle:.1f} {y.inside(moment.rates[point]):.1f}h0"

        parts.append(_marks(own, f"rate {arm}", mark))
    return "".join(parts)


def _lane(moments: Sequence[Moment], label: str, x: _Scale, top: float) -> str:
    base = top + _LANE_HEIGHT - 2
    parts = [f'<text class="name" x="0" y="{base - 1:.1f}">{escape(_short(label, 25))}</text>']
    parts.append(f'<path class="grid" d="M{_TIMELINE_LEFT} {base:.1f}H{_TIMELINE_WIDTH - 10}"/>')
    for arm in ("placebo", "dilation", "treated"):
        own = [moment for moment in moments if moment.arm == arm and moment.void is None]

        def mark(moment: Moment) -> str:
            # The taller, the more it was sped up.
            start, width = x(moment.start_s), max(0.6, x(moment.start_s + moment.wall_s) - x(moment.start_s))
            tall = 3.0 + (_LANE_HEIGHT - 6) * moment.speedup
            return f"M{start:.1f} {base:.1f}h{width:.1f}v{-tall:.1f}h{-width:.1f}z"

        parts.append(_marks(own, f"bar {arm}", mark))
    return "".join(parts)


def _marks(moments: Sequence[Moment], kind: str, draw: Callable[[Moment], str]) -> str:
    path = "".join(draw(moment) for moment in thinned(moments, MOST_MARKS))
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of the items, evenly spread; all where there are few enough."""
    if len(items) <= most:
        return items
    return [items[number * len(items) // most] for number in range(most)]


def _shown(name: str) -> str:
    return printable(name, "utf-8")


def _short(name: str, length: int) -> str:
    shown = _shown(name)
    return shown if len(shown) <= length else shown[: length // 2] + "\N{HORIZONTAL ELLIPSIS}" + shown[-length // 2 :]
