"""Traces with a known truth, of the kinds that discriminant regression trees were published on; seeded.

Micro-benchmarks ("R_m"), an image-sharing server with filters, a document formatter with outliers, and wide data.
The numbers behind each are those published (Tizpaz-Niari et al., AAAI 2018); the data are made here.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from causal.drt.traces import Traces

OUTLIER = -1


@dataclass(frozen=True)
class Truth:
    """Traces and the class of each; `k` classes, `leaves` of the smallest perfect tree where that is known."""

    name: str
    traces: Traces
    labels: np.ndarray
    k: int
    leaves: int | None = None
    greedy_leaves: int | None = None


@dataclass(frozen=True)
class Micro:
    """One of the R_m family: `table` gives the class for each combination of m functions, the first the high bit."""

    rows: int
    m: int
    slopes: tuple[float, ...]
    table: str
    leaves: int
    greedy_leaves: int
    sizes: tuple[int, int] = (1, 100)
    intercept: float = 0.0


MICRO = {
    "2_1": Micro(400, 2, (0, 1170, 2336), "0112", 4, 4),
    "3_1v1": Micro(800, 3, (607, 1215), "01101001", 8, 8),
    "3_1v2": Micro(800, 3, (0, 1155, 2305), "02100121", 6, 7),
    "4_1v1": Micro(1600, 4, (0, 1163, 2320), "0102011201020212", 7, 7, intercept=3700),
    "4_1v2": Micro(1156, 4, (0, 612, 1226, 2450), "0113021302130213", 6, 6, (1, 73)),
    "4_1v3": Micro(1600, 4, (0, 1157, 2314), "0211102102102102", 12, 15),
    "5_1": Micro(3200, 5, (0, 1273, 2544), "02201101111120020212212212112000", 20, 24),
    "6_1": Micro(6400, 6, (0, 2294, 4627, 6928),
                 "0000000100010002000100020102122300010002000203330012033303333333", 37, 40),
    "7_1": Micro(12800, 7, (0, 2824, 5702, 8496),
                 "000000000000001100000011000000220-000011000000220011002211222233"
                 "0000001100000022000000220033333300001122003333330033333333333333", 37, 41, (10, 249)),
}  # fmt: skip


def make_micro(name: str, seed: int) -> Truth:
    """R_m: cost = level * slope * size with relative noise of 0.3 to 3 % (drawn per seed), and a timer's resolution."""
    case = MICRO[name]
    rng = np.random.default_rng([seed, sorted(MICRO).index(name)])
    seen = np.array([digit != "-" for digit in case.table])
    table = np.array([int(digit) if digit != "-" else 0 for digit in case.table])
    low, high = case.sizes
    if name == "7_1":
        size = rng.integers(low, high + 1, case.rows)
    else:
        size = np.sort(np.resize(np.arange(low, high + 1), case.rows))
    index = rng.choice(np.flatnonzero(seen), case.rows)
    labels = table[index]
    noise = np.exp(rng.uniform(np.log(0.003), np.log(0.03)))
    slopes = np.array(case.slopes)
    intercepts = case.intercept * np.arange(len(slopes)) / (len(slopes) - 1)
    cost = (intercepts[labels] + slopes[labels] * size) * (1 + noise * rng.standard_normal(case.rows))
    cost = np.abs(cost + rng.standard_normal(case.rows))
    bits = (index[:, None] >> np.arange(case.m - 1, -1, -1)) & 1
    traces = make_traces(size, cost, [f"f{i}" for i in range(case.m)], bits)
    return Truth(f"R_{name}", traces, labels, len(slopes), case.leaves, case.greedy_leaves)


def make_traces(size, cost, names, calls, output="time", inputs=("size",)) -> Traces:
    """Traces with numbered ids; `calls` may be dense or sparse."""
    size = np.asarray(size, dtype=float)
    return Traces(
        ids=[f"t{i}" for i in range(len(cost))],
        input_names=list(inputs),
        inputs=size.reshape(len(cost), -1),
        output_name=output,
        output=np.asarray(cost, dtype=float),
        functions=list(names),
        calls=sparse.csc_matrix(calls, dtype=float),
    )


