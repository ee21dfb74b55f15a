"""The report as one web page that needs nothing else: no network, light and dark, also on a phone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TextIO

from causal.analysis.experiments import Experiment, single_experiments, timeline
from causal.analysis.results import Analysis, Gain, RegionResult, Verdict
from causal.profile import Profile
from causal.report.html_charts import MOST_DOTS, curve_svg, timeline_svg
from causal.report.source import Excerpt, excerpt
from causal.report.symbols import printable
from causal.report.table import rate_text

_RANKED_AT = 0.25
_SHARES = 50
_NOTABLE_WAIT = 0.01
_DOT = " \N{MIDDLE DOT} "
_CLASS = {
    Verdict.OPTIMISE: "optimise",
    Verdict.NO_EFFECT: "no-effect",
    Verdict.CONTENTION: "contention",
    Verdict.PACED: "paced",
    Verdict.UNDECIDED: "undecided",
}
_ORDERS = (
    ("rank", "most rewarding first"), ("region", "by name"), ("share", "by CPU share"), ("gain", "by gain at 25%"),
    ("best", "by largest gain"), ("experiments", "by experiments"),
)  # fmt: skip
_ARMS = (
    ("accent", "sped up (height: by how much)"), ("plain", "placebo"), ("open", "time stretched, nothing sped up"),
)  # fmt: skip


class HtmlReporter:
    """Writes the page. Names are escaped, and the page forbids itself to load or run anything but its own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def render(self, analysis: Analysis, profile: Profile) -> None:
        """Writes the page for a profile and its analysis."""
        self._out.writelines(_page(analysis, profile))


def _page(analysis: Analysis, profile: Profile) -> Iterator[str]:
    title = f"Causal profile of {' '.join(analysis.command) or analysis.path or 'a program'}"
    script = _asset("page.js")
    # A script in the name of a symbol could not run even if escaping failed.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{_text(title)}</title>\n<style>{_asset('page.css')}</style></head>\n<body>\n"
    yield f"<h1>{_text(title)}</h1>\n<p class='dim'>{_text(_circumstances(profile))}</p>\n"
    yield _conclusion(analysis)
    if analysis.regions or not (analysis.shares or analysis.places):
        yield from _experiments(analysis, profile)
    else:
        yield _shares(analysis)
    yield _timeline(analysis, profile)
    yield _diagnosis(analysis)
    yield f"<script>{script}</script>\n</body></html>\n"


def _experiments(analysis: Analysis, profile: Profile) -> Iterator[str]:
    yield _controls(analysis)
    yield _overview(analysis)
    yield '<h2>Curves</h2>\n<p class="dim">Each dot is one experiment; bars are 95% intervals of all at one speedup; '
    yield "the line is the fitted gain of the program, the band its interval.</p>\n<div class='cards'>\n"
    yield from _cards(analysis, profile)
    yield "</div>\n<p id='none' hidden>Nothing fits the filter.</p>\n"


