"""An explanation in words and numbers, shared by its views: formulas with units, tests as sentences, class profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from causal.drt.features import Feature
from causal.drt.growing import rank_callers
from causal.drt.model import Explanation
from causal.drt.traces import Named
from causal.drt.tree import Node, dense_column, describe_test

_EXAMPLES = 5


@dataclass(frozen=True)
class ClassProfile:
    """What a class does with one feature: the share of its traces that call it, and the mean calls of those."""

    share: float
    calls: float


def formula(explanation: Explanation, number: int) -> str:
    """The cost line of a class: `time = 284 ms + 0.00131 ms/bytes * size`."""
    clustering = explanation.clustering
    output = Named.parse(explanation.traces.output_name)
    intercept, *slopes = (float(each) for each in clustering.lines[number])
    unit = f" {output.unit}" if output.unit else ""
    text = f"{output.name} = {significant(intercept)}{unit}"
    for slope, column in zip(slopes, explanation.traces.input_names, strict=True):
        size = Named.parse(column)
        per = f" {output.unit}/{size.unit}" if output.unit and size.unit and clustering.shape.name == "linear" else ""
        sign = "-" if slope < 0 else "+"
        text += f" {sign} {significant(abs(slope))}{per} * {clustering.shape.term(size.name)}"
    return text


def significant(value: float) -> str:
    """Three significant digits, with exponents only for very large and very small numbers."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "0" if shown in ("-0", "0") else shown
    return f"{value:.2e}"


def sentence(explanation: Explanation, node: Node, above: bool) -> tuple[str, str]:
    """What is true on one side of a node's test: the function, and how it is called."""
    assert node.feature is not None
    feature = explanation.features.columns[node.feature]
    return feature.name, describe_test(feature, node.threshold, above, explanation.features.per_input)


def examples(explanation: Explanation, node: Node, most: int = _EXAMPLES) -> list[str]:
    """Ids of typical traces at a node: of its most frequent class, those of median output."""
    labels = explanation.clustering.labels[node.members]
    own = node.members[labels == node.majority]
    own = own if len(own) else node.members
    ranked = own[np.argsort(explanation.traces.output[own], kind="stable")]
    middle = max(0, (len(ranked) - most) // 2)
    return [explanation.traces.ids[int(i)] for i in ranked[middle : middle + most]]


def profiles(explanation: Explanation, features: Sequence[int]) -> list[list[ClassProfile]]:
    """For each feature, for each class, how its traces call it."""
    labels = explanation.clustering.labels
    table = []
    for index in features:
        column = dense_column(explanation.features.values, index)
        row = []
        for k in range(explanation.clustering.k):
            own = column[labels == k]
            called = own[own > 0]
            row.append(ClassProfile(len(called) / max(len(own), 1), float(called.mean()) if len(called) else 0.0))
        table.append(row)
    return table


def profile_cell(feature: Feature, profile: ClassProfile) -> str:
    """Share of callers and, for counts, how often they call: `53% (2.4)`; a dash for no callers."""
    if profile.share == 0:
        return "-"
    return f"{profile.share:.0%}" + ("" if feature.kind == "called" else f" ({significant(profile.calls)})")


def telling_features(explanation: Explanation, most: int = 8) -> list[int]:
    """Features to compare classes by: those of the tree, then those whose being called tells most."""
    chosen = explanation.features_used
    names = {explanation.features.columns[i].name for i in chosen}
    for index in rank_callers(explanation.features, explanation.clustering.labels, explanation.clustering.k):
        name = explanation.features.columns[index].name
        if len(chosen) >= most:
            break
        if name not in names:
            names.add(name)
            chosen.append(index)
    return chosen


def conclusion(explanation: Explanation) -> str:
    """One sentence: what the classes are explained by, or that they are not."""
    k = explanation.clustering.k
    if k == 1:
        return "All traces follow one line: there is no difference to explain."
    if not explanation.differs:
        return "The classes do not differ in the functions they call: the cause lies elsewhere (data, waiting)."
    columns = explanation.features.columns
    used = list({columns[i].name: columns[i] for i in explanation.features_used}.values())
    names = ", ".join(each.name + (f" (or {len(each.same_as)} like it)" if each.same_as else "") for each in used[:4])
    more = "" if len(used) <= 4 else f" and {len(used) - 4} more"
    return f"The {k} classes are told apart by {names}{more}."


def method_line(explanation: Explanation) -> str:
    """How the classes were found."""
    clustering = explanation.clustering
    scatter = {0.0: "equal", 0.5: "as the root of the cost", 1.0: "in proportion to the cost"}[clustering.problem.theta]
    shape = "" if clustering.shape.name == "linear" else f", cost grows as {clustering.shape.term('n')}"
    return f"{clustering.method} clustering, scatter {scatter}{shape}"


def score_line(explanation: Explanation) -> str:
    """R^2 and accuracy."""
    scores = explanation.scores
    lines = f"lines explain R2 {explanation.clustering.r2:.4f}"
    if scores.r2 is None or scores.accuracy is None:
        return f"{lines}; too few traces for cross-validation"
    return f"{lines}; from functions alone, cross-validated: accuracy {scores.accuracy:.1%}, R2 {scores.r2:.4f}"


def merged_functions(explanation: Explanation) -> list[tuple[str, tuple[str, ...]]]:
    """Functions of the tree that stand for others with identical columns."""
    found: dict[str, tuple[str, ...]] = {}
    for index in explanation.features_used:
        feature = explanation.features.columns[index]
        if feature.same_as:
            found[feature.name] = feature.same_as
    return list(found.items())
