"""Which regions the target spends its time in of late, running or waiting: what experiments are drawn by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from causal.windows import EngineOptions

_FADING = 0.8
# While n threads wait in the selected region, virtual time passes 1 + n times more slowly at a speedup of 100 %: with
# more of them there would be no time for anything else.
_CROWD = 6.0


class Counts(Protocol):
    """What is needed of the engine."""

    options: EngineOptions

    def region_samples(self) -> npt.NDArray[np.uint64]: ...
    def region_waits(self, finished: bool = False) -> Mapping[int, int]: ...


class RecentActivity:
    """Weights of regions by id, in samples; what is long past counts less. Call `update` after each window.

    Waiting counts like running, but as one thread in each region: else a pool with nothing to do would be all there
    is. `fading`: what is left of a weight with each look. `crowds`: regions in which too many threads wait at once for
    an experiment -> how many.
    """

    def __init__(self, kernel: Counts, now_ns: Callable[[], int], fading: float = _FADING) -> None:
        self._kernel, self._now_ns, self._fading = kernel, now_ns, fading
        self._samples: npt.NDArray[np.uint64] | None = None
        self._waits: Mapping[int, int] = {}
        self._finished: Mapping[int, int] = {}
        self._looked_ns = now_ns()
        self.weights: dict[int, float] = {}
        self.crowds: dict[int, float] = {}

    def update(self) -> None:
        """Look at what was counted since the last call."""
        for region in self.weights:
            self.weights[region] *= self._fading
        samples = self._kernel.region_samples()
        fresh = samples if self._samples is None else samples - self._samples
        self._samples = samples
        for found in np.flatnonzero(fresh):
            self._add(int(found), float(fresh[found]))
        self._add_waits()

    def _add_waits(self) -> None:
        # Together they are smooth, however long a wait is; only what comes to an end has something to gain.
        waits, finished, now_ns = self._kernel.region_waits(False), self._kernel.region_waits(True), self._now_ns()
        elapsed_ns = max(now_ns - self._looked_ns, 1)
        for region, spent_ns in waits.items():
            at_once = (spent_ns - self._waits.get(region, 0)) / elapsed_ns
            if at_once > 0 and finished.get(region, 0) > self._finished.get(region, 0):
                self._add(region, min(at_once, 1.0) * elapsed_ns / self._kernel.options.period_ns)
            if at_once > _CROWD:
                self.crowds[region] = at_once
        self._waits, self._finished, self._looked_ns = waits, finished, now_ns

    def _add(self, region: int, weight: float) -> None:
        self.weights[region] = self.weights.get(region, 0.0) + weight
