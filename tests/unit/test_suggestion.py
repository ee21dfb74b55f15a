"""Which functions are suggested as a progress point: those called neither too rarely nor too often, rare ones first."""

import subprocess
from pathlib import Path

from causal.suggestion import rank, usdt_looks
from causal.symbols.elf import Binary

SOURCE = Path(__file__).parents[1] / "kernel" / "programs" / "points.c"


def test_useful_rates_come_first_the_rarest_of_them_at_the_top():
    rates = {"hot": 2e6, "round": 120.0, "item": 4000.0, "once": 0.1, "batch": 5.0}
    assert [name for name, _ in rank(rates)] == ["batch", "round", "item", "hot", "once"]


def test_a_short_list():
    rates = {f"f{i}": float(i + 1) for i in range(100)}
    listed = rank(rates)
    assert 5 <= len(listed) <= 20 and listed[0] == ("f0", 1.0)


def test_more_places_than_can_be_counted_at_once_take_turns(tmp_path):
    path = tmp_path / "points"
    subprocess.run(["cc", "-std=gnu11", "-O1", "-pthread", "-w", "-o", path, SOURCE], check=True, timeout=60)
    (whole,) = usdt_looks([Binary.load(path), str(tmp_path / "missing.so")], 100)
    assert {"usdt:example:always", "usdt:example:switched"} <= set(whole.specs) and any(whole.semaphores)
    parts = list(usdt_looks([Binary.load(path)], 2))
    assert len(parts) > 1 and all(len(part.offsets) <= 2 for part in parts)
    assert [spec for part in parts for spec in part.specs] == whole.specs
    assert [offset for part in parts for offset in part.offsets] == whole.offsets


def test_nothing_was_called():
    assert rank({}) == []
