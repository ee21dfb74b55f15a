"""The reverse call graph as a person reads it: each function of a tree with those who call it below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from causal.report.symbols import elide_middle, printable

if TYPE_CHECKING:
    from causal.tracing.callers import Caller, CallersReport

_DEEPEST, _MOST, _LEAST_SHARE = 6, 6, 0.01


def render_callers(report: CallersReport, of_process: bool, console: Console) -> None:
    """Write the trees; shares are those of all calls of the function at the root."""
    where = "" if of_process else f" in {report.runs:,} run{'s' * (report.runs != 1)}"
    console.print(Text(f"Who calls the functions in the tree{where}", "bold"))
    for each in report.functions:
        runs = report.called_in.get(each.name, 0)
        within = "" if of_process else f" in {runs:,} of {report.runs:,} runs"
        head = Text.assemble((_name(each, console, 40), "bold"), f": {each.calls:,} calls{within}")
        tree = Tree(head, guide_style="dim")
        _branches(tree, each, each.calls, 1, console)
        console.print(tree)
    if any(each.walked < each.calls for each in report.functions):
        console.print(Text("not all stacks were walked: beyond the first callers, numbers are estimates"))
    if report.lost:
        console.print(Text(f"{report.lost:,} calls were not counted: too many different stacks"))


def _branches(tree: Tree, caller: Caller, total: int, depth: int, console: Console) -> None:
    shown = [each for each in caller.callers.values() if each.calls >= _LEAST_SHARE * total][:_MOST]
    for each in shown:
        share = f"{each.calls / total:4.0%} " if total else ""
        below = tree.add(Text.assemble((share, "cyan"), _name(each, console, 30 + 4 * depth), f"  {each.calls:,}"))
        if depth < _DEEPEST:
            _branches(below, each, total, depth + 1, console)
        elif each.callers:
            below.add(Text("further callers are in callers.json (-o DIR)", "dim"))
    hidden = [each for each in caller.callers.values() if each not in shown]
    if hidden:
        tree.add(Text(f"{len(hidden):,} more, {sum(each.calls for each in hidden):,} calls", "dim"))


def _name(caller: Caller, console: Console, taken: int) -> str:
    return elide_middle(printable(caller.name, console.encoding), max(console.width - taken, 20))
