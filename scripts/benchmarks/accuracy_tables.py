"""The results of the accuracy benchmark and how they are shown: rows, summaries, text, Markdown."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .cases import Case
from .prediction import Predicted, Prediction
from .truth import Truth

HEADINGS = ("case", "region", "speedup", "predicted", "interval", "true", "error", "covered")
COZ_HEADINGS = ("COZ", "COZ interval", "COZ error")
GROUP_HEADINGS = ("group", "rows", "mean error", "max error", "coverage", "half-width", "no number")
ATTACH_HEADINGS = ("attached", "attached interval", "attached error", "attached covered")
COZ_GROUP_HEADINGS = ("COZ rows", "COZ mean error", "COZ max error")
ATTACH_GROUP_HEADINGS = ("attached rows", "attached mean error", "attached max error", "attached coverage")
UNKNOWN = Predicted(None, None, None)
HOW = (
    "A gain is the reduction of the time per round. The truth is that of the same program run without a profiler and "
    "with less work in the region, half of its runs before the prediction and half after it; ± is half the range of "
    "its repetitions. Intervals are of 95 %; half-width is the median; covered: does the interval hold the truth."
)
ATTACHED = (
    "the same question for as long by `attach` to the program started without us, before or after `run` by chance; the "
    "other columns are those of `run`, and the truth is the same."
)
# What stands above this line in a report was written by hand and is kept.
MARKER = "<!-- written by scripts/bench; what stands above this line is kept -->"


@dataclass(frozen=True)
class Row:
    """One level of one case; fractions. `error` is predicted - true, None where no number was shown."""

    workload: str
    function: str
    speedup: float
    predicted: float | None
    low: float | None
    high: float | None
    true: float
    true_spread: float
    coz: Predicted = UNKNOWN
    attached: Predicted = UNKNOWN

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted - self.true

    @property
    def coz_error(self) -> float | None:
        return None if self.coz.gain is None else self.coz.gain - self.true

    @property
    def attached_error(self) -> float | None:
        return None if self.attached.gain is None else self.attached.gain - self.true

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the truth."""
        return holds(Predicted(self.predicted, self.low, self.high), self.true)

    @property
    def attached_covered(self) -> bool | None:
        return holds(self.attached, self.true)

    @property
    def half_width(self) -> float | None:
        return half_width(Predicted(self.predicted, self.low, self.high))


@dataclass
class Outcome:
    """A case's rows, or the reason why there are none: it failed, or (`skipped`) cannot run here.

    `coz_failure` says why a case has no numbers of COZ, `attach_failure` why it has none by attach.
    """

    case: Case
    rows: list[Row] = field(default_factory=list)
    verdict: str = ""
    experiments: int = 0
    failure: str | None = None
    coz_failure: str | None = None
    attach_failure: str | None = None
    skipped: str | None = None


def half_width(predicted: Predicted) -> float | None:
    """Half the length of an interval."""
    if predicted.low is None or predicted.high is None:
        return None
    return (predicted.high - predicted.low) / 2


def holds(predicted: Predicted, true: float) -> bool | None:
    """Whether an interval holds the truth; None where there is none."""
    if predicted.low is None or predicted.high is None:
        return None
    return predicted.low <= true <= predicted.high


def make_rows(
    case: Case, prediction: Prediction, truth: Mapping[float, Truth], coz: Mapping[float, Predicted] | None = None,
    attached: Mapping[float, Predicted] | None = None,
) -> list[Row]:  # fmt: skip
    """Joins prediction and truth, and where there are any those of COZ and by attach, level by level."""
    rows = []
    for level in case.levels:
        ours, true = prediction.levels.get(level, UNKNOWN), truth[level]
        rows.append(
            Row(case.name, case.function, level, ours.gain, ours.low, ours.high, true.gain, true.spread,
                (coz or {}).get(level, UNKNOWN), (attached or {}).get(level, UNKNOWN))
        )  # fmt: skip
    return rows


