"""The report for programs: one JSON object, speedups as fractions, null for what is not known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from causal.analysis.results import Analysis, Diagnosis, PointResult, RegionResult

REPORT_VERSION = 1


class JsonReporter:
    """Writes the report as a JSON object, in ASCII, followed by a newline."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def render(self, analysis: Analysis) -> None:
        """Writes the whole report."""
        json.dump(report_object(analysis), self._out, indent=2, allow_nan=False)
        self._out.write("\n")


def report_object(analysis: Analysis) -> dict[str, Any]:
    """The report as JSON values: the complete form, whatever is known of it."""
    report = {
        "version": REPORT_VERSION,
        "progress_points": list(analysis.progress_points),
        "regions": [_region(result) for result in analysis.regions],
        "overhead": {
            "startup_s": analysis.overhead.startup_s,
            "sampling": analysis.overhead.sampling,
            "delays": analysis.overhead.delays,
            "undisturbed_rate": analysis.overhead.undisturbed,
        },
        "diagnosis": _diagnosis(analysis.diagnosis),
    }
    if analysis.waits:
        report["waits"] = dict(analysis.waits)
        report["waits_by_region"] = {region: dict(kinds) for region, kinds in analysis.places.items()}
    if not analysis.regions and analysis.shares:  # what is known without experiments
        report |= {
            "shares": dict(analysis.shares),
            "serial_shares": dict(analysis.serial_shares),
            "rates": dict(analysis.rates),
        }
    checked = plain_values(report)
    assert isinstance(checked, dict)
    return checked


def _region(result: RegionResult) -> dict[str, Any]:
    # Only lines and files are somewhere in the sources.
    place = {"source": result.source, "function": result.function} if result.source else {}
    return {
        "region": result.region,
        "unit": result.unit,
        "progress_point": result.progress_point,
        "kind": result.kind,
        "unit_of_point": result.unit_of_point,
        "baseline_rate": result.baseline_rate,
        "cpu_share": result.cpu_share,
        "off_cpu_share": result.off_cpu_share,
        "serial_share": result.serial_share,
        "slope": result.slope,
        "slope_ci": result.slope_ci,
        "knee": result.knee,
        "p_value": result.p_value,
        "verdict": result.explanation,
        "phase_factor": result.phase_factor,
        "points": [_point(point) for point in result.points],
        **place,
    }


def _point(point: PointResult) -> dict[str, Any]:
    return {
        "speedup": point.speedup,
        "program_speedup": point.program_speedup,
        "ci": point.ci,
        "raw": point.raw,
        "experiments": point.experiments,
        "visits": point.visits,
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    conclusion = [] if diagnosis.conclusion is None else [diagnosis.conclusion]
    return {
        "experiments": diagnosis.experiments,
        "samples": diagnosis.samples,
        "samples_in_scope": diagnosis.samples_in_scope,
        "visits": diagnosis.visits,
        "stacks_truncated": diagnosis.stacks_truncated,
        "stacks": None if diagnosis.stacks is None else asdict(diagnosis.stacks),
        "signals_lost": diagnosis.signals_lost,
        "pause_error_p99_ns": diagnosis.pause_error_p99_ns,
        "messages": conclusion + list(diagnosis.messages),
    }


def plain_values(value: Any) -> Any:
    """The value with None for NaN and infinity: JSON has neither, and Python's writer would emit them all the same."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_values(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
