"""Counters that programs have themselves, in a table that they can write to."""

import numpy as np

from causal.point_probes import MACRO, PointProbes
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
