"""The comparison of two profiles for people and, as JSON, for programs."""

from __future__ import annotations

import json
from typing import Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from causal.analysis.comparison import Change, Comparison, PointComparison
from causal.analysis.results import Gain, RegionResult
from causal.report.json import plain_values
from causal.report.symbols import elide_middle, printable
from causal.report.table import rate_text

COMPARISON_VERSION = 1
_MOST_REGIONS = 12
_ROOMY = 76
_STYLE = {Change.FASTER: "bold green", Change.SLOWER: "bold red", Change.SAME: "", Change.UNKNOWN: "yellow"}


class ComparisonReporter:
    """Renders to a rich Console, whose width, encoding and colours it respects."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii = console.options.ascii_only

    def render(self, comparison: Comparison) -> None:
        """Writes what happened per progress point, the regions that changed, and what to do next."""
        for point in comparison.points:
            self._point(point)
        best = next((r for r in comparison.after.regions if r.fit is not None and r.fit.at(0.25).ci[0] > 0), None)
        if best is not None:
            self._print(Text(f"Next: {self._name(best.region)}: {self._name(best.explanation)}"))
        for note in comparison.notes:
            self._print(Text(f"note: {self._name(note)}"))

    def _point(self, point: PointComparison) -> None:
        rates = " -> ".join("?" if r is None else rate_text(r) for r in (point.rate_before, point.rate_after))
        self._print(Text(f"Progress point {self._name(point.point)}: {rates} visits/s", style="bold"))
        self._print(self._observed(point))
        if point.changed:
            self._print(Padding(self._regions(point), (0, 0, 0, 2)))
        self._print(Text(f"  {self._agreement(point)}\n"))

    def _observed(self, point: PointComparison) -> Text:
        if point.observed is None:
            return Text("  observed: unknown, too few windows with visits", style="yellow")
        text = Text("  observed: ")
        label = {Change.FASTER: "faster", Change.SLOWER: "SLOWER", Change.SAME: "no change beyond the tolerance"}
        text.append(label[point.change], _STYLE[point.change])
        if point.observed.gain < 0:
            low, high = point.observed.ci
            more = self._gain(Gain(-point.observed.gain, (-high, -low)))
            return text.append(f", {more} % more time per visit")
        return text.append(f", {self._gain(point.observed)} % of the time per visit saved")

    def _regions(self, point: PointComparison) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("region", no_wrap=True)
        # The times come first to go where there is little room.
        costs = ("CPU/visit before", "after") if self._console.width >= _ROOMY else ()
        for name in (*costs, "faster by", "predicted"):
            table.add_column(name, justify="right")
        room = max(8, self._console.width - (62 if costs else 30))
        for item in point.changed[:_MOST_REGIONS]:
            predicted = "~" if item.predicted is None else self._gain(item.predicted)
            table.add_row(
                Text(elide_middle(self._name(item.region), room, ".." if self._ascii else "\N{HORIZONTAL ELLIPSIS}")),
                *([_time(item.cost_before_ns), _time(item.cost_after_ns)] if costs else []),
                Text(f"{item.speedup.gain * 100:.0f}%"),
                Text(predicted + ("*" if item.extrapolated else "")),
            )
        return table

    def _agreement(self, point: PointComparison) -> str:
        extrapolated = " (*: outside of what was tried)" if any(item.extrapolated for item in point.changed) else ""
        if not point.changed:
            return "no region changed its CPU time per visit by more than its samples can tell"
        if point.predicted is None:
            return "the profile before has no number (~) for what changed: nothing was predicted"
        together = f"predicted: {self._gain(point.predicted)} %{extrapolated}"
        if point.agrees is None:
            return together
        return f"{together}: {'they agree' if point.agrees else 'they do not agree'}"

    def _gain(self, gain: Gain) -> str:
        return f"{gain.gain * 100:.1f}{'+-' if self._ascii else chr(0xB1)}{gain.margin * 100:.1f}"

    def _name(self, name: str) -> str:
        return printable(name, self._console.encoding)

    def _print(self, renderable: Text | Padding) -> None:
        self._console.print(renderable, markup=False, highlight=False, emoji=False)


def _time(time_ns: float) -> Text:
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= scale:
            return Text(f"{time_ns / scale:.3g} {unit}")
    return Text(f"{time_ns:.0f} ns")


def write_json(comparison: Comparison, out: TextIO) -> None:
    """Writes the comparison as one JSON object; gains and speedups are fractions, costs ns, null is not known."""
    value = {
        "version": COMPARISON_VERSION,
        "before": comparison.before.path,
        "after": comparison.after.path,
        "points": [_point_object(point) for point in comparison.points],
        "regressed": list(comparison.regressed),
        "next": [_next_object(result) for result in comparison.after.regions if result.fit is not None],
        "notes": list(comparison.notes),
    }
    json.dump(plain_values(value), out, indent=2, allow_nan=False)
    out.write("\n")


def _point_object(point: PointComparison) -> dict[str, Any]:
    return {
        "progress_point": point.point,
        "rate_before": point.rate_before,
        "rate_after": point.rate_after,
        "change": point.change.value,
        "observed": _gain_object(point.observed),
        "predicted": _gain_object(point.predicted),
        "agrees": point.agrees,
        "regions": [
            {
                "region": item.region,
                "cpu_per_visit_before_ns": item.cost_before_ns,
                "cpu_per_visit_after_ns": item.cost_after_ns,
                "speedup": _gain_object(item.speedup),
                "predicted": _gain_object(item.predicted),
                "extrapolated": item.extrapolated,
            }
            for item in point.changed
        ],
    }


def _gain_object(gain: Gain | None) -> dict[str, Any] | None:
    return None if gain is None else {"value": gain.gain, "ci": list(gain.ci)}


def _next_object(result: RegionResult) -> dict[str, Any]:
    return {
        "region": result.region, "progress_point": result.progress_point, "verdict": result.explanation,
        "slope": result.slope,
    }  # fmt: skip
