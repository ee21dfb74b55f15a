"""The method for scikit-learn users: estimators with fit and predict.

from causal.drt.estimators import DiscriminantRegressor
model = DiscriminantRegressor(n_inputs=1).fit(numpy.column_stack([size, calls]), time)
model.predict(...), model.tree_, model.lines_, model.labels_
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from causal.drt import model
from causal.drt.features import Features
from causal.drt.ladder import Clustering, cluster
from causal.drt.shapes import LINEAR, SHAPES, Shape
from causal.drt.traces import Floats, Ints, Sparse, Traces
from causal.errors import CausalError


class DiscriminantRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A discriminant regression tree: X (N, n_inputs + F) has the inputs first, then call counts; y (N,) is the cost.

    Fitted: `labels_` (N,) with -1 for outliers, `lines_` (K, 1 + n_inputs), `tree_`, `n_clusters_` and `explanation_`.
    Raises ValueError for data that cannot be explained.
    """

    def __init__(
        self, n_inputs: int = 1, n_clusters: int | None = None, method: str = "k-linear", max_depth: int | None = None,
        tree: str = "greedy", random_state: int = 0,
    ) -> None:  # fmt: skip
        self.n_inputs = n_inputs
        self.n_clusters = n_clusters
        self.method = method
        self.max_depth = max_depth
        self.tree = tree
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> DiscriminantRegressor:
        """Cluster and learn the tree."""
        X, y = validate_data(self, X, y, accept_sparse="csc", dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        if not 1 <= self.n_inputs <= X.shape[1]:
            raise ValueError(f"n_inputs is {self.n_inputs}, and X has {X.shape[1]} feature(s)")
        inputs, calls = _split(X, self.n_inputs)
        traces = _as_traces(inputs, calls, np.asarray(y, dtype=np.float64))
        options = model.Options(
            clusters=self.n_clusters, method=self.method, max_depth=self.max_depth, tree=self.tree,
            seed=self.random_state, shapes=_shapes(inputs),
        )  # fmt: skip
        try:
            self.explanation_ = model.explain(traces, options)
        except CausalError as error:
            raise ValueError(f"{error.message} (n_samples = {len(traces)})") from error
        self.labels_ = self.explanation_.clustering.labels
        self.lines_ = self.explanation_.clustering.lines
        self.tree_ = self.explanation_.tree
        self.n_clusters_ = self.explanation_.clustering.k
        return self

    def predict(self, X: Any) -> Floats:
        """The expected cost (M,): the lines, weighted with the class probabilities of each trace's leaf."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csc", dtype=np.float64, reset=False)
        inputs, calls = _split(X, self.n_inputs)
        values = _same_features(self.explanation_.features, self.explanation_.traces.functions, inputs, calls)
        return model.predict(self.explanation_, inputs, values)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # It fits few lines and explains them by what was called: arbitrary regression data have no such classes.
        tags.regressor_tags.poor_score = True
        return tags


class KLinearClusterer(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """K-means with lines as centroids: X (N, P + 1) are points, the last column being clustered over the others.

    Fitted: `labels_` (N,) with -1 for outliers, `lines_` (K, 1 + P), `n_clusters_` and `ladder_`.
    """

    def __init__(self, n_clusters: int | None = None, random_state: int = 0) -> None:
        self.n_clusters = n_clusters
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> KLinearClusterer:
        """Cluster; `y` is ignored."""
        X = validate_data(self, X, dtype=np.float64, ensure_min_features=2, ensure_min_samples=2)
        traces = _as_traces(X[:, :-1], _no_calls(len(X)), X[:, -1])
        alone = np.arange(len(X))
        try:
            found = cluster(traces, alone, alone, self.n_clusters, self.random_state, _shapes(traces.inputs))
        except CausalError as error:
            raise ValueError(f"{error.message} (n_samples = {len(X)})") from error
        self.clustering_ = found
        self.labels_ = found.labels
        self.lines_ = found.lines
        self.ladder_ = found.ladder
        self.n_clusters_ = found.k
        return self

    def predict(self, X: Any) -> Ints:
        """The nearest line of each point, in standard deviations of its class."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return _nearest(self.clustering_, X[:, :-1], X[:, -1])


def _shapes(inputs: Floats) -> tuple[Shape, ...]:
    """Shapes other than lines are defined for sizes, which are not negative."""
    return SHAPES if (inputs >= 0).all() else (LINEAR,)


def _no_calls(count: int) -> Sparse:
    from scipy import sparse

    return sparse.csc_matrix((count, 0))


def _split(values: Any, inputs: int) -> tuple[Floats, Sparse]:
    from scipy import sparse

    if sparse.issparse(values):
        return np.asarray(values[:, :inputs].todense()), sparse.csc_matrix(values[:, inputs:])
    return values[:, :inputs], sparse.csc_matrix(values[:, inputs:])


def _as_traces(inputs: Floats, calls: Sparse, output: Floats) -> Traces:
    return Traces(
        ids=[str(i) for i in range(len(output))],
        input_names=[f"x{i}" for i in range(inputs.shape[1])],
        inputs=inputs,
        output_name="y",
        output=output,
        functions=[f"{i + inputs.shape[1]:06d}" for i in range(calls.shape[1])],
        calls=calls,
    )


def _same_features(features: Features, names: list[str], inputs: Floats, calls: Sparse) -> Sparse:
    """New call counts in the form of known features; (M, F)."""
    from scipy import sparse

    place = {name: index for index, name in enumerate(names)}
    columns = []
    for feature in features.columns:
        column = np.asarray(calls[:, [place[feature.name]]].todense()).ravel()
        if feature.kind == "called":
            column = (column != 0).astype(np.float64)
        elif feature.kind == "rate":
            column = np.divide(column, inputs[:, 0], out=np.zeros_like(column), where=inputs[:, 0] > 0)
        columns.append(sparse.csc_matrix(column[:, None]))
    return sparse.hstack(columns, format="csc") if columns else sparse.csc_matrix((len(inputs), 0))


def _nearest(clustering: Clustering, inputs: Floats, output: Floats) -> Ints:
    transformed = clustering.shape.transform(inputs)
    lines = clustering.lines
    distance = np.abs(output[:, None] - lines[:, 0] - transformed @ lines[:, 1:].T)
    return np.asarray(np.argmin(distance / clustering.sigma, axis=1), dtype=np.int64)
