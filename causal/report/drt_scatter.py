"""The scatter plot of an explanation: traces as points in the colour of their class, and the lines, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from causal.drt.model import Explanation
from causal.drt.traces import Floats, Ints

# Readable on light and dark ground, and for people who do not see red and green apart (after Okabe and Ito).
COLOURS = ("#009e73", "#e69f00", "#d55e00", "#cc79a7", "#0072b2", "#56b4e9", "#8c8c00", "#a05a2c")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 860, 420, 80, 48, 12
# More points than that cannot be seen, and make the page heavy.
_MOST_POINTS = 4000
_LINE_STEPS = 60


def scatter_svg(explanation: Explanation) -> str:
    """An <svg> of output against the first input; outliers are hollow."""
    traces, clustering = explanation.traces, explanation.clustering
    x, y = traces.inputs[:, 0], traces.output
    x_ticks, y_ticks = _ticks(float(x.max())), _ticks(float(y.max()))
    frame = _Frame(max(x_ticks[-1], float(x.max())), max(y_ticks[-1], float(y.max())))
    parts = [_axes(frame, x_ticks, y_ticks, traces.input_names[0], traces.output_name)]
    for index in _sample(clustering.labels):
        parts.append(_point(frame, float(x[index]), float(y[index]), int(clustering.labels[index]), traces.ids[index]))
    parts += [_line(frame, explanation, k) for k in range(clustering.k)]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="Traces and the lines of their classes">{"".join(parts)}</svg>'
    )


class _Frame:
    """Turns values into places."""

    def __init__(self, x_most: float, y_most: float) -> None:
        self.x_most, self.y_most = x_most, y_most

    def x(self, value: float) -> float:
        return _LEFT + value / self.x_most * (_WIDTH - _LEFT - _EDGE)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.y_most * (_HEIGHT - _BOTTOM - _EDGE)


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    rough = most / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(float(power * each) for each in (1, 2, 5, 10) if power * each >= rough)
    return [step * i for i in range(int(np.ceil(most / step - 1e-9)) + 1)]


def _axes(frame: _Frame, x_ticks: Sequence[float], y_ticks: Sequence[float], x_name: str, y_name: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for tick in x_ticks:
        at = frame.x(tick)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{_EDGE}" y2="{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:,.6g}</text>')
    for tick in y_ticks:
        at = frame.y(tick)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:,.6g}</text>')
    middle_x, middle_y = (_LEFT + _WIDTH) / 2, bottom / 2
    parts.append(f'<text x="{middle_x}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text x="14" y="{middle_y}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle_y})">{escape(y_name)}</text>'
    )
    return "".join(parts)


def _sample(labels: Ints) -> Ints:
    """All traces, or so many of them, spread evenly, and every outlier."""
    if len(labels) <= _MOST_POINTS:
        return np.arange(len(labels))
    even = np.linspace(0, len(labels) - 1, _MOST_POINTS).astype(np.int64)
    return np.union1d(even, np.flatnonzero(labels < 0))


def _point(frame: _Frame, x: float, y: float, label: int, ident: str) -> str:
    colour = COLOURS[label % len(COLOURS)] if label >= 0 else "none"
    outline = ' stroke="currentColor"' if label < 0 else ' fill-opacity="0.55"'
    kind = f"class {label}" if label >= 0 else "outlier"
    return (
        f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{colour}"{outline}>'
        f"<title>{escape(ident)}: {x:g}, {y:g} ({kind})</title></circle>"
    )


def _line(frame: _Frame, explanation: Explanation, number: int) -> str:
    """The cost of a class, with all other inputs at their means."""
    clustering, inputs = explanation.clustering, explanation.traces.inputs
    x = np.linspace(float(inputs[:, 0].min()), float(inputs[:, 0].max()), _LINE_STEPS)
    others: Floats = np.broadcast_to(inputs.mean(axis=0), (len(x), inputs.shape[1])).copy()
    others[:, 0] = x
    line = clustering.lines[number]
    y = line[0] + clustering.shape.transform(others) @ line[1:]
    inside = (y >= 0) & (y <= frame.y_most)
    places = zip(x[inside].tolist(), y[inside].tolist(), strict=True)
    points = " ".join(f"{frame.x(a):.1f},{frame.y(b):.1f}" for a, b in places)
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2">'
        f"<title>class {number}</title></polyline>"
    )
