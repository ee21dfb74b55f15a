"""How cost may grow with the input: in proportion, as n log n, as n squared, or with some power of it.

A shape transforms the inputs; whatever follows fits lines in the transformed inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from causal.drt.traces import Floats


@dataclass(frozen=True)
class Shape:
    """A transformation of inputs; `exponent` is used by `power` alone."""

    name: str
    exponent: float = 1.0

    @property
    def free_parameters(self) -> int:
        """Numbers that were fitted to choose it."""
        return 1 if self.name == "power" else 0

    def transform(self, inputs: Floats) -> Floats:
        """The transformed inputs; (N, P) to (N, P), finite and not negative for inputs that are."""
        if self.name == "n log n":
            return np.asarray(inputs * np.log2(1.0 + inputs))
        return inputs if self.name == "linear" else np.asarray(inputs**self.exponent)

    def term(self, name: str) -> str:
        """How an input appears in a formula."""
        if self.name == "n log n":
            return f"{name} log2(1 + {name})"
        return name if self.name == "linear" else f"{name}^{self.exponent:g}"


LINEAR = Shape("linear")
N_LOG_N = Shape("n log n")
SQUARE = Shape("square", 2.0)
# Exponents between and beyond the named shapes, at the resolution at which costs differ in practice.
POWERS = tuple(Shape("power", exponent) for exponent in (0.5, 1.5, 2.5, 3.0))
SHAPES = (LINEAR, N_LOG_N, SQUARE, *POWERS)
