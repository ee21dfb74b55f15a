"""Option values: durations, lists of speedups, numbers."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.arguments import duration, percents, positive
from cli.arguments import given as given_speedup


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30), ("30s", 30), ("1.5s", 1.5), (" 2m ", 120), ("2min", 120), ("1h", 3600), ("500ms", 0.5),
        ("250us", 250e-6), ("100ns", 1e-7),
    ],
)  # fmt: skip
def test_durations(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "0.0m", "-3", "s", "3 s", "3d", "1e3", "nan", "inf", "1:30", "1,5s"])
def test_what_is_no_duration(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("25", [25]), ("50,25", [25, 50]), ("25%, 50%", [25, 50]), ("0,10,20-50", [10, 20, 25, 30, 35, 40, 45, 50]),
        ("100", [100]), ("98-100", [98, 100]), ("5-5", [5]), ("20-40,25", [20, 25, 30, 35, 40]),
        ("1-12", [1, 6, 11, 12]),
    ],
)  # fmt: skip
def test_speedups(text, levels):
    assert percents(text) == levels


@pytest.mark.parametrize("text", ["", "0", "101", "50-40", "90-110", "-5", "x", "25,,50", "25;50", "2.5", "10-20-30"])
def test_what_is_no_list_of_speedups(text):
    with pytest.raises(argparse.ArgumentTypeError):
        percents(text)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted), min_size=1))
def test_any_list_of_ranges(ranges):
    text = ",".join(f"{low}-{high}" for low, high in ranges)
    if all(high == 0 for _, high in ranges):
        with pytest.raises(argparse.ArgumentTypeError):
            percents(text)
        return
    levels = percents(text)
    assert levels == sorted(set(levels)) and levels[0] >= 1 and levels[-1] == max(high for _, high in ranges)
    assert all(any(low <= level <= high for low, high in ranges) for level in levels)
    assert {bound for pair in ranges for bound in pair} - {0} <= set(levels)


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("16384", 16384)])
def test_whole_numbers(text, value):
    assert positive(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "1e3"])
def test_what_is_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        positive(text)


def test_what_is_given():
    assert given_speedup("parse=50%") == ("parse", 0.5)
    assert given_speedup("operator==(int)=7.5") == ("operator==(int)", 0.075)
    for text in ("parse", "parse=", "=50%", "parse=0%", "parse=101%", "parse=fast", "50%"):
        with pytest.raises(argparse.ArgumentTypeError, match="such as parse=50%"):
            given_speedup(text)
