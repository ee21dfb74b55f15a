"""Traces from files: what columns are, and every way in which a file can be wrong, with its row and column."""

import json

import numpy as np
import pytest

from causal.drt.columns import assign_roles
from causal.drt.reading import read_traces
from causal.errors import CausalError

HEADER = "id,size,time,f,g"
ROWS = ["a,1,2.5,0,1", "b,2,4.5,1,1", "c,3,6.5,0,2"]


def write(tmp_path, *lines, name="traces.csv"):
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def message(path, **options):
    with pytest.raises(CausalError) as caught:
        read_traces(path, **options)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_dense_form(tmp_path):
    traces = read_traces(write(tmp_path, HEADER, *ROWS))
    assert traces.ids == ["a", "b", "c"]
    assert traces.input_names == ["size"] and traces.output_name == "time"
    assert traces.inputs[:, 0].tolist() == [1, 2, 3]
    assert traces.output.tolist() == [2.5, 4.5, 6.5]
    assert traces.functions == ["f", "g"]
    assert traces.calls.toarray().tolist() == [[0, 1], [1, 1], [0, 2]]


def test_quoted_names_and_ids(tmp_path):
    path = write(tmp_path, 'id,size,time,"f(int, char)"', '"a, b",1,2,3', '"c",2,"5","0"', "d,3,4,1")
    traces = read_traces(path)
    assert traces.functions == ["f(int, char)"]
    assert traces.ids == ["a, b", "c", "d"]
    assert traces.output.tolist() == [2, 5, 4]


def test_repeats_count_by_their_median(tmp_path):
    traces = read_traces(write(tmp_path, "id,size,T1,T2,T3,f", "a,1,1,9,2,0", "b,2,4,3,5,1", "c,3,7,7,0,1"))
    assert traces.output.tolist() == [2, 4, 7]
    assert traces.output_name == "time"
    assert traces.functions == ["f"]


def test_tabs_blank_lines_and_missing_ids(tmp_path):
    traces = read_traces(write(tmp_path, "size\ttime_ms\tf", "1\t2\t0", "", "2\t3\t1", "3\t5\t1"))
    assert traces.ids == ["2", "4", "5"]
    assert traces.output_name == "time_ms"


def test_other_outputs_are_no_functions(tmp_path):
    lines = ["id,size,width,time,peak_memory,f", "a,1,1,2,9,0", "b,2,1,3,8,1", "c,3,4,5,7,1"]
    by_memory = read_traces(write(tmp_path, *lines), output="peak_memory")
    assert by_memory.output.tolist() == [9, 8, 7]
    assert by_memory.functions == ["f"]
    assert by_memory.input_names == ["size", "width"]
    by_function = read_traces(write(tmp_path, *lines), inputs=["size"], output="f")
    assert by_function.output.tolist() == [0, 1, 1]
    assert by_function.input_names == ["size"]
    assert by_function.functions == ["width"]


def test_output_is_found_with_its_unit():
    assert assign_roles(["id", "size", "time_ms", "f"], output="time").output_name == "time_ms"
    assert assign_roles(["id", "size", "time (us)", "f"]).functions == [3]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([HEADER, ROWS[0], "b,2,,1,1"], "row 3, column 'time': the value is missing"),
        ([HEADER, ROWS[0], "b,2,4.5,,1"], "row 3, column 'f': the value is missing"),
        ([HEADER, ROWS[0], "b,two,4.5,1,1"], "row 3, column 'size': 'two' is not a number"),
        ([HEADER, "a,1,inf,0,1", ROWS[1]], "row 2, column 'time': inf is not finite"),
        ([HEADER, "a,1,nan,0,1", ROWS[1]], "row 2, column 'time': the value is missing (NaN)"),
        ([HEADER, ROWS[0], "b,-2,4.5,1,1"], "row 3, column 'size': -2 is negative"),
        ([HEADER, ROWS[0], "b,2,4.5,1,-1"], "row 3, column 'g': -1 is negative"),
        ([HEADER, ROWS[0], "b,2,4.5,1"], "row 3: 4 columns where the header has 5 (the last is 'f')"),
        ([HEADER, *ROWS, "a,4,8,1,1"], "row 5: id 'a' was already used in row 2"),
        ([HEADER, "a,1,2,0,1", "b,2,2,1,1"], "column 'time' is constant: 2 in all 2 traces"),
        ([HEADER, "a,1,2,0,1", "b,1,3,1,1"], "column 'size' is constant: 1 in all 2 traces"),
        ([HEADER, ROWS[0]], "there is only one trace"),
        ([HEADER], "there is no traces"),
        ([], "is empty"),
        (["id,size,time,f,f", *ROWS], "row 1: column 'f' stands twice, as columns 4 and 5"),
        (["id,size,time,,g", *ROWS], "row 1: column 4 has no name"),
        (["id,time,f", "a,1,2", "b,3,4"], "no input column stands before 'time'"),
        (["id,size,f", "a,1,2", "b,3,4"], "no column is called time, T1 or the like"),
    ],
)
def test_bad_csv(tmp_path, lines, expected):
    assert expected in message(write(tmp_path, *lines))


