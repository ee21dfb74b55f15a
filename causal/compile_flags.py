"""What the engine's programs are told when they are compiled: sizes of tables, limits, the kernel's structures."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Sequence

from causal.btf import task_offsets
from causal.off_cpu import IDLE_NS
from causal.windows import EngineOptions


def compile_flags(options: EngineOptions, cpus: Sequence[int]) -> list[str]:
    """The flags that bpf/engine.bpf.c is compiled with; `cpus`: those that are online.

    Raises CausalError when the kernel does not tell its structures.
    """
    version = [int(part) for part in re.findall(r"\d+", platform.release())[:3]] + [0, 0, 0]
    defines = {
        "LINUX_VERSION_CODE": (version[0] << 16) + (version[1] << 8) + min(version[2], 255),
        "MAX_THREADS": options.max_threads,
        "MAX_PROCESSES": options.max_processes,
        "MAX_REGIONS": options.max_regions,
        "MAX_RANGES": options.max_ranges,
        "RANGE_STEPS": options.max_ranges.bit_length(),
        "MAX_RANGE_PAGES": options.max_range_pages,
        "MAX_MAPPINGS": options.max_mappings,
        "MAPPING_STEPS": options.max_mappings.bit_length(),
        "MAX_SPACES": options.max_spaces,
        "MAX_WAITS": options.max_waits,
        "MAX_SITES": options.max_sites,
        "FIRST_SITE": options.max_regions - options.max_sites,
        "ATTRIBUTION": int(options.attribution),
        "MAX_POINTS": options.max_points,
        "MAX_CALLS": options.max_calls,
        "MAX_MACROS": options.max_macros,
        "MAX_LATENCIES": options.max_latencies,
        "MAX_STRETCHES": options.max_stretches,
        "MAX_FRAMES": options.max_frames,
        "MAX_UNWIND_ROWS": options.max_unwind_rows,
        "MAX_UNWIND_PAGES": options.max_unwind_pages,
        "MAX_UNWIND_MODULES": options.max_unwind_modules,
        "MAX_ANSWERS": options.max_answers,
        "ANSWER_PROBES": 32,
        "THRESHOLD_NS": options.threshold_ns,
        "PAUSE_SLACK_NS": options.pause_slack_ns,
        "MAX_PAUSE_NS": options.max_pause_ns,
        "MIN_ALT_STACK": _minimal_alternate_stack(),
        "PROFILER": os.getpid(),
        "CUTTING_CPU": cpus[0],
        "CPUS": len(cpus),
        "IDLE_NS": IDLE_NS,
        **task_offsets(),
    }
    return ["-Wno-everything", *(f"-D{name}={value}" for name, value in defines.items())]


def _minimal_alternate_stack() -> int:
    """AT_MINSIGSTKSZ of this CPU plus what the stub needs, in bytes (getauxval(3))."""
    return int(ctypes.CDLL(None).getauxval(51) or 2048) + 4096
