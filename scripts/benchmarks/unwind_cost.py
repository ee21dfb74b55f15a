"""What the sampling program costs by depth of the stack: the kernel's own statistics of programs."""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.unwind_probe import running
from causal.engine import Engine
from causal.regions import RegionTable, Scope
from causal.target import Target
from causal.windows import EngineOptions

SOURCE = """
#include <stdlib.h>
static volatile long sink;
__attribute__((noinline, noipa)) long down(int depth)
{
	if (depth > 1)
		return down(depth - 1) + 1;
	for (;;)
		sink++;
}
int main(int argc, char **argv)
{
	return down(atoi(argv[1]));
}
"""
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


def cost_ns(depth, program, seconds=3.0):
    """(ns per sample, samples) of a loop below so many calls, the program's own three frames apart."""
    with running([program, str(depth)]) as child, Engine(EngineOptions()) as engine:
        time.sleep(0.1)
        engine.load()
        engine.add_process(child.pid, follow=False)
        target = Target(engine, RegionTable("module"), Scope(program))
        target.refresh()
        bpf = engine._kernel.bpf
        fd = bpf.load_func("on_sample", bpf.PERF_EVENT).fd
        engine.stop()
        # Ticks that find something else running count, too: they are told apart by the number of samples.
        child_cpu = min(os.sched_getaffinity(0))
        os.sched_setaffinity(child.pid, {child_cpu})
        before, counted = statistics_of(fd), engine.counters()
        engine.tick(True)
        time.sleep(seconds)
        engine.tick(False)
        after, now = statistics_of(fd), engine.counters()
        samples = now["samples"] - counted["samples"]
        whole = now["stacks_whole"] - counted["stacks_whole"]
        others = after[1] - before[1] - samples
        assert whole > 0.9 * samples, (whole, samples, now)
        return (after[0] - before[0]) / max(samples, 1), samples, others


def statistics_of(fd):
    text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    return tuple(int(re.search(rf"{name}:\s*(\d+)", text)[1]) for name in ("run_time_ns", "run_cnt"))


def measure(words, _stacks):
    """Prints a line for each depth. What ticks cost that find something else running is put on the samples."""
    depths = [int(word) for word in words] or [1, 5, 17, 47, 97]
    was = STATISTICS.read_text()
    with tempfile.TemporaryDirectory(prefix="unwind-") as name:
        source, program = Path(name, "down.c"), str(Path(name, "down"))
        source.write_text(SOURCE)
        flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
        subprocess.run(["cc", *flags, "-o", program, source], check=True)
        STATISTICS.write_text("1")
        try:
            for depth in depths:
                cost, samples, others = cost_ns(depth, program)
                print(f"{depth + 3:4} frames: {cost / 1000:6.2f} us a sample ({samples}, and {others} of others)")
        finally:
            STATISTICS.write_text(was)
    return 0
