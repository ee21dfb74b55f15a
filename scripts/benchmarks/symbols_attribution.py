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
from dataclasses import dataclass
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


def region_table(binary, rows):
    """These rows as the regions of the unit `line`."""
    table = RegionTable("line")
    nothing = np.empty(0, INSTANCE_DTYPE), np.empty(0, PIECE_DTYPE)
    table.add_lines(
        binary, SourceLines(binary.path, ["/made/up.c"], rows, *nothing, Losses(0, 0, 0, 1)), lambda path: True
    )
    return table


def costs(binary, table, attribution, stacks, seconds, rounds):
    """Pairs of _Cost, without ranges and with them in turn, of one process on one CPU."""
    with running([binary.path, str(stacks)]) as child, Engine(EngineOptions(attribution=attribution)) as engine:
        os.sched_setaffinity(child.pid, {min(os.sched_getaffinity(0))})
        engine.load()
        engine.add_process(child.pid, follow=False)
        target = Target(engine, table, Scope(binary.path))
        target.refresh()
        engine.write_ranges(table.ranges)
        engine.stop()
        space = target._spaces.of(child.pid)
        rows = engine.mappings(space.first, len(space.layout))
        names = ["lo", "hi", "pages"]
        full = rows[names].copy()
        pairs = []
        for _ in range(rounds):
            for name in names:
                rows[name] = 0
            empty = _cost(engine, seconds)
            for name in names:
                rows[name] = full[name]
            pairs.append((empty, _cost(engine, seconds)))
        return pairs


@dataclass(frozen=True)
class _Cost:
    """Of the sampling program: ns per sample, samples, and of these in scope."""

    ns: float
    samples: int
    in_scope: int


def _cost(engine, seconds):
    fd = engine._kernel.bpf.load_func("on_sample", engine._kernel.bpf.PERF_EVENT).fd
    before, counted = statistics_of(fd), engine.counters()
    engine.tick(True)
    time.sleep(seconds)
    engine.tick(False)
    after, now = statistics_of(fd), engine.counters()
    samples, in_scope, whole = (now[name] - counted[name] for name in ("samples", "in_scope", "stacks_whole"))
    assert samples and whole > 0.9 * samples, now
    return _Cost((after[0] - before[0]) / samples, samples, in_scope)


def _told(pairs):
    extra = sorted((full.ns - empty.ns) / 1000 for empty, full in pairs)
    empty, full = (float(np.median([pair[at].ns for pair in pairs])) / 1000 for at in (0, 1))
    samples, in_scope = (sum(getattr(pair[1], name) for pair in pairs) for name in ("samples", "in_scope"))
    return (f"{np.median(extra):.2f} us ({extra[0]:.2f} to {extra[-1]:.2f}): {empty:.2f} us without ranges and "
            f"{full:.2f} with; {in_scope:,} of {samples:,} samples in scope")  # fmt: skip


CASES = {
    "the first frame is in scope": (ranges_everywhere, Attribution.INNERMOST),
    "no frame is in scope": (ranges_between, Attribution.INNERMOST),
    "--callers, the first two are": (ranges_everywhere, Attribution.CALL_SITE),
    "--inclusive, all are": (ranges_everywhere, Attribution.ANY_FRAME),
}


def measure(seconds=0.8, rounds=5):
    """Prints what each kind of attribution costs: medians of `rounds` pairs, and from the lowest to the highest."""
    was = STATISTICS.read_text()
    with tempfile.TemporaryDirectory(prefix="attribution-") as directory:
        binary = build(directory)
        tables = {make: region_table(binary, make(binary)) for make in (ranges_everywhere, ranges_between)}
        STATISTICS.write_text("1")
        try:
            for (label, (make, attribution)), stacks in itertools.product(CASES.items(), STACKS):
                pairs = costs(binary, tables[make], attribution, stacks, seconds, rounds)
                print(f"{label}, {stacks:,} different stacks of {DEPTH} frames in {len(tables[make].ranges):,} ranges: "
                      f"{_told(pairs)}", flush=True)  # fmt: skip
        finally:
            STATISTICS.write_text(was)
    return 0
