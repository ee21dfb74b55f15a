"""Two profiles before and after a change: what was predicted, what happened, whether they agree."""

import argparse
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from causal.analysis.comparison import Change, compare_profiles
from causal.errors import UsageError
from causal.profile import End, Header, Profile, ProfileWriter, ProgressPoint, Region, Visits, Window
from causal.report.comparison import ComparisonReporter
from cli.arguments import percent
from cli.compare import EXIT_REGRESSION, CompareCommand

SECOND, PERIOD_NS = 10**9, 10**6
LEVELS = (0.25, 0.5, 0.75, 1.0)


def profile_of(costs_ms, seed=1, point="done", noise=0.01, pairs=24):
    """A program that does its functions one after the other, so that each gains s times its share of the round."""
    rng = np.random.default_rng(seed)
    round_ms = sum(costs_ms.values())
    windows = []

    def window(region, arm, pair, level, saved_ms):
        visits = round(1000 / (round_ms - saved_ms) * rng.normal(1.0, noise))
        busy = round(SECOND / PERIOD_NS)
        return Window(region, arm, pair, level, level if arm == "treated" else 0.0, SECOND, SECOND,
                      samples=busy, selected_samples=busy // 10, points=(Visits(point, visits),))  # fmt: skip

    for region, cost in costs_ms.items():
        for pair in range(pairs):
            level = LEVELS[pair % 4]
            windows.append(window(region, "treated", pair, level, level * cost))
            windows.append(window(region, "placebo", pair, level, 0.0))
    windows += [window("", "plain", 0, 0.0, 0.0) for _ in range(10)]
    samples = {region: round(100_000 * cost / round_ms) for region, cost in costs_ms.items()}
    return Profile(
        Header("test", ("prog",), 1, "", {"cpus": 2}, progress_points=(ProgressPoint(point),)),
        tuple(Region(name, "function") for name in costs_ms), tuple(windows), samples,
        end=End("duration", 0, 100_000, 100_000, PERIOD_NS, 60 * SECOND),
    )  # fmt: skip


BEFORE = {"parse": 4.0, "store": 5.0, "log": 1.0}


def text_of(comparison, width=100, encoding="utf-8"):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    ComparisonReporter(Console(file=out, width=width)).render(comparison)
    out.flush()
    return raw.getvalue().decode(encoding)


def test_a_predicted_gain_that_came_true():
    comparison = compare_profiles(profile_of(BEFORE), profile_of(BEFORE | {"parse": 2.0}, seed=2))
    (point,) = comparison.points
    assert point.change is Change.FASTER and point.observed.gain == pytest.approx(0.2, abs=0.01)
    (changed,) = point.changed
    assert changed.region == "parse" and changed.speedup.gain == pytest.approx(0.5, abs=0.02)
    assert changed.cost_before_ns == pytest.approx(4e6, rel=0.02) and changed.cost_after_ns == pytest.approx(
        2e6, rel=0.02
    )
    assert point.predicted.gain == pytest.approx(0.2, abs=0.01) and point.agrees and not changed.extrapolated
    assert comparison.regressed == ()


def test_a_gain_that_was_not_predicted():
    # The change made something else faster, too, that the samples do not see: waiting.
    after = profile_of(BEFORE | {"parse": 2.0}, seed=2)
    doubled = tuple(
        Window(**{name: getattr(w, name) for name in w.__slots__} | {"points": (Visits("done", 2 * w.points[0].delta),),
                  "samples": 2 * w.samples})
        for w in after.windows
    )  # fmt: skip
    (point,) = compare_profiles(profile_of(BEFORE), Profile(after.header, after.regions, doubled, after.samples,
                                                            end=after.end)).points  # fmt: skip
    assert point.agrees is False


def test_several_changes_are_taken_together():
    after = profile_of({"parse": 2.0, "store": 2.5, "log": 1.0}, seed=3)
    (point,) = compare_profiles(profile_of(BEFORE), after).points
    assert {item.region for item in point.changed} == {"parse", "store"}
    # 1 - (1 - 0.2) * (1 - 0.25): gains of parts of a sum add up to a little more.
    assert point.predicted.gain == pytest.approx(0.4, abs=0.02) and point.observed.gain == pytest.approx(0.45, abs=0.02)


def test_what_had_no_number_is_not_predicted():
    before = profile_of(BEFORE)
    without = tuple(window for window in before.windows if window.region != "parse")
    before = Profile(before.header, before.regions, without, before.samples, end=before.end)
    (point,) = compare_profiles(before, profile_of(BEFORE | {"parse": 2.0}, seed=2)).points
    assert point.predicted is None and point.agrees is None and point.changed[0].predicted is None
    assert "nothing was predicted" in text_of(compare_profiles(before, profile_of(BEFORE | {"parse": 2.0}, seed=2)))


def test_a_region_made_slower_is_extrapolated():
    (point,) = compare_profiles(profile_of(BEFORE), profile_of(BEFORE | {"parse": 6.0}, seed=2)).points
    (changed,) = point.changed
    assert point.change is Change.SLOWER and changed.extrapolated
    assert changed.predicted.gain == pytest.approx(-0.2, abs=0.02) and point.agrees


@pytest.mark.parametrize(
    ("cost", "tolerance", "change"),
    [(4.0, 0.01, Change.SAME), (4.6, 0.01, Change.SLOWER), (4.6, 0.1, Change.SAME), (3.4, 0.01, Change.FASTER)],
)
def test_changes_within_the_tolerance_are_none(cost, tolerance, change):
    comparison = compare_profiles(profile_of(BEFORE), profile_of(BEFORE | {"parse": cost}, seed=5), tolerance)
    assert comparison.points[0].change is change
    assert comparison.regressed == (("done",) if change is Change.SLOWER else ())


def test_no_change_is_hardly_ever_called_one():
    before = profile_of(BEFORE, noise=0.05)
    changes = [compare_profiles(before, profile_of(BEFORE, seed, noise=0.05), 0.0).points[0].change
               for seed in range(10, 25)]  # fmt: skip
    assert sum(change is not Change.SAME for change in changes) <= 2


def test_no_point_in_common():
    with pytest.raises(UsageError, match="done before, other after") as caught:
        compare_profiles(profile_of(BEFORE), profile_of(BEFORE, point="other"))
    assert "-p" in caught.value.hint


def test_too_few_windows_are_no_observation():
    before = profile_of(BEFORE)
    (point,) = compare_profiles(before, Profile(before.header)).points
    assert point.observed is None and point.change is Change.UNKNOWN and point.agrees is None


# The report and the command


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (60, "utf-8"), (100, "utf-8"), (100, "ascii")])
def test_the_text_says_predicted_and_observed(width, encoding):
    costs = {"[parse]:1": 4.0, "größe": 5.0}
    comparison = compare_profiles(profile_of(costs), profile_of(costs | {"[parse]:1": 2.0}, seed=2))
    text = text_of(comparison, width, encoding)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "observed: faster, 22" in flat and "they agree" in flat and "[parse]:1" in flat and "Next: gr" in flat


