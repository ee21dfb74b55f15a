"""An explanation for people at a terminal: classes with their cost, the tree in sentences, the classes side by side."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from causal.drt.model import Explanation, describe_size
from causal.drt.tree import Node
from causal.report import drt_words as words
from causal.report.symbols import elide_middle, printable

# Told apart also without colours: every bar has its numbers beside it.
_COLOURS = ("green", "yellow", "red", "magenta", "blue", "cyan")
_BAR_CELLS = 10
_LISTED = 6


class ExplanationReporter:
    """Renders to a rich Console, whose width, encoding and colours it respects. Names are never taken as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._block = "#" if console.options.ascii_only else "\N{FULL BLOCK}"

    def render(self, explanation: Explanation) -> None:
        """Writes everything."""
        self._head(explanation)
        self._classes(explanation)
        self._line(words.conclusion(explanation), "bold")
        if explanation.differs:
            self._line("")
            self._tree(explanation)
            self._merged(explanation)
        if explanation.clustering.k > 1 and len(explanation.features):
            self._side_by_side(explanation)
        self._ladder(explanation)
        self._diagnosis(explanation)

    def _head(self, explanation: Explanation) -> None:
        traces, features = explanation.traces, explanation.features
        inputs = ", ".join(traces.input_names)
        self._line(f"{traces.output_name} of {len(traces):,} traces by {inputs}", "bold")
        merged = sum(len(each.same_as) for each in {f.name: f for f in features.columns}.values())
        kept = len({each.name for each in features.columns})
        self._line(
            f"{len(traces.functions):,} functions: {kept:,} tell traces apart, {features.constant:,} are constant, "
            f"{merged:,} are identical to others",
            "dim",
        )
        self._line("")

    def _classes(self, explanation: Explanation) -> None:
        clustering = explanation.clustering
        table = _new_table()
        table.add_column("class")
        table.add_column("cost", overflow="fold")
        table.add_column("traces", justify="right")
        table.add_column("share", justify="right")
        for k in range(clustering.k):
            n = int((clustering.labels == k).sum())
            table.add_row(
                self._mark(k), Text(self._name(words.formula(explanation, k))), f"{n:,}",
                f"{n / len(clustering.labels):.1%}",
            )  # fmt: skip
        self._print(table)
        self._line(words.method_line(explanation), "dim")
        self._line("")

    def _tree(self, explanation: Explanation) -> None:
        root = Tree(Text(f"Tree: {describe_size(explanation)}", "bold"), guide_style="dim")
        self._branch(explanation, explanation.tree, root, 0)
        self._print(root)
        self._line("")

    def _branch(self, explanation: Explanation, node: Node, tree: Tree, depth: int) -> None:
        if node.children is None:
            tree.add(self._leaf(explanation, node))
            return
        for above, child in enumerate(node.children):
            name, how = words.sentence(explanation, node, bool(above))
            room = max(self._console.width - 4 * (depth + 1) - len(how) - 1, 16)
            below = tree.add(Text.assemble((elide_middle(self._name(name), room), "bold"), f" {self._name(how)}"))
            self._branch(explanation, child, below, depth + 1)

    def _leaf(self, explanation: Explanation, node: Node) -> Text:
        shares = node.distribution
        text = Text()
        cells = 0
        for k in range(len(shares)):
            width = round(float(shares[: k + 1].sum()) * _BAR_CELLS) - cells
            text.append(self._block * width, _COLOURS[k % len(_COLOURS)])
            cells += width
        spread = ", ".join(f"class {k} {share:.0%}" for k, share in enumerate(shares) if share > 0)
        text.append(f" {spread}", "bold")
        text.append(f"  {int(node.counts.sum()):,} traces")
        text.append(f"\n{self._name(words.formula(explanation, node.majority))}")
        some = ", ".join(self._name(each) for each in words.examples(explanation, node, 3))
        text.append(f"\nas {some}", "dim")
        return text

    def _merged(self, explanation: Explanation) -> None:
        for name, same in words.merged_functions(explanation):
            shown = ", ".join(self._name(each) for each in same[:_LISTED])
            more = f" and {len(same) - _LISTED} more" if len(same) > _LISTED else ""
            self._line(f"{self._name(name)} stands for functions called in the same traces: {shown}{more}", "dim")

    def _side_by_side(self, explanation: Explanation) -> None:
        chosen = words.telling_features(explanation)
        if not chosen:
            return
        self._line("")
        self._line("Classes side by side: share of the traces that call a function (and how often)", "bold")
        table = _new_table()
        table.add_column("function", no_wrap=True)
        for k in range(explanation.clustering.k):
            table.add_column(f"class {k}", justify="right", no_wrap=True)
        room = max(self._console.width - 14 * explanation.clustering.k, 16)
        for index, row in zip(chosen, words.profiles(explanation, chosen), strict=True):
            feature = explanation.features.columns[index]
            cells = [Text(words.profile_cell(feature, each)) for each in row]
            table.add_row(Text(elide_middle(self._name(feature.name), room)), *cells)
        self._print(table)

    def _ladder(self, explanation: Explanation) -> None:
        clustering = explanation.clustering
        best = min((r.criterion for r in clustering.ladder if r.criterion is not None), default=0.0)
        parts = []
        for rung in clustering.ladder:
            worse = "too alike or too small" if rung.criterion is None else f"+{rung.criterion - best:,.0f}"
            mark = "*" if rung.k == clustering.k else ""
            parts.append(f"{rung.k}{mark}: R2 {rung.r2:.3f} ({worse})")
        self._line("")
        self._line(f"Classes tried, with how much worse than the best: {'; '.join(parts)}", "dim")

    def _diagnosis(self, explanation: Explanation) -> None:
        self._line(words.score_line(explanation))
        if explanation.could_be_smaller:
            self._line("A smaller tree may exist: --tree optimal searches for it.", "dim")
        outliers = explanation.outliers
        if len(outliers):
            some = ", ".join(self._name(explanation.traces.ids[int(i)]) for i in outliers[:_LISTED])
            more = f" and {len(outliers) - _LISTED} more" if len(outliers) > _LISTED else ""
            plural = "" if len(outliers) == 1 else "s"
            self._line(f"{len(outliers)} outlier{plural} of no class, left out of the tree: {some}{more}")
        for warning in explanation.warnings:
            self._print(Text.assemble(("warning: ", "yellow"), self._name(warning)))

    def _mark(self, number: int) -> Text:
        return Text.assemble((self._block * 2, _COLOURS[number % len(_COLOURS)]), f" {number}")

    def _name(self, name: str) -> str:
        return printable(name, self._console.encoding)

    def _line(self, text: str, style: str = "") -> None:
        self._print(Text(self._name(text), style=style))

    def _print(self, renderable: Text | Table | Tree) -> None:
        self._console.print(renderable, markup=False, highlight=False, emoji=False)


def _new_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True)
