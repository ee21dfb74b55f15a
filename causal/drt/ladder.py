"""How many classes there are, of which shape, and with which scatter: all chosen by one criterion.

The ladder climbs K = 1, 2, 3... and keeps, for each K, the best of many starts. It ends when the criterion has grown
worse twice. Of the valid clusterings, whose classes are large and distinct enough, the best is chosen. The same is
done for each law of scatter, and then for each shape of growth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from causal.drt.atoms import Atoms, make_atoms, sample_atoms, split_groups
from causal.drt.lines import OUTLIER, Fit, KLinear, label_traces
from causal.drt.problem import THETAS, Problem, make_problem
from causal.drt.shapes import SHAPES, Shape
from causal.drt.starts import Starts
from causal.drt.traces import Bools, Floats, Ints, Traces
from causal.errors import CausalError, UsageError

MOST_CLASSES = 12
# Single traces on which K is chosen: classes of one hundredth of the traces still have thirty. All traces are
# labelled afterwards.
MOST_SINGLES = 3000
# Another shape than a line needs "very strong" evidence, a difference of 10 (Kass and Raftery, 1995).
STRONG = 10.0
_PATIENCE = 2


@dataclass(frozen=True)
class Rung:
    """One K of the ladder; `criterion` is None where no valid clustering into K classes was found."""

    k: int
    r2: float
    criterion: float | None


@dataclass(frozen=True)
class Clustering:
    """The classes of N traces.

    `lines` is (K, 1 + P): intercepts, then slopes in the user's units for inputs transformed by `shape`, ordered from
    the fastest class to the slowest. `labels` is (N,), OUTLIER for traces of no class. `sigma` (K,) and `share` (K,)
    are of the problem's units.
    """

    problem: Problem
    lines: Floats
    scaled_lines: Floats
    sigma: Floats
    share: Floats
    labels: Ints
    ladder: tuple[Rung, ...]
    r2: float
    method: str = "k-linear"

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.lines)

    @property
    def shape(self) -> Shape:
        """How cost grows with the inputs."""
        return self.problem.shape


@dataclass(frozen=True)
class _Climb:
    """The ladder of one problem."""

    problem: Problem
    atoms: Atoms
    sampled: Atoms
    fits: list[Fit]

    def best(self, classes: int | None) -> Fit | None:
        if classes is not None:
            return next((fit for fit in self.fits if len(fit.lines) == classes), None)
        return min((fit for fit in self.fits if fit.valid), key=lambda fit: fit.criterion, default=None)

    def criterion(self, classes: int | None) -> float:
        best = self.best(classes)
        return np.inf if best is None else best.criterion


def canonical_order(inputs: Floats, output: Floats) -> Ints:
    """An order of the traces that does not depend on the order in the file, so that nothing random does."""
    return np.asarray(np.lexsort((*inputs.T[::-1], output)))


def canonical_groups(traces: Traces, groups: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """A canonical order, and in this order the groups of the traces, numbered by their first traces."""
    mean = np.bincount(groups[0], traces.output) / np.bincount(groups[0])
    order = np.lexsort((mean[groups[0]], *traces.inputs.T[::-1], traces.output))
    numbered = []
    for each in groups:
        _, first, inverse = np.unique(each[order], return_index=True, return_inverse=True)
        numbered.append(np.argsort(np.argsort(first))[inverse])
    return order, numbered


def cluster(
    traces: Traces, coarse: Ints, fine: Ints, classes: int | None = None, seed: int = 0,
    shapes: Sequence[Shape] = SHAPES,
) -> Clustering:  # fmt: skip
    """Cluster N traces into lines; `coarse` and `fine` (N,) number the groups of traces with the same internals.

    `classes` fixes K. Raises UsageError when there are not enough traces for that.
    """
    check_classes(classes, len(traces), traces.inputs.shape[1])
    order, groups = canonical_groups(traces, (coarse, fine))
    inputs, output = traces.inputs[order], traces.output[order]
    climbs: dict[tuple[str, float, float], _Climb] = {}

    def climb(shape: Shape, theta: float) -> _Climb:
        key = (shape.name, shape.exponent, theta)
        if key not in climbs:
            climbs[key] = _climb(make_problem(inputs, output, shape, theta), groups, classes, seed)
        return climbs[key]

    best = _choose(climb, classes, shapes)
    found = _finish(best, classes, seed, output)
    labels = np.empty_like(found.labels)
    labels[order] = found.labels
    problem = make_problem(traces.inputs, traces.output, found.problem.shape, found.problem.theta)
    return replace(found, labels=labels, problem=problem)


def check_classes(classes: int | None, count: int, inputs: int) -> None:
    """Raises for more classes than the traces allow: each needs more traces than its line has coefficients."""
    least = inputs + 2
    if classes is not None and classes * least > count:
        raise UsageError(
            f"{count} traces are too few for {classes} classes",
            f"each class needs {least} traces or more: --clusters {max(1, count // least)} at most",
        )
    if count < least:
        raise CausalError(f"{count} traces are too few: a line needs {least}", "record more traces")


def _choose(climb: Callable[[Shape, float], _Climb], classes: int | None, shapes: Sequence[Shape]) -> _Climb:
    """The law of scatter for the first shape; then, where the classes are bent, the shape, and its law of scatter."""
    first = min((climb(shapes[0], theta) for theta in THETAS), key=lambda each: each.criterion(classes))
    if len(shapes) == 1 or not _is_bent(first, classes):
        return first
    theta = first.problem.theta
    other = min((climb(shape, theta) for shape in shapes[1:]), key=lambda each: each.criterion(classes))
    if other.criterion(classes) > first.criterion(classes) - STRONG:
        return first
    return min((climb(other.problem.shape, each) for each in THETAS), key=lambda each: each.criterion(classes))


def _is_bent(climb: _Climb, classes: int | None) -> bool:
    """Whether squares of the inputs, added to every class, would improve the criterion. If not, no shape can."""
    fit = climb.best(classes)
    if fit is None:
        return True
    problem, labels = climb.problem, label_traces(climb.sampled, fit)
    size = float((labels != OUTLIER).sum())
    squares = problem.design[:, 1:] ** 2 * problem.scatter[:, None]
    saved = 0.0
    for k in range(len(fit.lines)):
        rows = labels == k
        if rows.sum() > 2 * problem.design.shape[1]:
            straight = _log_scatter(problem, problem.design[rows], rows)
            bent = _log_scatter(problem, np.column_stack([problem.design, squares])[rows], rows)
            saved += 2.0 * float(rows.sum()) * (straight - bent)
    return bool(saved > STRONG + len(fit.lines) * squares.shape[1] * np.log(size))


def _log_scatter(problem: Problem, design: Floats, rows: Bools) -> float:
    target = problem.target[rows]
    line = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(np.log(max(np.sqrt(np.mean((target - design @ line) ** 2)), problem.smallest_sigma)))


def _climb(problem: Problem, groups: Sequence[Ints], classes: int | None, seed: int) -> _Climb:
    rng = np.random.default_rng(seed)
    every = make_atoms(problem, split_groups(problem, groups[0], groups[1]))
    atoms = sample_atoms(every, MOST_SINGLES, rng)
    clustering = KLinear(problem, atoms, rng)
    least = atoms.width + 1
    most = max(1, min(MOST_CLASSES, len(problem.target) // least))
    most = max(most, classes or 0)
    starts = Starts(clustering, atoms, most, rng)
    fits: list[Fit] = []
    best, worse = np.inf, 0
    for count in range(1, most + 1):
        fits.append(clustering.run(starts.at(count, fits[-1] if fits else None)))
        improved = fits[-1].criterion < best
        best, worse = (fits[-1].criterion, 0) if improved else (best, worse + 1)
        if worse >= _PATIENCE and count >= (classes or 0):
            break
    return _Climb(problem, every, atoms, fits)


def _finish(climb: _Climb, classes: int | None, seed: int, output: Floats) -> Clustering:
    """Label all atoms, also those that sampling left out, starting from the lines found."""
    fit = climb.best(classes)
    assert fit is not None  # K = 1 is always valid: its class is everything but outliers
    problem, atoms = climb.problem, climb.atoms
    clustering = KLinear(problem, atoms, np.random.default_rng(seed))
    fit = clustering.run(fit.lines[None])
    labels = label_traces(atoms, fit)
    ladder = []
    for each in climb.fits:
        there = clustering.run(each.lines[None], rounds=2)
        ladder.append(
            Rung(len(each.lines), line_r2(problem, there.lines, label_traces(atoms, there), output),
                 each.criterion if each.valid else None)
        )  # fmt: skip
    return finish_clustering(problem, labels, len(fit.lines), tuple(ladder), output)


def finish_clustering(
    problem: Problem, labels: Ints, classes: int, ladder: tuple[Rung, ...], output: Floats, method: str = "k-linear"
) -> Clustering:
    """Fit the lines to the labels and order the classes from fast to slow, by the cost of a typical trace.

    Classes that have no traces left disappear. Raises nothing: labels of OUTLIER alone do not occur.
    """
    present = [k for k in range(classes) if (labels == k).any()]
    lines = np.stack([fit_rows(problem, labels == k) for k in present])
    typical = (problem.design * problem.scatter[:, None]).mean(axis=0)
    order = np.argsort(lines @ typical, kind="stable")
    number = np.full(classes + 1, OUTLIER)
    for position, index in enumerate(order):
        number[present[int(index)]] = position
    labels = number[labels]
    lines = lines[order]
    sizes = np.array([(labels == k).sum() for k in range(len(lines))], dtype=np.float64)
    residual = problem.target - np.einsum("nq,nq->n", problem.design, lines[np.maximum(labels, 0)])
    sigma = np.array([np.sqrt(np.mean(residual[labels == k] ** 2)) for k in range(len(lines))])
    return Clustering(
        problem=problem,
        lines=problem.to_user(lines),
        scaled_lines=lines,
        sigma=np.maximum(sigma, problem.smallest_sigma),
        share=sizes / len(labels),
        labels=labels,
        ladder=ladder,
        r2=line_r2(problem, lines, labels, output),
        method=method,
    )


def fit_rows(problem: Problem, chosen: Bools | Ints) -> Floats:
    """The line (Q,) through some of the traces."""
    return np.asarray(np.linalg.lstsq(problem.design[chosen], problem.target[chosen], rcond=None)[0])


def line_r2(problem: Problem, lines: Floats, labels: Ints, output: Floats) -> float:
    """Share of the output's variance that each trace's own line explains; outliers are left out."""
    inside = labels != OUTLIER
    predicted = np.einsum("nq,nq->n", problem.design, lines[np.maximum(labels, 0)]) * problem.scatter
    return r_squared(output[inside], predicted[inside] * problem.output_scale)


def r_squared(output: Floats, predicted: Floats) -> float:
    """1 - residual variance / variance; 0 for an output that does not vary, unless it is met exactly."""
    total = float(((output - output.mean()) ** 2).sum()) if len(output) else 0.0
    rest = float(((output - predicted) ** 2).sum())
    if total == 0:
        return 1.0 if rest == 0 else 0.0
    return 1.0 - rest / total
