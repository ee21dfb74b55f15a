"""What counts progress points: programs for the kernel, and counters that programs have themselves."""

import re

import numpy as np

from causal.point_probes import MACRO, PointProbes, programs_of_points
from causal.windows import EngineOptions


def test_lines_that_a_program_takes_back_stay_readable():
    table = np.zeros(8, MACRO)
    probes = PointProbes(None, table, EngineOptions())
    assert len(probes.macros()) == 0
    table["state"][:3] = 2
    table["count"][2] = 7
    assert probes.macros()["count"].tolist() == [0, 0, 7]
    table[:] = np.zeros(8, MACRO)
    assert probes.macros()["count"].tolist() == [0, 0, 0]


def test_each_point_has_its_programs_and_so_have_trials():
    options = EngineOptions()
    source = programs_of_points(2, options)
    assert sorted(re.findall(r"int (on_\w+)", source)) == [
        "on_event_0", "on_event_1", "on_visit_0", "on_visit_1", f"on_visit_{options.max_points - 1}"
    ]  # fmt: skip
    assert source.count("visit(1);") == 2
    every = programs_of_points(options.max_points, options)
    assert len(re.findall(r"int on_visit_\d", every)) == options.max_points
    assert not programs_of_points(0, options).strip()