def make_snapbuddy(seed: int) -> Truth:
    """616 requests to an image server: three filters, on or off; five lines that meet at small images."""
    rng = np.random.default_rng([seed, 100])
    filters = np.repeat(np.arange(8), 77)
    rng.shuffle(filters)
    kaleidoscope, tritone, emboss = filters >> 2 & 1, filters >> 1 & 1, filters & 1
    labels = 2 * kaleidoscope + tritone + emboss
    slopes = np.array([0.00131, 0.00747, 0.01404, 0.02049, 0.02644])
    intercepts = np.array([283.9, 206.9, 122.4, 46.3, 11.8])
    scatter = np.interp(slopes, [slopes[0], slopes[-1]], [19, 83])
    size = rng.integers(13_284, 145_063, 616)
    cost = slopes[labels] * size + intercepts[labels] + scatter[labels] * rng.standard_normal(616)
    on = {"Kaleidoscope": kaleidoscope, "Tritone": tritone, "Emboss": emboss, "Any": np.minimum(filters, 1),
          "None": 1 - np.minimum(filters, 1)}  # fmt: skip
    names = [f"{name}.{method}" for name in on for method in ("filter", "prepare")]
    columns = [column for column in on.values() for _ in range(2)]
    names += [f"unused{i}" for i in range(100)] + [f"always{i}" for i in range(35)]
    columns += [np.zeros(616)] * 100 + [np.ones(616)] * 35
    traces = make_traces(size, np.maximum(cost, 1.0), names, np.column_stack(columns), "time_ms", ("size_bytes",))
    return Truth("SnapBuddy", traces, labels, 5, 8)


def make_fop(seed: int, methods: int = 2000) -> Truth:
    """1,988 documents: fast ones, two slow branches, and six outliers; calls of methods come in modules."""
    rng = np.random.default_rng([seed, 200])
    n = 1988
    size = rng.uniform(1, 100, n)
    rgb = rng.random(n) < 0.35
    profile = np.where(rgb, rng.integers(0, 4, n), 0)
    overflow = rgb & (rng.random(n) < 0.25)
    labels = np.where(rgb & (profile > 1), 2, np.where(overflow, 1, 0))
    slopes = np.array([0.0007, 0.0231, 0.0500])
    cost = (0.02 + slopes[labels] * size) * (1 + 0.04 * rng.standard_normal(n))
    outside = rng.choice(n, 6, replace=False)
    cost[outside] = cost.max() * rng.uniform(1.2, 2.5, 6)
    labels = labels.copy()
    labels[outside] = OUTLIER
    names = ["RGBEncoder.encode", "ICCProfile.read", "OverflowHandler.handle", "RGBEncoder.row"]
    columns = [rgb, profile, overflow, rgb * np.round(size * 10)]
    modules = rng.random((60, n)) < rng.uniform(0.02, 0.98, 60)[:, None]
    for number in range(methods - len(names)):
        module = number % 60
        often = np.round(size * rng.uniform(0.5, 3)) if number % 3 == 0 else rng.integers(1, 4)
        names.append(f"Module{module}.method{number}")
        columns.append(modules[module] * often)
    traces = make_traces(size, cost, names, np.column_stack(columns), "time_s", ("size_100kB",))
    return Truth("FOP", traces, labels, 3)


def make_wide(seed: int, rows: int = 100_000, functions: int = 6_400, density: float = 0.02) -> Truth:
    """Sparse Poisson counts, a quarter of the columns duplicates, and the class decided by three of the functions."""
    rng = np.random.default_rng([seed, 300])
    table = rng.permutation([0, 0, 1, 1, 2, 2, 3, 3])
    deciding = rng.random((rows, 3)) < 0.5
    labels = table[deciding @ np.array([4, 2, 1])]
    size = rng.uniform(10, 1000, rows)
    cost = 50 + (1 + labels) * 3.0 * size
    cost = np.maximum(cost * (1 + 0.02 * rng.standard_normal(rows)), 0)
    own = functions * 3 // 4
    entries = int(rows * own * density)
    counts = sparse.csc_matrix(
        (rng.poisson(2.0, entries) + 1.0, (rng.integers(0, rows, entries), rng.integers(0, own, entries))),
        shape=(rows, own),
    )
    copies = counts[:, rng.integers(0, own, functions - own)]
    calls = sparse.hstack([sparse.csc_matrix(deciding, dtype=float), counts[:, 3:], copies], format="csc")
    names = ["decide_a", "decide_b", "decide_c", *(f"g{i}" for i in range(calls.shape[1] - 3))]
    return Truth(f"wide {rows:,} x {functions:,}", make_traces(size, cost, names, calls), labels, 4)


def make_r6400(seed: int) -> Truth:
    """R_6400: as R_6_1, but six functions among 6,400, every one called in half of the traces."""
    case = MICRO["6_1"]
    base = make_micro("6_1", seed)
    rng = np.random.default_rng([seed, 400])
    bits = sparse.csc_matrix(rng.random((case.rows, 6394)) < 0.5, dtype=float)
    calls = sparse.hstack([base.traces.calls, bits], format="csc")
    names = [*base.traces.functions, *(f"other{i}" for i in range(6394))]
    traces = make_traces(base.traces.inputs[:, 0], base.traces.output, names, calls)
    return Truth("R_6400", traces, base.labels, base.k, case.leaves, case.greedy_leaves)