def _shares(analysis: Analysis) -> str:
    """What is known without experiments."""
    rates = [f"{rate_text(rate)} visits/s of {_text(point)}" for point, rate in analysis.rates.items()]
    totals = {name: sum(kinds.values()) for name, kinds in analysis.places.items() if name}
    waits = {name: spent for name, spent in totals.items() if spent >= _NOTABLE_WAIT}
    columns = {"CPU": analysis.shares, "serial": analysis.serial_shares} | ({"waits": waits} if waits else {})
    rows = [
        f'<tr><td class="text"><code>{_text(name)}</code></td>'
        f"{''.join(f'<td>{_share(column.get(name))}</td>' for column in columns.values())}</tr>\n"
        for name in dict.fromkeys([*list(analysis.shares)[:_SHARES], *list(waits)[:_SHARES]])
    ]
    heads = '<th class="text" scope="col">region</th>' + "".join(f'<th scope="col">{head}</th>' for head in columns)
    return (
        f"<h2>Shares</h2>\n<p>{_DOT.join(rates)}</p>\n<div class='scroll'><table><thead><tr>{heads}</tr></thead>\n"
        f"<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _asset(name: str) -> str:
    return resources.files("causal.report").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(printable(text, "utf-8"))


def _circumstances(profile: Profile) -> str:
    header, parts = profile.header, []
    if header.started:
        parts.append(header.started.replace("T", " "))
    run_ns = profile.end.run_ns if profile.end is not None else profile.runtime_ns
    if run_ns:
        parts.append(f"{run_ns / 1e9:.0f} s")
    machine = header.machine
    if machine.get("model"):
        parts.append(f"{machine['model']}, {machine.get('cpus', '?')} CPUs")
    if machine.get("kernel"):
        parts.append(f"Linux {machine['kernel']}")
    return _DOT.join(str(part) for part in [*parts, header.program] if part)


def _conclusion(analysis: Analysis) -> str:
    if analysis.diagnosis.conclusion is not None:
        return f'<p class="conclusion none">Nothing to conclude: {_text(analysis.diagnosis.conclusion)}</p>\n'
    best = next((r for r in analysis.regions if r.verdict in (Verdict.OPTIMISE, Verdict.CONTENTION)), None)
    if best is None:
        return ""
    return f'<p class="conclusion"><code>{_text(best.region)}</code>: {_text(best.explanation)}</p>\n'


def _controls(analysis: Analysis) -> str:
    verdicts = [verdict for verdict in Verdict if any(result.verdict is verdict for result in analysis.regions)]
    points = [(point, point) for point in analysis.progress_points]
    return (
        '<div class="controls" hidden>'
        '<input id="search" type="search" placeholder="filter by name" aria-label="filter by name">'
        + _select("verdict", "any verdict", [(_CLASS[verdict], verdict.value) for verdict in verdicts])
        + _select("point", "any progress point", points)
        + _select("order", None, _ORDERS)
        + "</div>\n"
    )


def _select(name: str, everything: str | None, options: Sequence[tuple[str, str]]) -> str:
    first = "" if everything is None else f'<option value="">{everything}</option>'
    rest = "".join(f'<option value="{_text(value)}">{_text(label)}</option>' for value, label in options)
    return f'<select id="{name}" aria-label="{name}">{first}{rest}</select>'


def _data(rank: int, result: RegionResult) -> str:
    at, best = _gain_at(result, _RANKED_AT), _best(result)
    values = {
        "rank": rank, "region": result.region, "point": result.progress_point, "verdict": _CLASS[result.verdict],
        "share": result.cpu_share, "gain": at and at.gain, "best": best and best.gain, "experiments": result.pairs,
    }  # fmt: skip
    return " ".join(f'data-{name}="{_text("" if value is None else str(value))}"' for name, value in values.items())


def _gain_at(result: RegionResult, level: float) -> Gain | None:
    if result.fit is None or level > result.fit.max_level or not result.fit.is_evidence:
        return None
    return result.fit.at(level)


def _best(result: RegionResult) -> Gain | None:
    return None if result.fit is None else _gain_at(result, result.fit.max_level)


def _overview(analysis: Analysis) -> str:
    serial = any(result.serial_share is not None for result in analysis.regions)
    heads = [
        ("region", "region", "text"), ("gain", "gain at 25%", ""), ("best", "largest gain", "wide"),
        ("verdict", "verdict", "text"), ("share", "CPU", "wide"), *([(None, "serial", "wide")] if serial else []),
        (None, "slope", "wide"), ("experiments", "experiments", "wide"), ("point", "progress point", "text wide"),
    ]  # fmt: skip
    cells = []
    for key, label, kind in heads:
        attribute = f' data-key="{key}" aria-sort="none"' if key else ""
        cells.append(f'<th class="{kind}" scope="col"{attribute}>{label}</th>')
    rows = [_row(rank, result, serial) for rank, result in enumerate(analysis.regions)]
    return (
        "<h2>Regions</h2>\n<div class='scroll'><table id='overview'><thead><tr>"
        + "".join(cells)
        + "</tr></thead>\n<tbody>\n"
        + "".join(rows)
        + "</tbody></table></div>\n"
    )


def _row(rank: int, result: RegionResult, serial: bool) -> str:
    cells = [
        ("text", f'<a href="#r{rank}"><code>{_text(result.region)}</code></a>'),
        ("", _gain(_gain_at(result, _RANKED_AT))),
        ("wide", _gain(_best(result))),
        ("text", _badge(result)),
        ("wide", _share(result.cpu_share)),
        *([("wide", _share(result.serial_share))] if serial else []),
        ("wide", "" if result.slope is None else f"{result.slope:.2f}"),
        ("wide", f"{result.pairs}"),
        ("text wide", _text(result.progress_point)),
    ]
    return f"<tr {_data(rank, result)}>" + "".join(f'<td class="{k}">{text}</td>' for k, text in cells) + "</tr>\n"


def _badge(result: RegionResult) -> str:
    return f'<span class="badge {_CLASS[result.verdict]}">{result.verdict.value}</span>'


def _share(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.0f}%"


def _gain(gain: Gain | None) -> str:
    # A tilde where there is no evidence.
    if gain is None:
        return "~"
    text = f"{gain.gain * 100:.1f} \N{PLUS-MINUS SIGN} {gain.margin * 100:.1f}"
    return f'<span class="dim">{text}</span>' if gain.ci[0] <= 0 <= gain.ci[1] else text


def _cards(analysis: Analysis, profile: Profile) -> Iterator[str]:
    experiments = single_experiments(profile)
    directories = [Path(), Path(analysis.path).parent if analysis.path else Path()]
    for rank, result in enumerate(analysis.regions):
        own = experiments.get((result.region, result.progress_point), [])
        yield _card(rank, result, own, excerpt(result.region, directories))


def _card(rank: int, result: RegionResult, experiments: Sequence[Experiment], source: Excerpt | None) -> str:
    facts = [result.unit, f"at {result.progress_point}"]
    if result.cpu_share is not None:
        facts.append(f"{_share(result.cpu_share)} of the CPU samples")
    if result.serial_share is not None:
        facts.append(f"{_share(result.serial_share)} of the serial path")
    if result.off_cpu_share:
        facts.append(f"{result.off_cpu_share:.2g} threads wait there")
    facts.append(f"{result.pairs} experiments")
    if result.p_value is not None:
        facts.append(f"p = {result.p_value:.2g}")
    if len(experiments) > MOST_DOTS:
        facts.append(f"{MOST_DOTS:,} of the dots drawn")
    return (
        f'<article class="card" id="r{rank}" {_data(rank, result)}>'
        f"<header><h3>{_text(result.region)}</h3>{_badge(result)}</header>\n"
        f'<p class="dim">{_text(_DOT.join(facts))}</p>{curve_svg(result, experiments)}\n'
        f"<p>{_text(result.explanation)}</p>{_levels(result)}{_source(source)}</article>\n"
    )


def _levels(result: RegionResult) -> str:
    rows = []
    for point in result.points:
        known = point.program_speedup is not None and point.ci is not None
        gain = f"{point.program_speedup * 100:+.1f}%" if point.program_speedup is not None else "~"
        ci = f"{point.ci[0] * 100:+.1f} to {point.ci[1] * 100:+.1f}" if known and point.ci is not None else ""
        raw = "" if point.raw is None else f"{point.raw * 100:+.1f}%"
        values = (f"{point.speedup * 100:.0f}%", gain, ci, raw, f"{point.experiments:,}", f"{point.visits:,}")
        rows.append("<tr>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>")
    heads = ("speedup", "gain", "95%", "raw", "experiments", "visits")
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    return (
        f"<details><summary>numbers</summary><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _source(source: Excerpt | None) -> str:
    if source is None:
        return ""
    lines = []
    for number, line in enumerate(source.lines, source.first):
        kind = ' class="marked"' if number == source.marked else ""
        lines.append(f"<span{kind}><b>{number}</b>{_text(line.expandtabs(4)) or ' '}</span>")
    return f'<pre class="source" aria-label="{_text(source.path)}">{"".join(lines)}</pre>'


def _timeline(analysis: Analysis, profile: Profile) -> str:
    drawing = timeline_svg(timeline(profile), analysis.progress_points)
    if not drawing:
        return ""
    marks = "".join(f'<span><i style="background:var(--{colour})"></i>{label}</span>' for colour, label in _ARMS)
    return f"<h2>Timeline</h2>\n<div class='legend'>{marks}</div><div class='scroll'>{drawing}</div>\n"


def _diagnosis(analysis: Analysis) -> str:
    found, cost = analysis.diagnosis, analysis.overhead
    facts = [f"{found.experiments:,} experiments on {found.regions_tried:,} regions"]
    if found.samples is not None:
        facts.append(f"{found.samples:,} samples, {found.samples_in_scope or 0:,} of them in scope")
    if found.coverage is not None:
        facts.append(f"{found.coverage * 100:.0f}% of the samples in scope lie in regions tried")
    facts += [f"{count:,} visits of {point}" for point, count in found.visits.items()]
    if found.stacks is not None:
        facts.append(str(found.stacks))
    if found.stacks_truncated is not None:
        facts.append(f"{found.stacks_truncated:,} stacks cut off")
    if found.signals_lost is not None:
        facts.append(f"{found.signals_lost:,} signals lost")
    if found.pause_error_p99_ns is not None:
        facts.append(f"99% of the pauses exact to {found.pause_error_p99_ns / 1e6:.2f} ms")
    if cost.startup_s is not None:
        facts.append(f"{cost.startup_s:.1f} s to start")
    if cost.sampling is not None:
        lost_to = "signals" if cost.undisturbed is None else "profiling"
        facts.append(f"{cost.sampling * 100:.1f}% of the throughput lost to {lost_to}, beside pauses")
    if cost.delays is not None:
        facts.append(f"{cost.delays * 100:.0f}% of the measured time were inserted pauses")
    items = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    notes = "".join(f"<li>{_text(message)}</li>" for message in found.messages)
    notes = f"<p>Notes</p><ul>{notes}</ul>" if notes else ""
    return f"<h2>Diagnosis</h2>\n<ul>{items}</ul>{notes}\n"
