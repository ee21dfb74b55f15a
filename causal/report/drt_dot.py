"""The tree of an explanation for Graphviz: `causal-bpf explain traces.csv --dot | dot -Tsvg > tree.svg`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from causal.drt.model import Explanation
from causal.drt.tree import Node
from causal.report.drt_words import formula, sentence


def write_dot(explanation: Explanation, out: TextIO) -> None:
    """Write a digraph; names are escaped."""
    out.write('digraph explanation {\n  node [shape=box, fontname="sans-serif"];\n')
    out.writelines(f"  {line}\n" for line in _lines(explanation, explanation.tree, iter(range(1_000_000))))
    out.write("}\n")


def _lines(explanation: Explanation, node: Node, numbers: Iterator[int]) -> Iterator[str]:
    number = next(numbers)
    total = int(node.counts.sum())
    if node.children is None:
        parts = [f"class {k}: {share:.0%}" for k, share in enumerate(node.distribution) if share > 0]
        text = "\n".join([*parts, formula(explanation, node.majority), f"{total} traces"])
        yield f"n{number} [label={_quote(text)}, style=rounded];"
        return
    assert node.feature is not None
    yield f"n{number} [label={_quote(explanation.features.columns[node.feature].name)}];"
    for above, child in enumerate(node.children):
        # The next number is the child's own: take it without spending it.
        upcoming = next(numbers)
        yield f"n{number} -> n{upcoming} [label={_quote(sentence(explanation, node, bool(above)))}];"
        yield from _lines(explanation, child, _with(upcoming, numbers))


def _with(first: int, rest: Iterator[int]) -> Iterator[int]:
    yield first
    yield from rest


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
