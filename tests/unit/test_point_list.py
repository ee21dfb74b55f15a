"""What `--list-points` shows can be given to `-p` as it stands."""

import subprocess
from pathlib import Path

import pytest

from causal.point_list import list_points, list_points_of_all
from causal.progress import parse_spec, resolve
from causal.symbols.elf import Binary
from cli.main import main

SOURCE = Path(__file__).parents[1] / "kernel" / "programs" / "points.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("list") / "points"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-g", "-pthread", "-w", "-o", path, SOURCE], check=True, timeout=60)
    return Binary.load(path)


def specs(program, pattern=None, kind=None):
    return [each.spec for each in list_points(program, (), pattern) if kind in (None, each.kind)]


def test_every_kind_can_be_resolved(program):
    listed = specs(program, "*")
    listed += specs(program, "points.c:*", "line")
    assert {"visited", "second_copy", "usdt:example:always", "usdt:example:switched"} <= set(listed)
    assert any(spec.startswith("points.c:") for spec in listed)
    for spec in listed:
        assert resolve(parse_spec(spec), program, ()), spec


def test_patterns(program):
    assert specs(program, "copy") == ["first_copy", "second_copy"]
    assert specs(program, "copy*") == []
    assert specs(program, "usdt:*:sw*") == ["usdt:example:switched"]
    line = next(n for n, text in enumerate(SOURCE.read_text().splitlines(), 1) if text.endswith("// INLINED"))
    assert specs(program, f"points.c:{line}") == [f"points.c:{line}"]
    # without a file in the pattern there are no lines
    assert not specs(program, kind="line") and not specs(program, "points", "line")


def test_several_programs_are_listed_by_kind_and_what_they_share_once(program, tmp_path):
    other = tmp_path / "other"
    text = "int visited(void) { return 1; } int only_here(void) { return 2; } int main(void) { return visited(); }"
    subprocess.run(["cc", "-x", "c", "-", "-o", other], input=text, text=True, check=True, timeout=60)
    listed = list_points_of_all([(program, ()), (Binary.load(other), ())])
    names = [each.spec for each in listed]
    assert names.count("visited") == 1 and "only_here" in names
    assert [each.kind for each in listed] == sorted(each.kind for each in listed)  # function, usdt


def test_functions_of_a_library_carry_its_name(tmp_path, capsys):
    path = tmp_path / "libthing.so.1.2"
    (tmp_path / "thing.c").write_text("int thing(int x) { return x + 1; }\n")
    words = ["cc", "-shared", "-fPIC", "-o", path, tmp_path / "thing.c"]
    subprocess.run(words, check=True, timeout=60)
    assert specs(Binary.load(path), "thing") == ["thing@libthing"]
    assert main(["run", "--list-points", str(path), "thing.c"]) == 1
    assert "build it with -g" in capsys.readouterr().err


def test_on_the_command_line(program, capsys):
    assert main(["run", "--list-points", program.path, "copy"]) == 0
    assert capsys.readouterr().out == "functions:\n  first_copy\n  second_copy\n"
    assert main(["run", "--list-points", program.path, "no_such"]) == 1
    assert "points has no function, USDT point or line that matches no_such" in capsys.readouterr().err
    assert main(["run", "--list-points", program.path, "--", "ls"]) == 2


def test_of_a_process(program, capsys):
    with subprocess.Popen([program.path, "1", "--gate"], stdin=subprocess.PIPE) as process:
        pid = str(process.pid)
        assert main(["attach", pid, "--list-points", "copy"]) == 0
        assert capsys.readouterr().out == "functions:\n  first_copy\n  second_copy\n"
        # without a pattern the pid may stand where that would be
        for words in ([pid, "--list-points"], ["--list-points", pid]):
            assert main(["attach", *words]) == 0
            assert {"  main", "  first_copy"} <= set(capsys.readouterr().out.splitlines())
        process.communicate(b"\n")
    assert main(["attach", "--list-points", "copy"]) == 2
    assert "no process to attach to" in capsys.readouterr().err
