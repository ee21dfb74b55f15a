"""Option values that argparse has no type for: durations and lists of speedups."""

from __future__ import annotations

import argparse
import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_STEP = 5


def duration(text: str) -> float:
    """Seconds in `30`, `30s`, `500ms`, `2m` or `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|min|m|h|)", text.strip())
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS[match[2]]


def percents(text: str) -> list[int]:
    """Virtual speedups in percent: `25,50` or `20-50`, which means steps of 5. 0 (the placebo) is always there."""
    levels: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*%?", part)
        if not match:
            raise argparse.ArgumentTypeError(f"{part!r} is not a speedup such as 25 or a range such as 20-50")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= 100:
            raise argparse.ArgumentTypeError(f"{part!r}: speedups go from 0 to 100 percent")
        levels.update(range(first, last + 1, _STEP))
        levels.add(last)
    levels.discard(0)
    if not levels:
        raise argparse.ArgumentTypeError("give at least one speedup above 0")
    return sorted(levels)


def given(text: str) -> tuple[str, float]:
    """A region and the fraction by which it is faster: `parse=50%`. Names may contain `=` themselves."""
    name, _, amount = text.rpartition("=")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", amount)
    if not name or not match or not 0 < float(match[1]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a region and its speedup such as parse=50%")
    return name, float(match[1]) / 100


def percent(text: str) -> float:
    """A fraction: `3%`, `3` and `0.5%` are percent."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", text)
    if not match or float(match[1]) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage such as 3%")
    return float(match[1]) / 100


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def share(text: str) -> float:
    """A share of the whole in percent: `10` or `2.5%`, from 0.5 to 50, as a fraction."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip())
    if not match or not 0.5 <= float(match[1]) <= 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage between 0.5 and 50")
    return float(match[1]) / 100


def fraction(text: str) -> float:
    """A share of something: `5%` or `0.05`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 5% or 0.05")
    return value
