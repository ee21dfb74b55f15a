"""Stacks as regions: split by call site, and inclusive of what is called."""

from tests.kernel.profiler import AHEAD_OF_OTHERS


def shares(recording):
    profile = recording.profile
    return {name: count / profile.end.samples for name, count in profile.samples.items()}


def test_a_function_from_one_of_its_callers(record, workloads):
    """The truth is 50 % for one call site, nothing for the other, and 100 % for the function as a whole."""
    options = ["--duration", "9s", "--speedups", "100", "--callers", "--only", "work_a from on_the_way"]
    recording = record(workloads / "sites", 8000, 4000, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    assert 0.3 < recording.gain("work_a from on_the_way") < 0.7
    seen = shares(recording)
    assert seen["work_a from on_the_way"] > seen["work_a from on_the_side"] > 0.2
    assert seen["work_a from on_the_way"] + seen["work_a from on_the_side"] > 0.9


def test_a_caller_includes_what_it_calls(record, workloads):
    options = ["--duration", "2s", "--speedups", "100", "--inclusive", "--only", "on_the_way"]
    recording = record(workloads / "sites", 8000, 4000, options=options, **AHEAD_OF_OTHERS)
    assert recording.finished.code == 0, recording.finished
    # Each of the frames counts, and each once.
    seen = shares(recording)
    assert seen["work_a"] > 0.9
    assert abs(seen["work_a"] - seen["on_the_way"] - seen["on_the_side"]) < 0.05
    assert abs(seen["main"] - seen["on_the_way"]) < 0.05


def test_only_code_has_callers(record, workloads):
    recording = record(workloads / "sites", options=["-u", "thread", "--callers"])
    recording.finished.assert_error(2, "--callers is about code", "--unit line")
