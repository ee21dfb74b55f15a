"""What finding the regions of a stack costs in the kernel: a million ranges, stacks of 32 frames.

The sampling program runs over the same stacks with an empty table and with a full one; the kernel's own statistics of
programs tell what a run takes, and the difference is what the table costs.
"""

import itertools
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.unwind_cost import STATISTICS, statistics_of
from benchmarks.unwind_probe import running
from causal.engine import Engine
from causal.regions import RegionTable, Scope
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines
from causal.symbols.native import INSTANCE_DTYPE, PIECE_DTYPE, ROW_DTYPE, Losses
from causal.target import Target
from causal.windows import Attribution, EngineOptions

RANGES = 1_000_000
DEPTH = 32
FUNCTIONS = 4096
PADDING = 4000
# Ones that the caches know, and more than they hold.
STACKS = (1, 1_000_000)
# What each function calls is drawn anew: no two samples see the same stack.
_FUNCTION = """
__asm__(".skip {skip}");
__attribute__((noinline, noipa)) long f{number}(int depth, unsigned seed)
{{
	seed = seed * 1664525 + 1013904223;
	if (depth > 1)
		return table[seed >> 20](depth - 1, seed) + 1;
	for (long i = 0; i < 20000; i++)
		sink++;
	return sink;
}}
"""
_MAIN = """
int atoi(const char *);
int main(int argc, char **argv)
{
	unsigned stacks = atoi(argv[1]), next = 0;
	for (;; next = (next + 1) %% stacks)
		table[0](%d, 1 + next * 7919);
}
"""


def build(directory):
    """A program with 16 MB of code, whose stacks go through DEPTH of its 4,096 functions."""
    source, program = Path(directory, "deep.c"), str(Path(directory, "deep"))
    draw = random.Random(1)
    text = [f"typedef long (*function)(int, unsigned);\nextern function table[{FUNCTIONS}];\nvolatile long sink;\n"]
    text += [_FUNCTION.format(number=n, skip=PADDING + draw.randrange(64)) for n in range(FUNCTIONS)]
    text.append("function table[] = {" + ", ".join(f"f{n}" for n in range(FUNCTIONS)) + "};\n")
    text.append(_MAIN % DEPTH)
    source.write_text("".join(text))
    flags = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-toplevel-reorder"]
    subprocess.run(["cc", *flags, "-o", program, source], check=True)
    return Binary.load(program)


def ranges_everywhere(binary):
    """Rows of a line each over all the code, a million in all."""
    (segment,) = (s for s in binary.segments if s.executable)
    starts = np.linspace(segment.vaddr, segment.vaddr + segment.filesz - 16, RANGES).astype(np.uint64)
    return _rows(starts, np.arange(1, RANGES + 1))


def ranges_between(binary):
    """As many, but all between the functions: each search goes to its end and finds nothing."""
    table = binary.functions
    names = {name: row for row, name in enumerate(table.names)}
    to_address = next(s.vaddr - s.offset for s in binary.segments if s.executable)
    ends = np.array([int(table.end[names[f"f{n}"]]) + to_address for n in range(FUNCTIONS - 1)], np.uint64)
    each = -(-RANGES // len(ends))
    starts = (ends[:, None] + np.linspace(16, PADDING - 64, each).astype(np.uint64)[None, :]).ravel()[:RANGES]
    lines = np.arange(1, RANGES + 1)
    both = _rows(np.concatenate([starts, starts + np.uint64(8)]), np.concatenate([lines, np.zeros(RANGES, np.int64)]))
    return both[np.argsort(both["address"], kind="stable")]


def _rows(starts, lines):
    rows = np.zeros(len(starts), ROW_DTYPE)
    rows["address"], rows["line"], rows["file"] = starts, lines, lines > 0
    return rows


def cost(binary, rows, attribution, seconds, stacks):
    """(ns per sample, samples, of these in scope, ranges) with this table, on one CPU."""
    with running([binary.path, str(stacks)]) as child, Engine(EngineOptions(attribution=attribution)) as engine:
        os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        engine.load()
        engine.add_process(child.pid, follow=False)
        table = RegionTable("line")
        nothing = np.empty(0, INSTANCE_DTYPE), np.empty(0, PIECE_DTYPE)
        lines = SourceLines(binary.path, ["/made/up.c"], rows, *nothing, Losses(0, 0, 0, 1))
        table.add_lines(binary, lines, lambda path: True)
        Target(engine, table, Scope(binary.path)).refresh()
        engine.write_ranges(table.ranges)
        fd = engine._kernel.bpf.load_func("on_sample", engine._kernel.bpf.PERF_EVENT).fd
        engine.stop()
        before, counted = statistics_of(fd), engine.counters()
        engine.tick(True)
        time.sleep(seconds)
        engine.tick(False)
        after, now = statistics_of(fd), engine.counters()
        samples, in_scope, whole = (now[name] - counted[name] for name in ("samples", "in_scope", "stacks_whole"))
        assert whole > 0.9 * samples, now
        return (after[0] - before[0]) / max(samples, 1), samples, in_scope, len(table.ranges)


def _told(pairs):
    empty, full = (float(np.median([pair[at][0] for pair in pairs])) / 1000 for at in (0, 1))
    extra = [(after[0] - before[0]) / 1000 for before, after in pairs]
    _, samples, in_scope, count = pairs[-1][1]
    return (f"{np.median(extra):.2f} us ({min(extra):.2f} to {max(extra):.2f}), {empty:.2f} us without and {full:.2f} "
            f"with {count:,} ranges; {in_scope:,} of {samples:,} samples in scope")  # fmt: skip


def measure(seconds=4.0, rounds=3):
    """Prints what each kind of attribution costs over an empty table, the median of paired runs."""
    cases = {
        "the innermost line in scope is the first": (ranges_everywhere, Attribution.INNERMOST),
        "no frame is in scope": (ranges_between, Attribution.INNERMOST),
        "--callers: the first two": (ranges_everywhere, Attribution.CALL_SITE),
        "--inclusive: all frames are": (ranges_everywhere, Attribution.ANY_FRAME),
        "--inclusive, no frame is in scope": (ranges_between, Attribution.ANY_FRAME),
    }
    was = STATISTICS.read_text()
    with tempfile.TemporaryDirectory(prefix="attribution-") as directory:
        binary = build(directory)
        STATISTICS.write_text("1")
        try:
            for (label, (make, attribution)), stacks in itertools.product(cases.items(), STACKS):
                rows, pairs = make(binary), []
                for _ in range(rounds):
                    empty = cost(binary, rows[:0], attribution, seconds, stacks)
                    pairs.append((empty, cost(binary, rows, attribution, seconds, stacks)))
                print(f"{label}, {stacks:,} different stacks: {_told(pairs)}", flush=True)
        finally:
            STATISTICS.write_text(was)
    return 0
