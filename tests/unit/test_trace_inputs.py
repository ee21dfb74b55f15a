"""Where inputs come from, and how they get into the command."""

import pytest

from causal.errors import CausalError, UsageError
from causal.tracing.inputs import check_command, find_inputs, substitute


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, size in (("a.png", 10), ("b.png", 20), ("c d.png", 0), ("e.txt", 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def test_a_pattern_has_the_size_as_variable(files):
    found = find_inputs(["*.png"])
    assert [(each.id, each.values) for each in found] == [
        ("a.png", {"size_bytes": 10}),
        ("b.png", {"size_bytes": 20}),
        ("c d.png", {"size_bytes": 0}),
    ]
    assert [each.id for each in find_inputs(["b.png", "a.*", "*.png"])] == ["b.png", "a.png", "c d.png"]


def test_a_list_of_files(files):
    (files / "list").write_text("c d.png\n\ne.txt\n")
    assert [each.id for each in find_inputs(["@list"])] == ["c d.png", "e.txt"]


def test_a_table_gives_words_and_variables(files):
    (files / "runs.csv").write_text('file,width,mode\na.png,100,fast\n"c d.png",50,slow\n')
    found = find_inputs(["runs.csv"])
    assert [(each.id, each.values) for each in found] == [("a.png", {"width": 100}), ("c d.png", {"width": 50})]
    command = ["x", "--width={width}", "-m{mode}", "{}", "{file}", "{print $1}", "{}.{mode}"]
    assert substitute(command, found[1]) == [
        "x", "--width=50", "-mslow", "c d.png", "c d.png", "{print $1}", "c d.png.slow",
    ]  # fmt: skip


def test_rows_of_one_file_with_several_options_are_told_apart(files):
    (files / "runs.csv").write_text("file,mode\na.png,fast\na.png,slow\nb.png,fast\n")
    found = find_inputs(["runs.csv"])
    assert [each.id for each in found] == ["a.png fast", "a.png slow", "b.png fast"]
    assert [each.values for each in found] == [{"size_bytes": 10}, {"size_bytes": 10}, {"size_bytes": 20}]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "name of its own"),
        ("a,b\n1\n", "row 2: 1 columns where the header has 2"),
        ("name,kind\nnothere,x\n", "input nothere: No such file"),
        ("name,n\na.png,1\na.png,1\nb.png,1\na.png,1\n", None),
        ("name,n\na.png,1\na.png 1,2\na.png,1\n", None),
    ],
)
def test_tables_that_make_no_sense(files, text, message):
    (files / "runs.csv").write_text(text)
    if message is None:  # the same row twice is one input
        assert len(find_inputs(["runs.csv"])) == 2
        return
    with pytest.raises(CausalError, match=message):
        find_inputs(["runs.csv"])


def test_inputs_that_do_not_exist(files):
    with pytest.raises(CausalError, match=r"no inputs match \*\.jpg"):
        find_inputs(["*.jpg"])
    with pytest.raises(CausalError, match="cannot read nolist"):
        find_inputs(["@nolist"])
    (files / "empty").write_text("\n")
    with pytest.raises(CausalError, match="no inputs match"):
        find_inputs(["@empty"])
    (files / "list").write_text("a.png\ngone.png\n")
    with pytest.raises(CausalError, match=r"input gone\.png: No such file"):
        find_inputs(["@list"])


def test_variables_must_be_the_same_everywhere(files):
    (files / "runs.csv").write_text("n\n1\n")
    with pytest.raises(UsageError, match="different variables: n and size_bytes"):
        find_inputs(["*.png", "runs.csv"])


def test_the_command_needs_a_place_for_the_input(files):
    inputs = find_inputs(["a.png"])
    check_command(["cat", "x{}"], inputs, stdin=False)
    check_command(["cat"], inputs, stdin=True)
    with pytest.raises(UsageError, match="no place for the input"):
        check_command(["awk", "{print}"], inputs, stdin=False)
