"""The estimators behave as scikit-learn expects."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from causal.drt.estimators import DiscriminantRegressor, KLinearClusterer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt_data  # noqa: E402

# Points in blobs are not on lines, so that their clusters are other ones; the others check an optional backend.
NOT_APPLICABLE = {"check_clustering", "check_array_api_input", "check_array_api_same_namespace"}


def checks():
    for estimator in (DiscriminantRegressor(), KLinearClusterer()):
        for each, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if name not in NOT_APPLICABLE:
                yield pytest.param(each, check, id=f"{type(estimator).__name__}-{name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_predicts_new_traces():
    data = drt_data.make_micro("3_1v2", 0).traces
    new = drt_data.make_micro("3_1v2", 1).traces
    model = DiscriminantRegressor().fit(np.hstack([data.inputs, data.calls.toarray()]), data.output)
    assert model.n_clusters_ == 3
    values = np.hstack([new.inputs, new.calls.toarray()])
    assert model.score(values, new.output) > 0.99
    assert model.predict(sparse.csr_matrix(values)) == pytest.approx(model.predict(values))


def test_parameters_survive_cloning():
    model = DiscriminantRegressor(n_clusters=2, tree="optimal")
    assert clone(model).get_params() == model.get_params()


def test_clusters_points_on_lines():
    rng = np.random.default_rng(0)
    x, labels = rng.uniform(1, 10, 300), rng.integers(0, 2, 300)
    points = np.column_stack([x, np.where(labels, 5 * x, x) + 0.01 * rng.standard_normal(300)])
    model = KLinearClusterer().fit(points)
    assert model.n_clusters_ == 2
    assert (model.labels_ == labels).mean() > 0.99
    assert model.predict(np.array([[4.0, 20.0], [4.0, 4.0]])).tolist() == [1, 0]
