"""The tree of an explanation for Graphviz: `causal-bpf explain traces.csv --dot | dot -Tsvg > tree.svg`."""

from __future__ import annotations

from typing import TextIO

from causal.drt.model import Explanation
from causal.drt.tree import Node
from causal.report.drt_words import formula, sentence


def write_dot(explanation: Explanation, out: TextIO) -> None:
    """Write a digraph; names are escaped."""
    nodes: list[str] = []
    edges: list[str] = []
    _add(explanation, explanation.tree, nodes, edges)
    out.write('digraph explanation {\n  node [shape=box, fontname="sans-serif"];\n')
    out.writelines(f"  {line}\n" for line in nodes + edges)
    out.write("}\n")


def _add(explanation: Explanation, node: Node, nodes: list[str], edges: list[str]) -> int:
    """Append a node, and all below it; returns its number."""
    number = len(nodes)
    if node.children is None or node.feature is None:
        parts = [f"class {k}: {share:.0%}" for k, share in enumerate(node.distribution) if share > 0]
        text = "\n".join([*parts, formula(explanation, node.majority), f"{int(node.counts.sum())} traces"])
        nodes.append(f"n{number} [label={_quote(text)}, style=rounded];")
        return number
    nodes.append(f"n{number} [label={_quote(explanation.features.columns[node.feature].name)}];")
    for above, child in enumerate(node.children):
        below = _add(explanation, child, nodes, edges)
        edges.append(f"n{number} -> n{below} [label={_quote(sentence(explanation, node, bool(above))[1])}];")
    return number


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
