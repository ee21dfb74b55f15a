"""The parts of `trace` that need no kernel: the journal, the traces made of it, and which probes are too hot."""

import json

import numpy as np
import pytest

from causal.drt.failures import describe_failures, without_failures
from causal.drt.model import explain
from causal.drt.reading import read_traces
from causal.errors import CausalError, UsageError
from causal.tracing.functions import Function
from causal.tracing.inputs import RunInput
from causal.tracing.journal import Journal, Run, traces_in, write_traces
from causal.tracing.runs import find_hot, make_trace

HEADER = {"command": ["x", "{}"], "program": "abc"}


def test_a_journal_is_taken_up_where_it_was_cut_off(tmp_path):
    out = tmp_path / "new" / "traces"
    journal = Journal(out, HEADER, force=False)
    journal.add({"type": "count", "id": "a", "exit_code": 0, "calls": {"f": 2}})
    journal.add({"type": "time", "id": "a", "round": 0, "wall_ns": 5, "cpu_ns": 4, "exit_code": 0})
    journal.add({"type": "drop", "functions": {"g": 1e6}})
    journal.close()
    with (out / "journal.jsonl").open("a") as file:
        file.write('{"type": "time", "id"')
    again = Journal(out, HEADER, force=False)
    assert again.resumed and again.dropped == {"g": 1e6}
    assert again.run("a") == Run(calls={"f": 2}, wall_ns={0: 5}, cpu_ns={0: 4})
    assert not again.run("b").complete("wall")
    assert not again.run("a").complete("instructions")
    again.add({"type": "time", "id": "a", "round": 0, "wall_ns": 5, "cpu_ns": 4, "instructions": 7, "exit_code": 0})
    assert again.run("a").complete("instructions") and again.run("a").measured("instructions") == {0: 7}
    again.add({"type": "warm", "id": "b", "wall_ns": 9, "exit_code": 3, "complaint": "no"})
    again.close()
    last = Journal(out, HEADER, force=False).run("b")
    assert (last.exit_code, last.complaint, last.warm_ns) == (3, "no", 9)


def test_a_journal_of_another_command_is_not_touched(tmp_path):
    Journal(tmp_path / "traces", HEADER, force=False).close()
    before = (tmp_path / "traces" / "journal.jsonl").read_bytes()
    with pytest.raises(UsageError, match="another command, program"):
        Journal(tmp_path / "traces", {"command": ["y"], "program": "d"}, force=False)
    assert (tmp_path / "traces" / "journal.jsonl").read_bytes() == before
    assert not Journal(tmp_path / "traces", {"command": ["y"], "program": "d"}, force=True).resumed
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        Journal(tmp_path / "file", HEADER, force=False)


def test_a_journal_whose_first_line_was_cut_off_begins_again(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"type": "tr')
    journal = Journal(tmp_path, HEADER, force=False)
    journal.close()
    assert not journal.resumed
    assert Journal(tmp_path, HEADER, force=False).resumed


def test_a_trace_says_first_what_was_asked_for():
    run = Run(calls={"f": 2, "hot": 9}, exit_code=3, wall_ns={1: 3_000_000, 0: 2_000_000}, cpu_ns={0: 1, 1: 2})
    trace = make_trace(RunInput("a", {}, {"n": 1.0}), run, "cpu", {"hot": 1e6})
    assert list(trace["outputs"]) == ["cpu_time_ms", "wall_time_ms"]
    assert trace["outputs"]["wall_time_ms"] == [2.0, 3.0]
    assert trace["calls"] == {"f": 2} and trace["exit_code"] == 3
    run.instructions[0] = 5_000
    run.threads = {"main": {"threads": 1, "calls": {"f": 2}}, "io": {"threads": 3, "calls": {"hot": 9}}}
    trace = make_trace(RunInput("a", {}, {"n": 1.0}), run, "instructions", {"hot": 1e6})
    assert next(iter(trace["outputs"])) == "instructions" and trace["outputs"]["instructions"] == [5000]
    assert trace["threads"] == run.threads | {"io": {"threads": 3, "calls": {}}}


def test_the_hottest_functions_are_found_by_what_their_probes_cost():
    functions = [Function(name, "x", 0, cheap) for name, cheap in (("a", True), ("b", False), ("c", True))]
    counts = np.array([1_000_000, 1_000_000, 10])
    assert list(find_hot(functions, counts, 18.0, 0.1)) == ["b"]
    # A program that is slow for reasons of its own keeps its probes.
    assert find_hot(functions, counts // 1000, 18.0, 0.1) == {}


def failing_traces(tmp_path, succeed=40):
    traces = [
        {
            "id": f"ok{i}",
            "inputs": {"n": i},
            "outputs": {"time": 10.0 + i * (1 + i % 2)},
            "calls": {"slow": i % 2, "main": 1},
        }
        for i in range(1, succeed + 1)
    ]
    traces += [
        {"id": f"bad{i}", "inputs": {"n": i}, "outputs": {"time": 1.0}, "calls": {"main": 1, "fail": 1}, "exit_code": 4}
        for i in range(1, 13)
    ]
    return read_traces(write_traces(tmp_path, traces))


def test_failed_runs_are_a_class_of_their_own(tmp_path):
    traces = failing_traces(tmp_path)
    assert describe_failures(traces) == [
        "12 runs with exit code 4, a class of their own: fail called at least once (12 of them, 0 others)"
    ]
    explanation = explain(traces)
    assert len(explanation.traces) == 40 and explanation.clustering.k == 2
    assert explanation.warnings[0].startswith("12 runs with exit code 4")
    assert [explanation.features.columns[i].name for i in explanation.features_used] == ["slow"]


def test_too_few_runs_that_succeeded(tmp_path):
    with pytest.raises(CausalError, match="12 of 13 runs failed"):
        without_failures(failing_traces(tmp_path, succeed=1))


def test_exit_codes_are_numbers(tmp_path):
    trace = {"id": "a", "inputs": {"n": 1}, "outputs": {"time": 1}, "calls": {}, "exit_code": "x"}
    (tmp_path / "t.jsonl").write_text(json.dumps(trace))
    with pytest.raises(CausalError, match="row 1, column 'exit_code'"):
        read_traces(tmp_path / "t.jsonl")


def test_a_directory_without_traces(tmp_path):
    with pytest.raises(CausalError, match="no traces in"):
        traces_in(tmp_path)
    assert traces_in(tmp_path / "file.csv") == tmp_path / "file.csv"
