"""Callers by name: call instructions, and how calls are shared out where not every stack was walked."""

import pytest

from causal.errors import CausalError
from causal.tracing.callers import Caller, functions_of_tree
from causal.tracing.code import call_target, follows_call


@pytest.mark.parametrize(
    "code, is_call",
    [
        ("e8 10 00 00 00", True),  # call rel32
        ("ff d0", True),  # call rax
        ("41 ff d4", True),  # call r12
        ("ff 50 08", True),  # call [rax + 8]
        ("ff 54 24 08", True),  # call [rsp + 8]
        ("ff 15 10 00 00 00", True),  # call [rip + 16]
        ("ff 94 24 10 01 00 00", True),  # call [rsp + 272]
        ("ff e0", False),  # jmp rax
        ("89 c7 31 c0 90 90 90", False),
    ],
)
def test_a_return_address_follows_a_call(code, is_call):
    text = b"\x90" * 9 + bytes.fromhex(code)
    assert follows_call(text, len(text)) == is_call
    assert not follows_call(text + b"\x90" * 8, len(text) + 8)


def test_where_a_direct_call_leads():
    text = bytes(16) + b"\xe8" + (-21 + 4).to_bytes(4, "little", signed=True)
    assert call_target(text, 21) == 4
    assert call_target(b"\xff\xd0", 2) is None


def test_calls_are_shared_out_as_walked_ones_came():
    root = Caller("f")
    root.add(["a", "main"], 6, True)
    root.add(["a", "other"], 2, True)
    root.add(["a"], 92, False)
    root.add(["b", "main"], 5, True)
    root.settle()
    assert root.calls == 105
    assert [(each.name, each.calls) for each in root.callers.values()] == [("a", 100), ("b", 5)]
    assert [(each.name, each.calls) for each in root.callers["a"].callers.values()] == [("main", 75), ("other", 25)]


def test_functions_of_a_tree(tmp_path):
    (tmp_path / "tree").write_text('{"features_used": ["f", "g", "f"]}')
    assert functions_of_tree(str(tmp_path / "tree")) == ["f", "g"]
    (tmp_path / "tree").write_text('["f"]')
    with pytest.raises(CausalError, match="not what explain"):
        functions_of_tree(str(tmp_path / "tree"))
