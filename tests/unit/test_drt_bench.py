"""The benchmark of explanations: how it counts agreement, and the traces of a real program."""

import sys
from pathlib import Path

import numpy as np
import pytest

from causal.drt.model import explain
from causal.drt.reading import read_traces

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import drt, json_traces  # noqa: E402


def test_agreement_does_not_depend_on_numbers():
    truth = np.array([0, 0, 1, 1, 2, 2, -1])
    assert drt.agreement(truth, np.array([2, 2, 0, 0, 1, 1, 0])) == 1
    assert drt.agreement(truth, np.array([0, 0, 1, 1, 1, 1, 0])) == pytest.approx(4 / 6)
    assert drt.agreement(truth, np.array([0, 0, 1, 1, 2, -1, -1])) == pytest.approx(5 / 6)
    assert drt.agreement(truth, np.array([0, 0, 1, 1, 2, 3, -1])) == pytest.approx(5 / 6)


def test_cells_match_the_headings():
    result = drt.measure("R_2_1", 0)
    cells = drt.cells([result, result])
    assert len(cells) == len(drt.HEADINGS)
    assert cells[:3] == ("R_2_1", "3", "3 (2/2)")


def test_calls_of_a_real_program_are_read(tmp_path, monkeypatch, capsys):
    # Times of a busy machine prove nothing, so cost is made from what is known to matter: indent.
    def made_up(work):
        text = work()
        return [text.count("name") * (4 if "\n" in text else 1) + len(text) % 7 / 100]

    monkeypatch.setattr(json_traces, "time_runs", made_up)
    monkeypatch.setattr(json_traces, "REPEATS", 1)
    json_traces.main(count=60)
    path = tmp_path / "json.csv"
    path.write_text(capsys.readouterr().out)
    found = explain(read_traces(path))
    assert found.clustering.k == 2
    (first, *_) = [found.features.columns[i] for i in found.features_used]
    assert "json.encoder._make_iterencode" in (first.name, *first.same_as)
