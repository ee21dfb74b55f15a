"""`trace --pid`: one trace per request of a live process, with exactly its calls."""

import json
import os
import re
import subprocess

import pytest

from causal.symbols.demangle import demangle
from tests.conftest import kill_group

# bcc's own, once for each string it is given.
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")


@pytest.fixture
def server(programs):
    """`server(mode)` starts the program that handles requests."""
    started = []

    def start(mode="", program="requests"):
        process = subprocess.Popen([programs / program, mode], process_group=0)
        started.append(process)
        return process

    yield start
    for process in started:
        kill_group(process)


@pytest.fixture
def trace(causal_bpf, tmp_path):
    """`trace(pid, *options)`: how it ended, and its traces."""

    def run(pid, *options, point=("--begin", "handle", "--input", "size=arg1")):
        out = tmp_path / "traces"
        words = ("trace", "-o", out, "--force", "--pid", pid, "--dry-run", "100ms", *point)
        done = causal_bpf(*words, *options)
        assert done.code == 0, done
        return done, [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]

    return run


def own_calls(request):
    return {name: request["calls"].get(name, 0) for name in ("handle", "step", "heavy", "send_reply")}


def test_each_request_has_its_calls_and_arguments(server, trace):
    done, requests = trace(server().pid, "--input", "string-length:arg2", "--requests", 150, "--max-overhead", "90%")
    assert len(requests) == 150
    assert re.search(r"no request was lost|not traced: [12] still going on$", done.out, re.MULTILINE), done.out
    assert {request["inputs"]["size"] for request in requests} == set(range(41))
    for request in requests:
        size = request["inputs"]["size"]
        assert request["inputs"] == {"size": size, "length_arg2": size}
        assert own_calls(request) == {"handle": 1, "step": size, "heavy": size % 2, "send_reply": 1}
        times = request["outputs"]
        assert times["time_ms"] > 0
        assert times["cpu_time_ms"] + times["wait_time_ms"] == pytest.approx(times["time_ms"], rel=1e-6)


def test_arguments_by_name_also_of_functions_called_later(server, trace):
    point = ("--begin", "handle", "--input", "n=size", "--input", "string-length:name", "--input", "offset@heavy")
    done, requests = trace(server().pid, "--requests", 40, "--max-overhead", "90%", point=point)
    assert "with arguments that could not be read" in done.out  # of requests that do not call heavy()
    assert len(requests) == 40
    for request in requests:
        size = request["inputs"]["n"]
        assert size % 2 and request["inputs"] == {"n": size, "length_name": size, "offset": -size}


def test_arguments_of_methods(server, trace, programs, in_process, tmp_path):
    process = server(program="objects")
    words = ("trace", "-o", tmp_path / "out", "--pid", process.pid, "--begin")
    overloaded = in_process(*words, "Server::handle", "--input", "this.served", "--input", "string-length:text")
    overloaded.assert_error(1, r"handle\(int\) has no parameter text", "parameters: this, other")
    (handle,) = (line for line in readable_symbols(programs / "objects") if "handle(std::" in line)
    wanted = ("string-length:text", "string-length:tag", "weight", "given.low", "given.high", "low=this.limits.low",
              "this.served", "string-length:this.name")  # fmt: skip
    inputs = [word for each in wanted for word in ("--input", each)]
    _, requests = trace(process.pid, *inputs, "--requests", 100, "--max-overhead", "90%", point=("--begin", handle))
    assert len(requests) == 100
    served = [request["inputs"].pop("this.served") for request in requests]
    assert served == sorted(set(served))
    for count, request in zip(served, requests, strict=True):
        size = count % 41
        assert request["inputs"] == {
            "length_text": size, "length_tag": 100 + size, "weight": -size, "given.low": size,
            "given.high": 1000 + size, "low": -size, "length_this.name": 6,
        }  # fmt: skip
    in_process(*words, handle, "--input", "tag").assert_error(1, "tag of .* is no number", "members: _M_len, _M_str")
    in_process(*words, handle, "--input", "scale").assert_error(1, "scale of .* is no integer", "another")
    missing = in_process(*words, handle, "--input", "this.limits.size")
    missing.assert_error(1, "this.limits of .* has no member size", "its members: low, high")
    in_process(*words, handle, "--input", "this.name._M_dataplus").assert_error(1, "is no number", "members: ")


