"""Spectral clustering with the alignment kernel: two traces are alike when many traces lie near the line through them.

Unlike K-linear clustering it needs no starting lines. Only the affinities to some landmarks are computed, with a
sample of the traces voting, so nothing is ever N x N; of more traces than MOST_POINTS a sample is clustered, and the
others join the nearest line.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from causal.drt.atoms import Atoms, make_atoms, split_groups
from causal.drt.ladder import MOST_CLASSES, Clustering, Rung, canonical_groups, finish_clustering, line_r2
from causal.drt.lines import Fit, KLinear, fit_moments, label_traces
from causal.drt.problem import THETAS, Problem, make_problem
from causal.drt.shapes import LINEAR
from causal.drt.traces import Floats, Ints, Traces
from causal.errors import UsageError

MOST_POINTS = 1500
_LANDMARKS, _VOTERS = 150, 300
# How near to a line is on it, in parts of the range of outputs; the criterion decides, as for everything else.
_TOLERANCES = (0.003, 0.01, 0.03)
_PATIENCE = 2


def cluster_spectrally(traces: Traces, coarse: Ints, fine: Ints, classes: int | None, seed: int = 0) -> Clustering:
    """As `ladder.cluster`, by alignment. Raises UsageError for more than one input: a line needs two points."""
    if traces.inputs.shape[1] != 1:
        raise UsageError(
            f"--method spectral works with one input, not {traces.inputs.shape[1]}",
            "choose it with --inputs, or use --method k-linear",
        )
    order, groups = canonical_groups(traces, (coarse, fine))
    inputs, output = traces.inputs[order], traces.output[order]
    tried = [_Spectral(make_problem(inputs, output, LINEAR, theta), groups, seed).climb(classes) for theta in THETAS]
    problem, atoms, fits = min(tried, key=lambda each: _best(each[2], classes).criterion)
    best = _best(fits, classes)
    clustering = KLinear(problem, atoms, np.random.default_rng(seed))
    ladder = []
    for fit in fits:
        there = clustering.run(fit.lines[None], rounds=1)
        r2 = line_r2(problem, there.lines, label_traces(atoms, there), output)
        ladder.append(Rung(len(fit.lines), r2, fit.criterion if fit.valid else None))
    final = clustering.run(best.lines[None], rounds=1)
    found = finish_clustering(problem, label_traces(atoms, final), len(best.lines), tuple(ladder), output, "spectral")
    labels = np.empty_like(found.labels)
    labels[order] = found.labels
    problem = make_problem(traces.inputs, traces.output, LINEAR, problem.theta)
    return replace(found, labels=labels, problem=problem)


def _best(fits: list[Fit], classes: int | None) -> Fit:
    some = [fit for fit in fits if (fit.valid if classes is None else len(fit.lines) == classes)]
    return min(some or fits, key=lambda fit: fit.criterion)


class _Spectral:
    """One problem: affinities once, then an embedding and its clusters for every K."""

    def __init__(self, problem: Problem, groups: list[Ints], seed: int) -> None:
        self._problem = problem
        self._seed = seed
        self._partition = split_groups(problem, groups[0], groups[1])
        rng = np.random.default_rng(seed)
        count = len(problem.target)
        self._points = np.sort(rng.choice(count, min(count, MOST_POINTS), replace=False))
        landmarks = rng.choice(self._points, min(len(self._points), _LANDMARKS), replace=False)
        voters = rng.choice(self._points, min(len(self._points), _VOTERS), replace=False)
        self._affinities = _align(problem, self._points, landmarks, voters)

    def climb(self, classes: int | None) -> tuple[Problem, Atoms, list[Fit]]:
        """The best fit for each K."""
        cells = np.unique(self._partition[self._points], return_inverse=True)[1]
        every = make_atoms(self._problem, self._partition)
        # The criterion is that of the sampled traces.
        local = replace(
            self._problem, design=self._problem.design[self._points], target=self._problem.target[self._points],
            scatter=self._problem.scatter[self._points],
        )  # fmt: skip
        atoms = make_atoms(local, cells)
        clustering = KLinear(local, atoms, np.random.default_rng(self._seed))
        most = classes or max(1, min(MOST_CLASSES, len(atoms), len(self._points) // (atoms.width + 1)))
        fits: list[Fit] = []
        best, worse = np.inf, 0
        for count in range(1, most + 1):
            fits.append(self._cluster(clustering, atoms, cells, count))
            improved = fits[-1].criterion < best
            best, worse = (fits[-1].criterion, 0) if improved else (best, worse + 1)
            if worse >= _PATIENCE and classes is None:
                break
        return self._problem, every, fits

    def _cluster(self, clustering: KLinear, atoms: Atoms, cells: Ints, classes: int) -> Fit:
        starts = []
        for affinity in self._affinities:
            labels = _embed_and_cut(affinity, cells, len(atoms), classes, self._seed)
            member = (labels[None, :] == np.arange(classes)[:, None]).astype(np.float64)
            starts.append(fit_moments(member @ atoms.moments, atoms.width)[0])
        # One round of fitting: it lets outliers go, and leaves the clusters as they are otherwise.
        return clustering.run(np.stack(starts), rounds=1)


def _align(problem: Problem, points: Ints, landmarks: Ints, voters: Ints) -> list[Floats]:
    """For each tolerance the shares (points, landmarks) of voters near the line through point and landmark."""
    x, y = problem.design[:, 1] * problem.scatter, problem.target * problem.scatter
    near = [np.empty((len(points), len(landmarks))) for _ in _TOLERANCES]
    limits = [tolerance * problem.spread for tolerance in _TOLERANCES]
    for column, landmark in enumerate(landmarks):
        run = x[points] - x[landmark]
        rise = y[points] - y[landmark]
        # A point at the landmark's own size defines no line: it is alike when it has the landmark's output.
        slope = np.where(run == 0, 0.0, rise / np.where(run == 0, 1.0, run))
        miss = np.abs(y[voters] - y[landmark] - slope[:, None] * (x[voters] - x[landmark])) / problem.scatter[voters]
        apart = (run == 0) & (np.abs(rise) / problem.scatter[points] > limits[0])
        for table, limit in zip(near, limits, strict=True):
            table[:, column] = np.where(apart, 0.0, (miss <= limit).mean(axis=1))
    return near


def _embed_and_cut(affinity: Floats, cells: Ints, count: int, classes: int, seed: int) -> Ints:
    """Labels (A,) of atoms from the left singular vectors of their mean affinities to the landmarks."""
    from sklearn.cluster import KMeans

    size = np.bincount(cells, minlength=count)[:, None]
    rows = np.stack([np.bincount(cells, affinity[:, j], count) for j in range(affinity.shape[1])], axis=1) / size
    rows = rows**2  # a line that holds most voters is to count for more than several that hold a few
    if classes == 1 or count <= classes:
        return np.minimum(np.arange(count), classes - 1) if count <= classes else np.zeros(count, dtype=np.int64)
    degree = rows @ rows.sum(axis=0)
    vectors = np.linalg.svd(rows / np.sqrt(np.maximum(degree, 1e-12))[:, None], full_matrices=False)[0][:, :classes]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cut = KMeans(classes, n_init=10, random_state=seed).fit(vectors, sample_weight=size[:, 0])
    return np.asarray(cut.labels_, dtype=np.int64)
