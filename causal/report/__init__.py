"""Views of an analysis: each renders the same values for another reader.

A view is a class with one method; it writes to what it was made with, and computes nothing that another view may need.
"""

from __future__ import annotations

from typing import Protocol

from causal.analysis.results import Analysis


class Reporter(Protocol):
    """A view of an analysis."""

    def render(self, analysis: Analysis) -> None:
        """Writes the whole report."""
