"""An explanation as one web page that needs nothing else: the traces with their lines, the tree, the classes."""

from __future__ import annotations

from html import escape
from typing import TextIO

from causal.drt.model import Explanation, describe_size
from causal.drt.tree import Node
from causal.report import drt_words as words
from causal.report.drt_scatter import COLOURS, scatter_svg

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --dim: #626b76; --rule: #d8dde3; --panel: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171b; --text: #e3e7eb; --dim: #97a1ac; --rule: #343b43; --panel: #1c2127; }
}
body { font: 15px/1.5 system-ui, sans-serif; background: var(--ground); color: var(--text); margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.dim, .dim { color: var(--dim); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, td.text { text-align: left; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--rule); }
ul.tree, ul.tree ul { list-style: none; margin: 0; padding-left: 1.4rem; border-left: 1px solid var(--rule); }
ul.tree { border: 0; padding: 0; } ul.tree li { margin: .35rem 0; }
.leaf { background: var(--panel); border-radius: .4rem; padding: .4rem .7rem; display: inline-block; }
.bar { display: flex; width: 16rem; max-width: 100%; height: .8rem; border-radius: .2rem; overflow: hidden; }
.dot { display: inline-block; width: .75rem; height: .75rem; border-radius: 50%; margin-right: .4rem; }
.warning { border-left: 4px solid #c98500; padding-left: .7rem; }
"""


def write_html(explanation: Explanation, out: TextIO) -> None:
    """Write the page. Names are escaped; nothing is loaded from anywhere."""
    traces = explanation.traces
    title = f"{traces.output_name} of {len(traces):,} traces"
    out.write('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">')
    out.write('<meta name="viewport" content="width=device-width, initial-scale=1">')
    out.write(f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n")
    out.write(f"<h1>{escape(title)} by {escape(', '.join(traces.input_names))}</h1>\n")
    out.write(f"<p>{escape(words.conclusion(explanation))}</p>\n")
    out.writelines(f'<p class="warning">{escape(each)}</p>\n' for each in explanation.warnings)
    out.write(f'<div class="wide">{scatter_svg(explanation)}</div>\n')
    out.write(_classes(explanation))
    if explanation.differs:
        out.write(f"<h2>Tree: {describe_size(explanation)}</h2>\n<ul class='tree'>")
        out.write(_branches(explanation, explanation.tree))
        out.write("</ul>\n")
    out.write(_comparison(explanation))
    out.write(_merged(explanation))
    out.write(_quality(explanation))
    out.write("</body></html>\n")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _classes(explanation: Explanation) -> str:
    clustering = explanation.clustering
    rows = []
    for k in range(clustering.k):
        n = int((clustering.labels == k).sum())
        rows.append(
            f'<tr><td><span class="dot" style="background:{_colour(k)}"></span>class {k}</td>'
            f'<td class="text">{escape(words.formula(explanation, k))}</td><td>{n:,}</td>'
            f"<td>{n / len(clustering.labels):.1%}</td></tr>"
        )
    return (
        "<h2>Classes</h2>\n<div class='wide'><table><tr><th>class</th><th style='text-align:left'>cost</th>"
        f"<th>traces</th><th>share</th></tr>{''.join(rows)}</table></div>\n"
        f'<p class="dim">{escape(words.method_line(explanation))}</p>\n'
    )


def _branches(explanation: Explanation, node: Node) -> str:
    assert node.children is not None
    items = []
    for above, child in enumerate(node.children):
        name, how = words.sentence(explanation, node, bool(above))
        text = f"<code>{escape(name)}</code> {escape(how)}"
        if child.children is None:
            items.append(f"<li>{text}<br>{_leaf(explanation, child)}</li>")
        else:
            below = f"<ul>{_branches(explanation, child)}</ul>"
            items.append(f"<li><details open><summary>{text}</summary>{below}</details></li>")
    return "".join(items)


def _leaf(explanation: Explanation, node: Node) -> str:
    shares = [(k, float(share)) for k, share in enumerate(node.distribution) if share > 0]
    bar = "".join(f'<span style="width:{share:.2%};background:{_colour(k)}"></span>' for k, share in shares)
    spread = ", ".join(f"class {k} {share:.0%}" for k, share in shares)
    some = ", ".join(words.examples(explanation, node, 3))
    return (
        f'<span class="leaf"><span class="bar">{bar}</span>{spread} &middot; {int(node.counts.sum()):,} traces<br>'
        f'{escape(words.formula(explanation, node.majority))}<br><span class="dim">as {escape(some)}</span></span>'
    )


def _comparison(explanation: Explanation) -> str:
    chosen = words.telling_features(explanation, 20) if explanation.clustering.k > 1 else []
    if not chosen:
        return ""
    head = "".join(f"<th>class {k}</th>" for k in range(explanation.clustering.k))
    rows = []
    for index, row in zip(chosen, words.profiles(explanation, chosen), strict=True):
        feature = explanation.features.columns[index]
        cells = "".join(f"<td>{escape(words.profile_cell(feature, each))}</td>" for each in row)
        rows.append(f"<tr><td><code>{escape(feature.name)}</code></td>{cells}</tr>")
    return (
        "<h2>Classes side by side</h2>\n<p class='dim'>Share of the traces of a class that call a function, and in "
        f"parentheses how often those do.</p><div class='wide'><table><tr><th>function</th>{head}</tr>"
        f"{''.join(rows)}</table></div>\n"
    )


def _merged(explanation: Explanation) -> str:
    merged = words.merged_functions(explanation)
    if not merged:
        return ""
    items = "".join(
        f"<li><code>{escape(name)}</code>: {', '.join(f'<code>{escape(each)}</code>' for each in same)}</li>"
        for name, same in merged
    )
    return f"<h2>Functions called in the same traces</h2><ul>{items}</ul>\n"


def _quality(explanation: Explanation) -> str:
    clustering = explanation.clustering
    rows = "".join(
        f"<tr><td>{rung.k}{' (chosen)' if rung.k == clustering.k else ''}</td><td>{rung.r2:.4f}</td>"
        f"<td>{'too alike or too small' if rung.criterion is None else f'{rung.criterion:,.0f}'}</td></tr>"
        for rung in clustering.ladder
    )
    outliers = [explanation.traces.ids[int(i)] for i in explanation.outliers]
    outside = f"<p>Outliers of no class: {escape(', '.join(outliers))}</p>" if outliers else ""
    return (
        f"<h2>How good this is</h2><p>{escape(words.score_line(explanation))}</p>{outside}"
        "<table><tr><th>classes</th><th>R2</th><th>criterion (smaller is better)</th></tr>"
        f"{rows}</table>\n"
    )