def readable_symbols(program):
    table = subprocess.run(["nm", program], capture_output=True, text=True, check=True, timeout=60).stdout
    return [demangle(line.split()[-1]) for line in table.splitlines()]


def test_requests_that_other_threads_take_over(server, trace):
    point = ("--begin", "accept_job", "--end", "finish_job", "--key", "job", "--input", "size@run_job")
    parts = ("--part", "run_job", "--part", "polish_job")
    done, requests = trace(server(program="jobs").pid, *parts, "--requests", 150, "--max-overhead", "90%", point=point)
    assert len(requests) == 150 and "too hot" not in done.out, done
    assert {request["inputs"]["size"] for request in requests} == set(range(-5, 41))
    for request in requests:
        size = max(request["inputs"]["size"], 0)
        work = {"step": size, "twist": size} if size else {}
        assert request["calls"] == {**work, "accept_job": 1, "run_job": 1, "polish_job": 1}
        assert 0 < request["outputs"]["cpu_time_ms"] <= request["outputs"]["time_ms"]


def test_nested_begins_belong_to_the_request_around_them(server, trace):
    done, requests = trace(server("nested").pid, "--requests", 200, "--max-overhead", "90%")
    assert "begins inside of a request belong to it" in done.out
    outer = [request for request in requests if request["inputs"]["size"] == 40]
    assert outer and all(own_calls(request)["step"] == 42 for request in outer)
    assert all(own_calls(request)["handle"] == 1 + (request["inputs"]["size"] == 40) for request in requests)


def test_requests_that_never_end_are_counted_and_spoil_nothing(server, trace):
    done, requests = trace(server("stuck").pid, "--end", "send_reply", "--requests", 200, "--max-overhead", "90%")
    assert "never ended, another began in their place" in done.out
    assert requests and all(request["inputs"]["size"] % 4 for request in requests)
    assert all(own_calls(request)["step"] == request["inputs"]["size"] for request in requests)


def test_hot_probes_are_dropped_after_a_dry_run(server, trace):
    done, requests = trace(server("hot").pid, "--requests", 100, "--max-overhead", "50%")
    assert "too hot to be counted" in done.out and "hot (" in done.out
    assert not any("hot" in request["calls"] for request in requests)
    # Without its probe the process is as fast as it was: nothing of it was stopped or slowed for good.
    assert all(own_calls(request)["handle"] == 1 for request in requests)


def test_the_process_ends(server, in_process, tmp_path):
    process = server("ends")
    words = ("trace", "-o", tmp_path / "out", "--pid", process.pid, "--begin", "handle", "--input", "size=arg1")
    done = in_process(*words, "--dry-run", "100ms", "--duration", "60s", "--max-overhead", "90%")
    assert done.code == 0 and "the process has ended" in done.out, done
    assert process.wait(30) == 0


def test_requests_that_cannot_be_traced(in_process, server, tmp_path):
    process = server()
    words = ("trace", "-o", tmp_path / "out", "--pid", process.pid)
    in_process(*words, "--begin", "handel", "--input", "arg1").assert_error(1, "begin handel: no function", "handle")
    in_process(*words, "--begin", "handle").assert_error(2, "needs an input variable", "size=arg2")
    named = in_process(*words, "--begin", "handle", "--input", "argv")
    named.assert_error(1, "handle has no parameter argv", "its parameters: size, name")
    in_process(*words, "--begin", "handle", "--input", "arg7").assert_error(2, "only arg1 to arg6", "choose")
    keyed = in_process(*words, "--begin", "handle", "--input", "arg1", "--key", "arg1")
    keyed.assert_error(2, "with a key need an end", "--end FUNCTION")
    in_process(*words, "--input", "arg1").assert_error(2, "need --begin FUNCTION", "--help")
    in_process(
        *words, "--begin", "handle", "--end", "main", "--input", "arg1", "--duration", "200ms", "--dry-run", "50ms"
    ).assert_error(1, "none of .* requests has ended", "--end")
    gone = subprocess.run(["true"], check=True) and max(os.getpid(), process.pid) + 100_000
    in_process("trace", "-o", tmp_path, "--pid", gone, "--begin", "f", "--input", "arg1").assert_error(
        1, "there is no process", "pgrep"
    )
    assert process.poll() is None
