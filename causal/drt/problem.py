"""The clustering problem in numbers: scaled inputs and output, and how the scatter grows with the input.

Times scatter more where they are longer. The scatter of a trace is modelled as sigma_k * v(x): a factor of its class
and a function of its inputs alone, v(x) = m(x)^theta with m(x) the output expected of any trace of that size. Since
v is the same for all classes, dividing everything by it leaves ordinary least squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from causal.drt.shapes import Shape
from causal.drt.traces import Floats

# Constant scatter, as of counts, in proportion to the output: the three laws of measured quantities.
THETAS = (1.0, 0.0, 0.5)
# A trace is never trusted to scatter less than one hundredth of what a typical trace does under v.
_SMALLEST_EXPECTED = 0.01
# A class scatters by at least this share of the typical output: below 0.1 % there are timers and rounding, not classes.
_SMALLEST_SIGMA = 1e-3


@dataclass(frozen=True)
class Problem:
    """Of N traces: `design` (N, Q) with rows (1, x...) / v and `target` (N,) y / v, both without units.

    `scatter` (N,) is v, with geometric mean 1, so that likelihoods under different theta can be compared. A line in
    these units is turned into the user's by `to_user`.
    """

    design: Floats
    target: Floats
    scatter: Floats
    shape: Shape
    theta: float
    input_scale: Floats
    output_scale: float

    @property
    def smallest_sigma(self) -> float:
        """The floor of a class's scatter."""
        return _SMALLEST_SIGMA * float(np.sqrt(np.mean(self.target**2)))

    @property
    def spread(self) -> float:
        """The range of targets: an outlier may be anywhere in it."""
        return max(float(np.ptp(self.target)), self.smallest_sigma)

    def to_user(self, lines: Floats) -> Floats:
        """Lines (K, Q) in the user's units: intercept first, then a slope per transformed input."""
        return np.asarray(lines * self.output_scale / np.concatenate([[1.0], self.input_scale]))


def make_problem(inputs: Floats, output: Floats, shape: Shape, theta: float) -> Problem:
    """Scale and weight the (N, P) inputs and the (N,) output."""
    from scipy.optimize import nnls

    transformed = shape.transform(inputs)
    input_scale = np.sqrt(np.mean(transformed**2, axis=0))
    input_scale[input_scale == 0] = 1.0
    output_scale = float(np.sqrt(np.mean(output**2))) or 1.0
    design = np.column_stack([np.ones(len(output)), transformed / input_scale])
    target = output / output_scale
    # Not negative, so that the expected output never is.
    coefficients = nnls(design.T @ design, design.T @ target)[0]
    expected = design @ coefficients
    # Inputs and outputs below 0, which traces never have, may expect nothing: equal scatter then.
    mean = float(expected.mean())
    scatter = np.maximum(expected, _SMALLEST_EXPECTED * mean) ** theta if mean > 0 else np.ones(len(output))
    scatter /= np.exp(np.log(scatter).mean())
    return Problem(design / scatter[:, None], target / scatter, scatter, shape, theta, input_scale, output_scale)
