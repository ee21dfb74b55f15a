"""`trace --callers-of`: each call of the functions in a tree counts for its caller, in runs and live processes."""

import json
import subprocess

from tests.conftest import kill_group


def tree(tmp_path, *names):
    (tmp_path / "tree.json").write_text(json.dumps({"version": 1, "features_used": names}))
    return tmp_path / "tree.json"


def callers_in(directory):
    found = json.loads((directory / "callers.json").read_text())
    return {each["name"]: each for each in found["functions"]}


def only(caller):
    """The single caller of a function."""
    (found,) = caller["callers"]
    return found


def test_callers_in_runs(causal_bpf, programs, tmp_path):
    for lines in (1, 2, 3):
        (tmp_path / f"in{lines}").write_text(("heavy\n" if lines % 2 else "light\n") * lines)
    words = ("trace", "-o", tmp_path / "out", "--callers-of", tree(tmp_path, "spin", "step", "gone"))
    words += ("--inputs", f"{tmp_path}/in?", "--", programs / "calls", "{}", "fork")
    done = causal_bpf(*words)
    assert done.code == 0, done
    assert "spin: 4 calls in 2 of 3 runs" in done.out and "not found: gone" in done.out
    found = callers_in(tmp_path / "out")
    spin, step = found["spin"], found["step"]
    assert (spin["calls"], spin["runs"], only(spin)["name"], only(spin)["calls"]) == (4, 2, "heavy", 4)
    assert (step["calls"], step["runs"]) == (2 * 6, 3)  # in the child process, too
    # Everything here keeps frame pointers, so the chain goes on.
    assert [only(each)["name"] for each in (only(spin), only(step))] == ["main", "main"]
    assert only(only(step))["calls"] == 12


def test_callers_in_a_live_process(causal_bpf, programs, tmp_path):
    server = subprocess.Popen([programs / "requests"], process_group=0)
    try:
        words = ("trace", "-o", tmp_path / "out", "--callers-of", tree(tmp_path, "heavy"))
        done = causal_bpf(*words, "--pid", server.pid, "--duration", "500ms")
        assert done.code == 0, done
        heavy = callers_in(tmp_path / "out")["heavy"]
        assert heavy["calls"] > 0
        assert (only(heavy)["name"], only(heavy)["calls"]) == ("handle", heavy["calls"])
        assert only(only(heavy))["name"] == "serve"
        assert server.poll() is None
    finally:
        kill_group(server)


def test_callers_that_cannot_be_looked_for(in_process, programs, tmp_path):
    (tmp_path / "text").write_text("hello")
    words = ("--inputs", "/etc/passwd", "--", programs / "calls", "{}")
    in_process("trace", "--callers-of", tmp_path / "text", *words).assert_error(1, "is not what explain", "--json >")
    in_process("trace", "--callers-of", tree(tmp_path), *words).assert_error(1, "no functions", "no difference")
    other = in_process("trace", "--callers-of", tree(tmp_path, "f"), *words)
    other.assert_error(1, r"calls has none of the functions in the tree \(f\)", "same --binary")
    in_process("trace", "--callers-of", tree(tmp_path, "f")).assert_error(2, "command or at a process", "--pid")
    in_process("trace", *words).assert_error(2, "no place for the traces", "-o DIR")
