"""`trace` counts calls exactly and times other runs; what it leaves can be explained and taken up again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from causal import kernel_calls
from causal.errors import CausalError
from causal.symbols.elf import Binary
from causal.tracing.execution import INSTRUCTIONS, Executor, check_counter
from causal.tracing.functions import Function, select_functions
from causal.tracing.probes import CallCounts
from tests.kernel.profiler import wait_until

# bcc's own, once for each string it is given.
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")


@pytest.fixture
def files(tmp_path):
    """Twelve files of 1 to 12 lines, those of an odd number heavy, and one that is empty."""
    directory = tmp_path / "in"
    directory.mkdir()
    for lines in range(1, 13):
        (directory / f"{lines:02}").write_text(("heavy\n" if lines % 2 else "light\n") * lines)
    (directory / "none").write_text("")
    return directory


def traces_of(directory):
    return {Path(t["id"]).name: t for t in map(json.loads, (directory / "traces.jsonl").read_text().splitlines())}


def journal_of(directory):
    return [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]


def test_a_command_that_fails_for_all_inputs_has_nothing_to_explain(causal_bpf, programs, files, tmp_path):
    out = tmp_path / "traces"
    done = causal_bpf("trace", "-o", out, "--inputs", files / "none", "--repeat", 1, "--", programs / "calls", "{}")
    assert done.code == 0 and "nothing to explain: every run failed" in done.out
    assert traces_of(out)["none"]["exit_code"] == 7
    assert "explain them" not in done.out


def test_calls_times_and_failures_of_all_inputs(causal_bpf, programs, files, tmp_path):
    out = tmp_path / "traces"
    words = ("trace", "-o", out, "--inputs", f"{files}/*", "--repeat", 3, "--measure", "cpu")
    done = causal_bpf(*words, "--", programs / "calls", "{}")
    assert done.code == 0, done
    assert "failed with exit code 7: 1 inputs, kept as a class of their own (no lines)" in done.out
    traces = traces_of(out)
    assert len(traces) == 13
    for lines in range(1, 13):
        trace = traces[f"{lines:02}"]
        assert trace["inputs"] == {"size_bytes": 6 * lines} and "exit_code" not in trace
        heavy = {"heavy": 1, "spin": lines} if lines % 2 else {}
        own = {name: n for name, n in trace["calls"].items() if name in ("main", "step", "heavy", "spin", "work")}
        assert own == {"main": 1, "work": 1, "step": lines, **heavy}
        assert [len(times) for times in trace["outputs"].values()] == [3, 3]
        assert list(trace["outputs"]) == ["cpu_time_ms", "wall_time_ms"]
    assert traces["none"]["exit_code"] == 7 and "step" not in traces["none"]["calls"]
    # Each round in another order, none with probes: counting comes before all timing.
    rounds = [[r["id"] for r in journal_of(out) if r["type"] == "time" and r["round"] == n] for n in range(3)]
    assert sorted(rounds[0]) == sorted(rounds[1]) == sorted(rounds[2])
    assert rounds[0] != rounds[1] != rounds[2]
    kinds = [record["type"] for record in journal_of(out)]
    assert kinds == ["trace", *["warm"] * 13, *["count"] * 13, *["time"] * 39]
    check_explanation(causal_bpf, out, traces)


def check_explanation(causal_bpf, out, traces):
    """What was traced is explained, the failure as a class of its own."""
    # Costs that are known stand in for measured ones, which would depend on the machine.
    lines = []
    for trace in traces.values():
        slope = 5.0 if "heavy" in trace["calls"] else 1.0
        lines.append(json.dumps(trace | {"outputs": {"time_ms": 1 + slope * trace["inputs"]["size_bytes"]}}))
    (out / "traces.jsonl").write_text("\n".join(lines))
    explained = causal_bpf("explain", out, "--json")
    assert explained.code == 0, explained
    found = json.loads(explained.out)
    assert found["k"] == 2 and found["features_used"][0] in ("heavy", "spin")
    assert any("1 run with exit code 7" in message for message in found["messages"])


def test_children_and_threads_count(causal_bpf, programs, files, tmp_path):
    rows = [f"{files}/{n:02},{mode}" for n in range(1, 7) for mode in ("plain", "fork", "threads")]
    (tmp_path / "runs.csv").write_text("file,mode\n" + "\n".join(rows) + "\n")
    out = tmp_path / "traces"
    words = ("trace", "-o", out, "--inputs", tmp_path / "runs.csv", "--repeat", 1)
    done = causal_bpf(*words, "--", programs / "calls", "{}", "{mode}")
    assert done.code == 0 and "by thread (main, calls, worker)" in done.out, done
    traces = [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]
    for n in range(1, 7):
        plain, fork, threads = traces[3 * n - 3 : 3 * n]
        assert [each["calls"]["step"] for each in (plain, fork, threads)] == [n, 2 * n, 3 * n]
        assert "threads" not in plain
        assert steps_of(fork) == {"main": (1, n), "calls": (1, n)}  # a child has the name of the program
        assert steps_of(threads) == {"main": (1, n), "worker": (2, 2 * n)}
        assert threads["threads"]["worker"]["calls"] == {"worker": 2, "work": 2, "step": 2 * n}


def steps_of(trace):
    return {name: (each["threads"], each["calls"]["step"]) for name, each in trace["threads"].items()}


def test_more_threads_than_rows_share_one(programs, files):
    path = os.path.realpath(programs / "calls")
    functions = select_functions(Binary.load(path)).functions
    with CallCounts(functions, rows=3) as counts:
        counts.attach()
        step = [each.name for each in functions].index("step")
        for expected in ({"main": (1, 5)}, {"main": (1, 5), "worker": (1, 5), "[further threads]": (0, 5)}):
            mode = "threads" if len(expected) > 1 else "plain"
            Executor(path, None, None).execute([path, str(files / "05"), mode], started=counts.trace)
            found = {name: (each.threads, each.calls[step]) for name, each in counts.by_thread().items()}
            assert found == expected
            assert counts.counts()[step] == 5 * (1 if mode == "plain" else 3)


def test_only_what_the_command_itself_does_is_counted():
    """Until it executes the command, the child is a copy of this very program, whose functions are counted here."""
    chosen = ("Py_BytesMain", "PyDict_*")
    functions = select_functions(Binary.load(os.path.realpath(sys.executable)), patterns=chosen).functions
    with CallCounts(functions) as counts:
        counts.attach()
        Executor("/bin/true", None, None).execute(["true"], started=counts.trace)
        assert counts.counts().sum() == 0
        Executor(sys.executable, None, None).execute([sys.executable, "-S", "-c", ""], started=counts.trace)
        assert counts.counts()[[each.name for each in functions].index("Py_BytesMain")] == 1


def test_events_of_the_run_and_its_children_are_counted(programs, files, in_process, tmp_path):
    """Instructions are counted by the same calls, where the CPU can."""
    path, faults = os.path.realpath(programs / "calls"), (kernel_calls.PERF_TYPE_SOFTWARE, 2)
    executor = Executor(path, None, None, counter=faults)
    plain, forked = (executor.execute([path, str(files / "05"), mode]).count for mode in ("plain", "fork"))
    assert 0 < plain < forked
    try:
        check_counter(INSTRUCTIONS)
    except CausalError:
        words = (
            "trace",
            "-o",
            tmp_path / "out",
            "--measure",
            "instructions",
            "--inputs",
            f"{files}/*",
            "--",
            path,
            "{}",
        )
        in_process(*words).assert_error(2, "instructions are not counted here", "--measure cpu")
    else:
        executor = Executor(path, None, None, counter=INSTRUCTIONS)
        first, second = (executor.execute([path, str(files / f"{n:02}")]).count for n in (2, 3))
        assert first + 3 * 20_000 < second  # the second is heavy


def test_a_probe_that_is_too_hot_is_dropped_and_named(causal_bpf, programs, files, tmp_path):
    out = tmp_path / "traces"
    words = ("trace", "-o", out, "--inputs", f"{files}/0[12]", "--repeat", 1, "--", programs / "calls", "{}", "hot")
    done = causal_bpf(*words)
    assert done.code == 0, done
    assert "too hot to be counted" in done.out and "hot (" in done.out
    for lines, trace in enumerate(traces_of(out).values(), 1):
        assert "hot" not in trace["calls"] and trace["calls"]["step"] == lines


def test_an_interrupted_trace_is_taken_up_again(start_profiler, causal_bpf, programs, files, tmp_path):
    out = tmp_path / "traces"
    words = ("trace", "-o", out, "--inputs", f"{files}/0*", "--repeat", 300, "--", programs / "calls", "{}")
    first = start_profiler(*words)
    wait_until(lambda: (out / "journal.jsonl").exists() and len(journal_whole(out)) > 30, "some timed runs")
    first.send(signal.SIGINT)
    ended = first.wait()
    assert ended.code == 130 and "the same command again goes on" in ended.out, ended
    before = journal_of(out)
    with (out / "journal.jsonl").open("a") as file:
        file.write('{"type": "time", "id": "cut o')
    again = causal_bpf(*words[:6], 20, *words[7:])
    assert again.code == 0 and "went on with what was there" in again.out, again
    after = journal_of(out)
    assert after[: len(before)] == before
    assert min(len(trace["outputs"]["wall_time_ms"]) for trace in traces_of(out).values()) >= 20
    timed = [(record["id"], record["round"]) for record in after if record["type"] == "time"]
    assert len(timed) == len(set(timed))


def journal_whole(directory):
    return [line for line in (directory / "journal.jsonl").read_text().split("\n")[:-1]]


def test_a_run_that_never_ends_is_ended_by_its_timeout(causal_bpf, tmp_path):
    (tmp_path / "list.csv").write_text("seconds\n0.01\n0.02\n60\n")
    out = tmp_path / "traces"
    counted = ("-b", "libc", "--function", "clock_nanosleep", "--timeout", "800ms", "--repeat", 1)
    done = causal_bpf("trace", "-o", out, "--inputs", tmp_path / "list.csv", *counted, "--", "sleep", "{}")
    assert done.code == 0, done
    traces = traces_of(out)
    assert [trace.get("exit_code", 0) for trace in traces.values()] == [0, 0, 124]
    assert [trace["calls"].get("clock_nanosleep@libc.so.6") for trace in traces.values()] == [1, 1, 1]


def test_functions_that_cannot_be_counted(in_process, programs, files, tmp_path):
    words = ("trace", "-o", tmp_path / "traces", "--inputs", f"{files}/*")
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, programs / "calls"], check=True, timeout=60)
    in_process(*words, "--", stripped, "{}").assert_error(1, "no function to count in stripped", "symbols")
    unknown = in_process(*words, "--function", "setp", "--", programs / "calls", "{}")
    unknown.assert_error(1, "no function in calls is called setp", "mean step.*inlined")
    many = in_process(*words, "--max-functions", 3, "--", programs / "calls", "{}")
    many.assert_error(1, r"functions are more than the limit of 3", "--function 'PATTERN'")
    assert not (tmp_path / "traces").exists()


def test_commands_and_inputs_that_make_no_sense(in_process, programs, files, tmp_path):
    program, out = programs / "calls", tmp_path / "traces"
    words = ("trace", "-o", out, "--inputs")
    in_process(*words, f"{files}/x*", "--", program, "{}").assert_error(1, "no inputs match", "path")
    in_process(*words, f"{files}/*", "--", program).assert_error(2, "no place for the input", "{}.*--stdin")
    in_process("trace", "-o", out, "--", program, "{}").assert_error(2, "no inputs", "--inputs 'PATTERN'")
    in_process(*words, f"{files}/*").assert_error(2, "no command to trace", "behind --")
    in_process(*words, f"{files}/*", "--", "no-such", "{}").assert_error(127, "command not found", "spelling")
    in_process(*words, f"{files}/0*", "-q", "--repeat", 1, "--", program, "{}")
    other = in_process(*words, f"{files}/0*", "--", program, "{}", "fork")
    other.assert_error(2, "holds traces with another command", "--force")
    in_process("trace", "-o", files, "--inputs", f"{files}/0*", "--", program, "{}").assert_error(
        2, "holds something else", "another name"
    )


def test_a_place_that_cannot_be_probed_does_not_spoil_the_others(programs):
    path = os.path.realpath(programs / "calls")
    functions = select_functions(Binary.load(path)).functions
    beyond = Function("beyond", path, 1 << 40, True)
    with CallCounts([*functions, beyond]) as counts:
        assert counts.attach() == [len(functions)]
    with CallCounts([beyond]) as counts, pytest.raises(CausalError, match="every single probe"):
        counts.attach()
