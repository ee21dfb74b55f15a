"""What is asked of the engine: the numbers that both sides of it must agree on."""

import re

from causal.loading import BPF_DIRECTORY
from causal.windows import Arm, EngineOptions


def test_arms_have_the_numbers_of_the_kernel_side():
    body = re.search(r"enum arm \{(.*?)\};", (BPF_DIRECTORY / "clock.h").read_text(), re.DOTALL)[1]
    names = re.findall(r"^\s*ARM_(\w+),", body, re.MULTILINE)
    assert names == [arm.name for arm in sorted(Arm)]
    assert [int(arm) for arm in sorted(Arm)] == list(range(len(names)))


def test_defaults_make_sense():
    options = EngineOptions()
    assert options.pause_slack_ns < options.threshold_ns < options.period_ns < options.max_pause_ns
    assert options.max_answers >= 512  # threads that pause at once
    assert options.max_processes < options.max_threads
