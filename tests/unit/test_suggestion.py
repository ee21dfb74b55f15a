"""Which functions are suggested as a progress point: those called neither too rarely nor too often, rare ones first."""

from causal.suggestion import rank


def test_useful_rates_come_first_the_rarest_of_them_at_the_top():
    rates = {"hot": 2e6, "round": 120.0, "item": 4000.0, "once": 0.1, "batch": 5.0}
    assert [name for name, _ in rank(rates)] == ["batch", "round", "item", "hot", "once"]


def test_a_short_list():
    rates = {f"f{i}": float(i + 1) for i in range(100)}
    listed = rank(rates)
    assert 5 <= len(listed) <= 20 and listed[0] == ("f0", 1.0)


def test_nothing_was_called():
    assert rank({}) == []