def test_bad_options(tmp_path):
    path = write(tmp_path, HEADER, *ROWS)
    assert "--output: there is no column 'speed'" in message(path, output="speed")
    assert "--inputs: there is no column 'width'" in message(path, inputs=["width"])
    assert "cannot be input and output" in message(path, inputs=["time"], output="time")


def test_unreadable_files(tmp_path):
    assert "No such file" in message(tmp_path / "none.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"id,size,time\n\xe4,1,2\n")
    assert "is not UTF-8" in message(path)


def sparse_line(ident="a", size=1, time=2.5, calls=None, **more):
    trace = {"id": ident, "inputs": {"size": size}, "outputs": {"time_ms": time}, "calls": calls or {}}
    return json.dumps(trace | more)


def test_sparse_form(tmp_path):
    lines = [
        sparse_line("a", 1, [2, 9, 3], {"f": 2}),
        sparse_line("b", 2, 5, {"g g": 1, "f": 0}),
        sparse_line("c", 3, 6),
    ]
    traces = read_traces(write(tmp_path, *lines, name="traces.jsonl"), output="time")
    assert traces.functions == ["f", "g g"]
    assert traces.calls.toarray().tolist() == [[2, 0], [0, 1], [0, 0]]
    assert traces.output.tolist() == [3, 5, 6]
    assert traces.output_name == "time_ms"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "row 2: not JSON"),
        ("[]", "row 2: no object 'calls'"),
        (sparse_line("b", 2, None), "row 2, column 'time_ms': the value is missing"),
        (sparse_line("b", "2", 1), "row 2, column 'size': '2' is not a number"),
        (sparse_line("b", 2, 1, {"f": "x"}), "row 2, column 'f': 'x' is not a number"),
        (sparse_line("b", 2, 1, {"f": -1}), "row 2, column 'f': -1 is negative"),
        (sparse_line("b", 2, 1, {"f": float("inf")}), "row 2, column 'f': inf is not finite"),
        (sparse_line("a", 2, 1), "row 2: id 'a' was already used in row 1"),
    ],
)
def test_bad_sparse(tmp_path, line, expected):
    assert expected in message(write(tmp_path, sparse_line(), line, name="traces.jsonl"))


def test_calls_by_thread(tmp_path):
    threads = {
        "main": {"threads": 1, "calls": {"main": 1, "work": 2}},
        "io": {"threads": 4, "calls": {"work": 5, "read": 9}},
    }
    calls = {"main": 1, "work": 7, "read": 9}
    lines = [sparse_line("a", 1, 2, {"main": 1, "work": 3}), sparse_line("b", 2, 5, calls, threads=threads)]
    path = write(tmp_path, *lines, name="traces.jsonl")
    assert read_traces(path).functions == ["main", "work", "read"]
    traces = read_traces(path, by_thread=True)
    # What one thread alone calls is not said twice.
    assert traces.functions == ["main", "work", "work on thread main", "read", "work on thread io"]
    assert traces.calls.toarray().tolist() == [[1, 3, 3, 0, 0], [1, 7, 2, 9, 5]]
    assert "only traces in the sparse form" in message(write(tmp_path, HEADER, *ROWS), by_thread=True)
    bad = write(tmp_path, lines[0], sparse_line("b", 2, 5, calls, threads={"io": 3}), name="bad.jsonl")
    assert "row 2: no object 'calls'" in message(bad, by_thread=True)


def test_both_forms_agree_on_many_rows(tmp_path):
    rng = np.random.default_rng(1)
    calls = rng.poisson(0.5, (300, 20))
    dense = ["id,size,time," + ",".join(f"f{i:02}" for i in range(20))]
    sparse = []
    for i, row in enumerate(calls):
        dense.append(f"t{i},{i},{2 * i + 0.5}," + ",".join(map(str, row)))
        counts = {f"f{j:02}": int(value) for j, value in enumerate(row) if value}
        sparse.append(sparse_line(f"t{i}", i, 2 * i + 0.5, counts))
    one = read_traces(write(tmp_path, *dense))
    other = read_traces(write(tmp_path, *sparse, name="traces.jsonl"))
    order = [other.functions.index(name) for name in one.functions]
    assert (one.calls.toarray() == other.calls.toarray()[:, order]).all()
    assert (one.output == other.output).all()
