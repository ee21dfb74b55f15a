"""An explanation for programs: one JSON object."""

from __future__ import annotations

import json
import math
from typing import Any, TextIO

from causal.drt.model import Explanation
from causal.drt.tree import Node
from causal.report.drt_words import examples

VERSION = 1


def write_json(explanation: Explanation, out: TextIO) -> None:
    """Write the object and a newline, in ASCII."""
    json.dump(as_object(explanation), out, indent=2, allow_nan=False)
    out.write("\n")


def as_object(explanation: Explanation) -> dict[str, Any]:
    """Everything as JSON values.

    `r2` and `accuracy` are cross-validated, null for too few traces. The keys `shape`, `outliers`, `merged` and
    `messages` are there only when there is something to say in them.
    """
    clustering = explanation.clustering
    sizes = [int((clustering.labels == k).sum()) for k in range(clustering.k)]
    found: dict[str, Any] = {
        "version": VERSION,
        "k": clustering.k,
        "r2": _finite(explanation.scores.r2),
        "accuracy": _finite(explanation.scores.accuracy),
        "clusters": [
            {"slope": [float(each) for each in line[1:]], "intercept": float(line[0]), "n": n}
            for line, n in zip(clustering.lines, sizes, strict=True)
        ],
        "tree": _node(explanation, explanation.tree),
        "features_used": [explanation.features.columns[i].name for i in explanation.features_used],
        "ladder": [{"k": r.k, "r2": _finite(r.r2), "criterion": _finite(r.criterion)} for r in clustering.ladder],
    }
    if clustering.shape.name != "linear":
        found["shape"] = {"name": clustering.shape.name, "exponent": clustering.shape.exponent}
    if len(explanation.outliers):
        found["outliers"] = [explanation.traces.ids[int(i)] for i in explanation.outliers]
    merged = {each.name: list(each.same_as) for each in explanation.features.columns if each.same_as}
    if merged:
        found["merged"] = merged
    if explanation.warnings:
        found["messages"] = list(explanation.warnings)
    return found


def _node(explanation: Explanation, node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {
        "n": int(node.counts.sum()),
        "distribution": [float(each) for each in node.distribution],
        "examples": examples(explanation, node),
    }
    if node.children is not None and node.feature is not None:
        found["feature"] = explanation.features.columns[node.feature].name
        found["threshold"] = node.threshold
        found["children"] = [_node(explanation, child) for child in node.children]
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
