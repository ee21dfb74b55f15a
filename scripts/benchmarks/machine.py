"""The machine that a number was measured on: without it the number means little."""

import os
import platform
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """Processor model, kernel and number of CPUs that this process may use."""
    return {"model": _processor_model(), "kernel": platform.release(), "cpus": len(os.sched_getaffinity(0))}


def _processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