def write(path, profile):
    with ProfileWriter(path) as writer:
        writer.header(profile.header)
        for window in profile.windows:
            writer.window(window)
        for region, count in profile.samples.items():
            writer.samples(region, count)
        writer.end(profile.end)
    return str(path)


def run(*arguments):
    parser = argparse.ArgumentParser()
    CompareCommand().prepare_parser(parser)
    return CompareCommand().run(parser.parse_args(arguments))


def test_regressions_have_an_exit_code_of_their_own(tmp_path, capsys):
    fast = write(tmp_path / "fast", profile_of(BEFORE))
    slow = write(tmp_path / "slow", profile_of(BEFORE | {"parse": 6.0}, seed=2))
    assert run(fast, slow) == 0
    assert run(fast, slow, "--fail-on-regression") == EXIT_REGRESSION == 3
    assert run(slow, fast, "--fail-on-regression") == 0
    assert run(fast, slow, "--fail-on-regression", "--tolerance", "50%") == 0
    capsys.readouterr()
    assert run(fast, slow, "--json", "--fail-on-regression") == 3
    value = json.loads(capsys.readouterr().out)
    assert value["regressed"] == ["done"] and value["points"][0]["change"] == "slower"
    assert value["points"][0]["regions"][0]["region"] == "parse"
    assert value["points"][0]["observed"]["value"] == pytest.approx(-0.2, abs=0.02)


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), ("3", 0.03), (" 0.5 % ", 0.005), ("0", 0.0)])
def test_percentages(text, value):
    assert percent(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "-1", "101", "x%", "nan", "1e1"])
def test_what_is_no_percentage(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a percentage"):
        percent(text)


def test_a_program_that_does_not_exist_is_not_compared():
    before = profile_of(BEFORE)
    given = replace(before, header=replace(before.header, options={"given": {"parse": 0.5}}))
    for pair in ((given, before), (before, given)):
        with pytest.raises(UsageError, match="--given"):
            compare_profiles(*pair)


def test_code_that_was_replaced_under_another_name():
    renamed = {"parse_vectorised": 2.0, "store": 5.0, "log": 1.0}
    comparison = compare_profiles(profile_of(BEFORE), profile_of(renamed, seed=2))
    (changed,) = comparison.points[0].changed
    assert changed.region == "parse" and changed.speedup.gain == pytest.approx(0.5, abs=0.02)
    assert comparison.points[0].agrees
    assert "parse_vectorised is new and taken for what became of parse" in comparison.notes
    # What is gone without anything new is all saved.
    (changed,) = compare_profiles(profile_of(BEFORE), profile_of({"store": 5.0, "log": 1.0}, seed=2)).points[0].changed
    assert changed.speedup.gain == pytest.approx(1.0)