def summarise(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Errors and half-width in points, coverage as a fraction, over rows with a number; None where there is none.

    COZ's errors are over the rows where COZ has a number, likewise those by attach.
    """
    errors = [abs(row.error) * 100 for row in rows if row.error is not None]
    covered = [row.covered for row in rows if row.covered is not None]
    widths = [row.half_width * 100 for row in rows if row.half_width is not None]
    coz = [abs(row.coz_error) * 100 for row in rows if row.coz_error is not None]
    attached = [abs(row.attached_error) * 100 for row in rows if row.attached_error is not None]
    held = [row.attached_covered for row in rows if row.attached_covered is not None]
    return {
        "rows": len(rows),
        "without_number": len(rows) - len(errors),
        "mean_error_points": statistics.fmean(errors) if errors else None,
        "max_error_points": max(errors) if errors else None,
        "coverage": sum(covered) / len(covered) if covered else None,
        "median_half_width_points": statistics.median(widths) if widths else None,
        "coz_rows": len(coz),
        "coz_mean_error_points": statistics.fmean(coz) if coz else None,
        "coz_max_error_points": max(coz) if coz else None,
        "attached_rows": len(attached),
        "attached_mean_error_points": statistics.fmean(attached) if attached else None,
        "attached_max_error_points": max(attached) if attached else None,
        "attached_coverage": sum(held) / len(held) if held else None,
    }


def worse_than_coz(outcome: Outcome) -> float | None:
    """By how many points our mean error exceeds COZ's by more than the combined interval; None when it does not.

    Over the levels where both have a number. The combined interval is the root of the summed squared half-widths, of
    the means over the levels.
    """
    both = [row for row in outcome.rows if row.error is not None and row.coz_error is not None]
    if not both:
        return None
    excess = statistics.fmean(abs(row.error or 0.0) - abs(row.coz_error or 0.0) for row in both)
    ours = statistics.fmean(row.half_width or 0.0 for row in both)
    theirs = statistics.fmean(half_width(row.coz) or 0.0 for row in both)
    return 100 * excess if excess > math.hypot(ours, theirs) else None


def points(fraction: float | None, sign: str = "", digits: int = 1) -> str:
    """A fraction in percentage points, or a dash."""
    return "-" if fraction is None else f"{100 * fraction:{sign}.{digits}f}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{points(low)} to {points(high)}"


def _yes(covered: bool | None) -> str:
    return "-" if covered is None else ("yes" if covered else "no")


@dataclass(frozen=True)
class Beside:
    """Whose numbers stand beside those of `run`."""

    coz: bool = False
    attached: bool = False


def cells(row: Row, beside: Beside = Beside()) -> tuple[str, ...]:
    """The columns of HEADINGS for one row, and those of ATTACH_HEADINGS and COZ_HEADINGS that are wanted."""
    ours = (
        row.workload, row.function, f"{100 * row.speedup:.0f}", points(row.predicted), _interval(row.low, row.high),
        f"{points(row.true)} ±{points(row.true_spread)}", points(row.error, "+"), _yes(row.covered),
    )  # fmt: skip
    attached = (
        points(row.attached.gain), _interval(row.attached.low, row.attached.high), points(row.attached_error, "+"),
        _yes(row.attached_covered),
    )  # fmt: skip
    coz = (points(row.coz.gain), _interval(row.coz.low, row.coz.high), points(row.coz_error, "+"))
    return (*ours, *(attached if beside.attached else ()), *(coz if beside.coz else ()))


def case_line(outcome: Outcome) -> str:
    """What is to be said of a case as a whole."""
    name = outcome.case.name
    if outcome.failure is not None:
        return f"{name}: failed: {outcome.failure}"
    if outcome.skipped is not None:
        return f"{name}: skipped: {outcome.skipped}"
    summary = summarise(outcome.rows)
    error = _error("no number shown", summary["mean_error_points"], summary["max_error_points"])
    line = f"{name}: {error}; {outcome.experiments} experiments; verdict: {outcome.verdict or '-'}"
    if summary["attached_rows"]:
        line += f"; attached: {_error('', summary['attached_mean_error_points'], summary['attached_max_error_points'])}"
    elif outcome.attach_failure is not None:
        line += f"; attached: failed: {outcome.attach_failure}"
    if summary["coz_rows"]:
        line += f"; COZ: {_error('', summary['coz_mean_error_points'], summary['coz_max_error_points'])}"
    elif outcome.coz_failure is not None:
        line += f"; COZ: {outcome.coz_failure}"
    excess = worse_than_coz(outcome)
    return line if excess is None else f"{line}; WORSE THAN COZ by {excess:.1f}"


def _error(without: str, mean: float | None, largest: float | None) -> str:
    return without if mean is None else f"mean error {mean:.1f}, max {largest:.1f}"


def summary_line(outcomes: Sequence[Outcome]) -> str:
    """The numbers over all cases."""
    summary = summarise([row for outcome in outcomes for row in outcome.rows])
    failed = sum(outcome.failure is not None for outcome in outcomes)
    if summary["mean_error_points"] is None:
        return f"no predictions; {failed} of {len(outcomes)} cases failed"
    coverage, width = summary["coverage"], summary["median_half_width_points"]
    line = (
        f"mean absolute error {summary['mean_error_points']:.1f} points, max {summary['max_error_points']:.1f}, "
        f"coverage {'-' if coverage is None else f'{100 * coverage:.0f} %'}, "
        f"median half-width {'-' if width is None else f'{width:.1f}'}, "
        f"{summary['without_number']} of {summary['rows']} rows without a number, "
        f"{failed} of {len(outcomes)} cases failed"
    )
    if summary["attached_rows"]:
        line += (
            f"; attached {summary['attached_mean_error_points']:.1f} and {summary['attached_max_error_points']:.1f} "
            f"in {summary['attached_rows']} rows, coverage {points(summary['attached_coverage'], digits=0)} %"
        )
    if summary["coz_rows"]:
        worse = sum(worse_than_coz(outcome) is not None for outcome in outcomes)
        line += (
            f"; COZ {summary['coz_mean_error_points']:.1f} and {summary['coz_max_error_points']:.1f} in "
            f"{summary['coz_rows']} rows, {worse} cases worse than COZ"
        )
    return line


def group_table(outcomes: Sequence[Outcome], beside: Beside = Beside()) -> list[tuple[str, ...]]:
    """Headings, one line per group of cases in the order of first appearance, and one for all."""
    groups: dict[str, list[Row]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.case.group, []).extend(outcome.rows)
    groups["all"] = [row for outcome in outcomes for row in outcome.rows]
    table: list[tuple[str, ...]] = [
        (*GROUP_HEADINGS, *(ATTACH_GROUP_HEADINGS if beside.attached else ()),
         *(COZ_GROUP_HEADINGS if beside.coz else ()))
    ]  # fmt: skip
    return table + [_group_cells(name, summarise(rows), beside) for name, rows in groups.items()]


def _group_cells(name: str, summary: Mapping[str, float | int | None], beside: Beside) -> tuple[str, ...]:
    def number(key: str, factor: float = 1.0, digits: int = 1) -> str:
        value = summary[key]
        return "-" if value is None else f"{factor * value:.{digits}f}"

    ours = (
        name, number("rows", digits=0), number("mean_error_points"), number("max_error_points"),
        number("coverage", 100, 0), number("median_half_width_points"), number("without_number", digits=0),
    )  # fmt: skip
    attached = (
        number("attached_rows", digits=0), number("attached_mean_error_points"), number("attached_max_error_points"),
        number("attached_coverage", 100, 0),
    )  # fmt: skip
    coz = (number("coz_rows", digits=0), number("coz_mean_error_points"), number("coz_max_error_points"))
    return (*ours, *(attached if beside.attached else ()), *(coz if beside.coz else ()))


def _row_table(outcomes: Sequence[Outcome], beside: Beside) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [
        (*HEADINGS, *(ATTACH_HEADINGS if beside.attached else ()), *(COZ_HEADINGS if beside.coz else ()))
    ]
    return table + [cells(row, beside) for outcome in outcomes for row in outcome.rows]


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """A table in columns of text."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table)
    return [line.rstrip() for line in lines]


def markdown_table(table: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown; its first line is the headings."""
    lines = ["| " + " | ".join(line) + " |" for line in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]


def render_text(outcomes: Sequence[Outcome], beside: Beside = Beside()) -> str:
    """Aligned columns, a line per case, the groups."""
    parts = [align(_row_table(outcomes, beside)), list(map(case_line, outcomes)), align(group_table(outcomes, beside))]
    return "\n\n".join("\n".join(lines) for lines in parts)


def render_markdown(
    outcomes: Sequence[Outcome], conditions: str, coz_notes: str | None = None, attached: bool = False
) -> str:
    """The same as the part of a Markdown document that a later run replaces."""
    beside = Beside(coz_notes is not None, attached)
    lines = [f"Measured on {conditions}. All numbers are percent or percentage points.", "", HOW, ""]
    if attached:
        lines += [f"Attached: {ATTACHED}", ""]
    if coz_notes:
        lines += [f"COZ's columns. {coz_notes}", ""]
    lines += [f"**{summary_line(outcomes)}**", "", *markdown_table(group_table(outcomes, beside)), ""]
    lines += ["## Every case", "", *markdown_table(_row_table(outcomes, beside)), ""]
    return "\n".join([*lines, *(f"- {case_line(outcome)}" for outcome in outcomes), ""])


def merge_markdown(existing: str | None, written: str, title: str) -> str:
    """The new measurement below what was written by hand above MARKER in the existing document."""
    above, marker, _ = (existing or "").partition(MARKER)
    return (above if marker else f"# {title}\n\n") + f"{MARKER}\n\n{written}"
