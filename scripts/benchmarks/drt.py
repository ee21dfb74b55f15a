"""How well `causal-bpf explain` finds classes that are known: generated traces, several seeds, against other trees.

Every measurement runs in a process of its own, so that its peak memory is its own. Medians over the seeds.
"""

import argparse
import importlib
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import drt_data  # noqa: E402
from benchmarks.machine import describe_machine  # noqa: E402

HEADINGS = ("data", "true K", "K", "agreement", "R2", "accuracy", "leaves", "optimal", "greedy column", "outliers",
            "seconds", "peak MB")  # fmt: skip
SMALL = [*(f"R_{name}" for name in drt_data.MICRO), "SnapBuddy", "FOP"]
LARGE = ["R_6400", "wide"]
# The others need minutes for some of the rest.
FOR_RIVALS = {"R_2_1", "R_3_1v1", "R_4_1v3", "R_5_1", "R_6_1", "R_7_1", "SnapBuddy"}


@dataclass(frozen=True)
class Result:
    """One seed of one kind of data; `right_outliers` are the planted ones among those found."""

    data: str
    true_k: int
    k: int
    agreement: float
    line_r2: float
    r2: float
    accuracy: float
    leaves: int
    optimal_leaves: int | None
    greedy_column: int | None
    smallest_class: float
    outliers: int
    right_outliers: int
    functions: int
    seconds: float
    peak_mb: float = 0.0


def make_data(name: str, seed: int) -> drt_data.Truth:
    """The data called `name` in the list of --only."""
    makers = {"SnapBuddy": drt_data.make_snapbuddy, "FOP": drt_data.make_fop, "R_6400": drt_data.make_r6400,
              "wide": drt_data.make_wide}  # fmt: skip
    return makers[name](seed) if name in makers else drt_data.make_micro(name.removeprefix("R_"), seed)


def agreement(truth: np.ndarray, labels: np.ndarray) -> float:
    """Share of traces, outliers aside, with the right class, classes being matched one to one as well as possible."""
    from scipy.optimize import linear_sum_assignment

    inside = truth >= 0
    table = np.zeros((truth.max() + 1, max(labels.max(), 0) + 1))
    for a, b in zip(truth[inside], labels[inside], strict=True):
        if b >= 0:
            table[a, b] += 1
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / inside.sum())


def measure(name: str, seed: int, method: str = "k-linear") -> Result:
    """Explain one data set; the optimal tree is grown afterwards and not part of the time."""
    from causal.drt.model import Options, explain
    from causal.drt.tree import count_leaves

    data = make_data(name, seed)
    begin = time.perf_counter()
    found = explain(data.traces, Options(method=method))
    seconds = time.perf_counter() - begin
    optimal = explain(data.traces, Options(method=method, tree="optimal")) if name in SMALL else None
    labels = found.clustering.labels
    return Result(
        data=data.name,
        true_k=data.k,
        k=found.clustering.k,
        agreement=agreement(data.labels, labels),
        line_r2=found.clustering.r2,
        r2=found.scores.r2,
        accuracy=found.scores.accuracy,
        leaves=count_leaves(found.tree),
        optimal_leaves=None if optimal is None else count_leaves(optimal.tree),
        greedy_column=data.greedy_leaves,
        smallest_class=float(found.clustering.share.min()),
        outliers=len(found.outliers),
        right_outliers=int((data.labels[found.outliers] < 0).sum()),
        functions=len(found.features_used),
        seconds=seconds,
    )


