"""The report for people: a table that fits the terminal, the verdicts in words, and the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from causal.analysis.results import Analysis, Diagnosis, Gain, RegionResult, Verdict
from causal.report.curve import sparkline
from causal.report.symbols import elide_middle, printable

_LEVELS = (0.25, 0.5, 1.0)
# Names of regions tell more than a third number where there is little room.
_FEW_LEVELS, _ROOMY = (0.25, 1.0), 100
# Below the first width only the essentials fit; from the second on, the sentence fits into the table.
_NARROW, _WIDE, _WIDEST = 66, 130, 150
_GAIN_CELLS = 10
_CURVE_CELLS = 8
_SHARES = 12
_KIND_CELLS = 8
# Columns that say nothing new take the room of names: waits below this, serial shares nearer to the CPU's than that.
_NOTABLE_WAIT, _NOTABLE_SERIAL = 0.01, 0.05
_SENTENCES = 10
# A function's name beside its line is left out when so little of it would be seen.
_LEAST_FUNCTION = 4
# The smallest gain that fills a curve: without it a table of nothing shows mountains of noise.
_MIN_SCALE = 0.1
_SHORT = {
    Verdict.OPTIMISE: ("optimise", "bold green"),
    Verdict.NO_EFFECT: ("no effect", "dim"),
    Verdict.CONTENTION: ("contention", "bold red"),
    Verdict.PACED: ("paced", "yellow"),
    Verdict.UNDECIDED: ("undecided", "yellow"),
}


class TableReporter:
    """Renders to a rich Console, whose width, encoding and colours it respects. Names are never taken as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii = console.options.ascii_only
        self._width = console.width

    def render(self, analysis: Analysis) -> None:
        """Writes the tables, one per progress point, and the diagnosis."""
        for point in analysis.progress_points:
            results = [result for result in analysis.regions if result.progress_point == point]
            if results:
                self._render_point(point, results)
        if not analysis.regions and (analysis.shares or analysis.places):
            self._render_shares(analysis)
        self._render_diagnosis(analysis.diagnosis, len(analysis.command) > 0)
        if analysis.waits:
            waits = ", ".join(f"{kind} {threads:.2f}" for kind, threads in analysis.waits.items())
            self._line(f"Threads off the CPU, on average: {waits}.", style="dim")

    def _render_point(self, point: str, results: Sequence[RegionResult]) -> None:
        rate = next((result.baseline_rate for result in results if result.baseline_rate is not None), None)
        title = f"Progress point {self._name(point)}"
        if results[0].kind == "latency":
            title = f"Latency {self._name(point)}"
            self._line(title if rate is None else f"{title}: {duration_text(rate)}", style="bold")
        else:
            self._line(title if rate is None else f"{title}: {rate_text(rate)} visits/s", style="bold")
        gains = [p.program_speedup for r in results for p in r.points if p.program_speedup is not None]
        scale = max([_MIN_SCALE, *gains])
        if self._width < _NARROW:
            self._print(self._narrow_table(results))
        else:
            self._print(self._full_table(results, scale))
        if self._width < _WIDE:
            self._sentences(results)
        self._line("")

    def _render_shares(self, analysis: Analysis) -> None:
        """What is known without experiments."""
        for point, rate in analysis.rates.items():
            self._line(f"Progress point {self._name(point)}: {rate_text(rate)} visits/s", style="bold")
        serial = analysis.serial_shares
        totals = {place: sum(kinds.values()) for place, kinds in analysis.places.items()}
        waiting = [region for region, spent in totals.items() if region and spent >= _NOTABLE_WAIT]
        shown = list(dict.fromkeys([*list(analysis.shares)[:_SHARES], *waiting[:_SHARES]]))
        columns = {"CPU": [_share(analysis.shares.get(region)) for region in shown]}
        if any(abs(serial.get(region, share) - share) >= _NOTABLE_SERIAL for region, share in analysis.shares.items()):
            columns["serial"] = [_share(serial.get(region)) for region in shown]
        if waiting:
            columns["waits"] = [_share(totals[region]) if region in waiting else "" for region in shown]
            columns["for"] = [_longest(analysis.places[region]) if region in waiting else "" for region in shown]
        self._print(self._named_columns(shown, columns))
        self._line("")

    def _named_columns(self, regions: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
        """Regions with what is known about them; the names give way to the rest."""
        table = _new_table()
        table.add_column("region", no_wrap=True)
        room = self._width
        for head in columns:
            width = _KIND_CELLS if head == "for" else max(len(head), 5)
            table.add_column(head, justify="left" if head == "for" else "right", no_wrap=True, width=width)
            room -= width + 2
        dots = ".." if self._ascii else "\N{HORIZONTAL ELLIPSIS}"
        for row, region in enumerate(regions):
            name = elide_middle(self._name(region), max(room, 6), dots)
            table.add_row(Text(name), *(Text(cells[row]) for cells in columns.values()))
        return table

    def _narrow_table(self, results: Sequence[RegionResult]) -> Table:
        table = _new_table()
        verdict_cells = max(len(_SHORT[result.verdict][0]) for result in results)
        rest = self._width - verdict_cells - _GAIN_CELLS - 4
        table.add_column("region", no_wrap=True)
        table.add_column("best", justify="right", no_wrap=True, width=_GAIN_CELLS)
        table.add_column("verdict", no_wrap=True)
        for result in results:
            best = None if result.fit is None else self._gain_at(result, result.fit.max_level)
            table.add_row(self._region(result, max(rest, 6)), self._gain(best), _verdict(result))
        return table

    def _full_table(self, results: Sequence[RegionResult], scale: float) -> Table:
        table = _new_table()
        wide = self._width >= _WIDE
        verdict_cells = 11 if not wide else self._width // 2 - 10
        levels = _LEVELS if self._width >= _ROOMY else _FEW_LEVELS
        shares = {"CPU": [result.cpu_share for result in results]}
        if any((result.off_cpu_share or 0.0) >= _NOTABLE_WAIT for result in results):
            shares["waits"] = [result.off_cpu_share for result in results]
        if any(_tells_more(result) for result in results):
            shares["serial"] = [result.serial_share for result in results]
        counted = self._width >= _WIDEST
        fixed = 6 * len(shares) + 7 * counted + len(levels) * _GAIN_CELLS + _CURVE_CELLS + verdict_cells
        rest = self._width - fixed - 2 * (2 + len(shares) + counted + len(levels))
        table.add_column("region", no_wrap=True)
        for name in shares:
            table.add_column(name, justify="right", no_wrap=True, width=6)
        if counted:
            table.add_column("pairs", justify="right", no_wrap=True, width=7)
        for level in levels:
            table.add_column(f"at {level * 100:.0f}%", justify="right", no_wrap=True, width=_GAIN_CELLS)
        table.add_column("curve", no_wrap=True, width=_CURVE_CELLS)
        table.add_column("verdict", no_wrap=not wide, overflow="fold")
        for row, result in enumerate(results):
            known = [_share(values[row]) for values in shares.values()]
            pairs = [f"{result.pairs:,}"] if counted else []
            gains = [self._gain(self._gain_at(result, level)) for level in levels]
            curve = Text(sparkline(result.points, scale, _CURVE_CELLS, self._ascii))
            verdict = Text(self._name(result.explanation), _SHORT[result.verdict][1]) if wide else _verdict(result)
            table.add_row(self._region(result, max(rest, 6)), *known, *pairs, *gains, curve, verdict)
        return table

    def _gain_at(self, result: RegionResult, level: float) -> Gain | None:
        # From the curve where it has levels enough to be shown (one level alone may have been tried twice only), else
        # as measured; never beyond what was tried.
        if result.fit is None or level > result.fit.max_level:
            return None
        curve = result.fit.at(level) if result.fit.is_evidence else None
        if result.slope is not None:
            return curve
        for point in result.points:
            if abs(point.speedup - level) < 1e-6 and point.program_speedup is not None and point.ci is not None:
                return Gain(point.program_speedup, point.ci)
        return curve

    def _gain(self, gain: Gain | None) -> Text:
        if gain is None:
            return Text("~", style="dim")
        half = gain.margin * 100
        points = gain.gain * 100
        digits = 0 if abs(points) >= 99.5 or half >= 9.5 else 1
        sign = "+-" if self._ascii else "\N{PLUS-MINUS SIGN}"
        text = Text(f"{points:.{digits}f}{sign}{half:.{digits}f}")
        if gain.ci[0] <= 0 <= gain.ci[1]:
            text.stylize("dim")
        return text

    def _region(self, result: RegionResult, width: int) -> Text:
        mark = ".." if self._ascii else "\N{HORIZONTAL ELLIPSIS}"
        name = self._name(result.region)
        room = width - cell_len(name) - 1
        if not result.function or room < _LEAST_FUNCTION:
            return Text(elide_middle(name, width, mark))
        return Text.assemble(name, " ", (elide_middle(self._name(result.function), room, mark), "dim"))

    def _sentences(self, results: Sequence[RegionResult]) -> None:
        notable = [result for result in results if result.verdict is not Verdict.NO_EFFECT]
        for result in notable[:_SENTENCES]:
            name = elide_middle(self._name(result.region), 60, ".." if self._ascii else "\N{HORIZONTAL ELLIPSIS}")
            text = Text.assemble((name, "bold"), f": {self._name(result.explanation)}")
            self._print(Padding(text, (0, 0, 0, 2), expand=False))

    def _render_diagnosis(self, diagnosis: Diagnosis, known_command: bool) -> None:
        parts = [_plural(diagnosis.experiments, "experiment"), f"{_plural(diagnosis.regions_tried, 'region')} tried"]
        if diagnosis.samples is not None:
            in_scope = f" ({diagnosis.samples_in_scope:,} in scope)" if diagnosis.samples_in_scope is not None else ""
            parts.append(f"{diagnosis.samples:,} samples{in_scope}")
        if diagnosis.coverage is not None:
            parts.append(f"{diagnosis.coverage * 100:.0f}% of them in regions tried")
        for point, count in diagnosis.visits.items():
            parts.append(f"{count:,} visits of {self._name(point)}")
        self._line("; ".join(parts) + ".")
        if diagnosis.stacks is not None:
            self._line(f"Stacks: {diagnosis.stacks}.", style="dim")
        losses = self._losses(diagnosis)
        if losses:
            self._line(losses, style="dim")
        if diagnosis.conclusion is not None:
            self._print(Text.assemble(("Nothing to conclude: ", "bold yellow"), self._name(diagnosis.conclusion)))
        for message in diagnosis.messages:
            self._line(f"note: {self._name(message)}")

    def _losses(self, diagnosis: Diagnosis) -> str:
        parts = []
        if diagnosis.stacks_truncated is not None:
            parts.append(f"{diagnosis.stacks_truncated:,} stacks cut off")
        if diagnosis.signals_lost is not None:
            parts.append(f"{diagnosis.signals_lost:,} signals lost")
        if diagnosis.pause_error_p99_ns is not None:
            parts.append(f"pauses exact to {diagnosis.pause_error_p99_ns / 1e6:.2f} ms (99%)")
        return f"Losses: {', '.join(parts)}." if parts else ""

    def _name(self, name: str) -> str:
        return printable(name, self._console.encoding)

    def _line(self, text: str, style: str = "") -> None:
        self._print(Text(text, style=style))

    def _print(self, renderable: Text | Table | Padding) -> None:
        self._console.print(renderable, markup=False, highlight=False, emoji=False)


def _new_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True)


def _verdict(result: RegionResult) -> Text:
    text, style = _SHORT[result.verdict]
    return Text(text, style=style)


def _tells_more(result: RegionResult) -> bool:
    if result.serial_share is None:
        return False
    return result.cpu_share is None or abs(result.serial_share - result.cpu_share) >= _NOTABLE_SERIAL


def _longest(kinds: Mapping[str, float]) -> str:
    return max(kinds, key=lambda each: kinds[each], default="")


def _share(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f}%"


def rate_text(rate: float) -> str:
    """Visits per second with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def duration_text(seconds: float) -> str:
    """A time with three digits, in the unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