def in_child(work: Callable[[], object]) -> tuple[object, float]:
    """The result of `work`, done in a forked process, and the peak memory of that in MB."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                pickle.dump(work(), file)
                file.flush()
                os._exit(0)
            except BaseException as error:
                print(f"error: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
        _, status, usage = os.wait4(child, 0)
        if status:
            raise RuntimeError("the measurement failed")
        file.seek(0)
        return pickle.load(file), usage.ru_maxrss / 1024


def measure_all(names: list[str], seeds: int, method: str) -> dict[str, list[Result]]:
    """All seeds of all data, with a word on stderr about each."""
    results: dict[str, list[Result]] = {}
    for name in names:
        results[name] = []
        for seed in range(seeds):
            result, peak = in_child(lambda name=name, seed=seed: measure(name, seed, method))
            results[name].append(Result(**{**asdict(result), "peak_mb": peak}))
        last = results[name][-1]
        print(f"{name}: K {last.k}, {last.leaves} leaves, {last.seconds:.2f} s", file=sys.stderr, flush=True)
    return results


def cells(results: list[Result]) -> tuple[str, ...]:
    """The columns of HEADINGS: medians, and the worst where it differs."""
    first = results[0]

    def middle(name: str, form: str, worst: Callable = min) -> str:
        values = [getattr(each, name) for each in results]
        if values[0] is None:
            return "-"
        median, bad = format(statistics.median(values), form), format(worst(values), form)
        return median if median == bad else f"{median} ({bad})"

    right_k = sum(each.k == each.true_k for each in results)
    outliers = f"{sum(e.right_outliers for e in results)}/{sum(e.outliers for e in results)}"
    return (
        first.data, str(first.true_k), f"{statistics.median(each.k for each in results):g} ({right_k}/{len(results)})",
        middle("agreement", ".4f"), middle("r2", ".4f"), middle("accuracy", ".4f"), middle("leaves", "g", max),
        middle("optimal_leaves", "g", max), "-" if first.greedy_column is None else str(first.greedy_column),
        outliers, middle("seconds", ".2f", max), middle("peak_mb", ".0f", max),
    )  # fmt: skip


def rivals() -> dict[str, Callable]:
    """Other learners that are installed: each takes (X, y), fits, and returns (predictor, leaves)."""
    found: dict[str, Callable] = {"CART": _fit_cart}
    for name, module, fit in (
        ("M5 (m5py)", "m5py", _fit_m5), ("Cubist", "cubist", _fit_cubist),
        ("STreeD piecewise linear", "pystreed", _fit_streed), ("LightGBM linear tree", "lightgbm", _fit_lightgbm),
    ):  # fmt: skip
        try:
            __import__(module)
            found[name] = fit
        except Exception as error:  # some of them fail in other ways than by not being there
            print(f"{name} left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def _fit_cart(x, y):
    from sklearn.tree import DecisionTreeRegressor

    model = DecisionTreeRegressor(random_state=0).fit(x, y)
    return model.predict, model.get_n_leaves()


def _fit_m5(x, y):
    from m5py import M5Prime

    model = M5Prime().fit(x, y)
    return model.predict, model.get_n_leaves()


def _fit_cubist(x, y):
    import pandas as pd
    from cubist import Cubist

    def frame(values):
        return pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])])

    model = Cubist().fit(frame(x), y)
    rules = getattr(model, "rules_", None)
    return lambda new: model.predict(frame(new)), None if rules is None else len(rules)


def _fit_streed(x, y):
    from pystreed import STreeDPiecewiseLinearRegressor

    # Deep enough for all functions where they are few. Its tests are yes or no: the functions. Its lines are over the
    # size alone.
    functions = x.shape[1] - 1
    model = STreeDPiecewiseLinearRegressor(max_depth=functions if functions <= 7 else 4, time_limit=30)
    model.fit(x[:, 1:], y, x[:, :1])
    return lambda new: model.predict(new[:, 1:], new[:, :1]), model.get_n_leaves()


def _fit_lightgbm(x, y):
    import lightgbm

    model = lightgbm.LGBMRegressor(linear_tree=True, n_estimators=100, verbose=-1, num_threads=1).fit(x, y)
    return model.predict, int(model.booster_.trees_to_dataframe()["split_feature"].isna().sum())


def measure_rival(fit: Callable, data: drt_data.Truth) -> dict[str, float | None]:
    """R^2 by five folds, leaves and seconds of one fit to everything."""
    x = np.column_stack([data.traces.inputs, data.traces.calls.toarray()])
    y = data.traces.output
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, leaves = fit(x, y)
        seconds = time.perf_counter() - begin
        fold = np.random.default_rng(0).permutation(len(y)) % 5
        predicted = np.empty(len(y))
        for part in range(5):
            predict, _ = fit(x[fold != part], y[fold != part])
            predicted[fold == part] = predict(x[fold == part])
    r2 = 1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return {"r2": float(r2), "leaves": leaves, "seconds": seconds}


def compare(names: list[str]) -> list[tuple[str, ...]]:
    """Rows of data, learner, R^2, leaves, seconds: seed 0 only, for the rivals are slow."""
    rows = [("data", "learner", "R2", "leaves", "seconds")]
    for name in names:
        data = make_data(name, 0)
        for rival, fit in rivals().items():
            try:
                found, _ = in_child(lambda fit=fit, data=data: measure_rival(fit, data))
                leaves = "-" if found["leaves"] is None else f"{found['leaves']:,}"
                rows.append((data.name, rival, f"{found['r2']:.4f}", leaves, f"{found['seconds']:.2f}"))
            except RuntimeError as error:
                rows.append((data.name, rival, str(error), "-", "-"))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def render(rows: list[tuple[str, ...]]) -> str:
    """Aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def conditions(options: argparse.Namespace) -> str:
    """On what, and how often."""
    machine = describe_machine()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return (
        f"{machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, OMP_NUM_THREADS {threads}; "
        f"{options.seeds} seeds, method {options.method}"
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench drt", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds per kind of data (default 10)")
    parser.add_argument("--only", action="append", metavar="DATA", choices=[*SMALL, *LARGE],
                        help=f"repeatable; one of {', '.join([*SMALL, *LARGE])} (default: the small ones)")  # fmt: skip
    parser.add_argument("--large", action="store_true", help="also R_6400 and wide, one seed each")
    parser.add_argument("--method", default="k-linear", choices=("k-linear", "spectral"))
    parser.add_argument("--rivals", action="store_true", help="also other learners, where they are installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables as Markdown")
    return parser


def main(arguments: list[str]) -> int:
    """Runs the benchmark."""
    options = make_parser().parse_args(arguments)
    names = options.only or SMALL
    # Imported once here, not in every child, where it would count.
    for module in ("causal.drt.model", "sklearn.tree", "scipy.optimize"):
        importlib.import_module(module)
    results = measure_all(names, options.seeds, options.method)
    if options.large and not options.only:
        results |= measure_all(LARGE, 1, options.method)
    table = [HEADINGS, *(cells(each) for each in results.values())]
    other = compare([name for name in names if name in FOR_RIVALS]) if options.rivals else []
    if options.json:
        print(json.dumps({"machine": describe_machine(), "results": {k: [asdict(r) for r in v] for k, v in
                          results.items()}, "rivals": other}, indent=2))  # fmt: skip
    else:
        print(render(table), f"\n{conditions(options)}")
        if other:
            print(f"\n{render(other)}")
    if options.markdown:
        parts = [markdown(table), f"Measured on {conditions(options)}.", *([markdown(other)] if other else [])]
        options.markdown.write_text("\n\n".join(parts) + "\n")
    return 0
