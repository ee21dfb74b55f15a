"""Whether programs without frame pointers are predicted as those with them: both profiled in turn.

`deep` does its work below 60 frames of a library that is out of scope: there, who asked for it is far up the stack.
"""

import dataclasses
import math
import subprocess
import tempfile
from pathlib import Path

from benchmarks.arguments import PROFILER
from benchmarks.cases import ALL_CASES, WORKLOADS, Case
from benchmarks.prediction import predict

DURATION_S = 30
ROUNDS = 2
BUILDS = {"with": "-fno-omit-frame-pointer", "without": "-fomit-frame-pointer"}
FLAGS = ("-std=gnu11", "-O2", "-g", "-fno-inline-functions", "-pthread", "-w")
DEEP = """
#include "common.h"
void descend(int depth, long iterations);
static long a_us = 6000, b_us = 4000;
static pthread_barrier_t barrier;
REGION void work_a(void) { descend(60, a_us * unit_iterations); work_sink++; }
REGION void work_b(void) { descend(60, b_us * unit_iterations); work_sink++; }
static void *other(void *unused)
{
	for (;;) {
		work_b();
		pthread_barrier_wait(&barrier);
	}
	return unused;
}
int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ AMOUNT, "A_US", &a_us, "" }, { AMOUNT, "B_US", &b_us, "" }, { 0 }
	};

	parse_arguments(argc, argv, parameters, "");
	pthread_barrier_init(&barrier, NULL, 2);
	start_thread(other, NULL);
	for (;;) {
		work_a();
		pthread_barrier_wait(&barrier);
		count_round();
	}
}
"""
LIBRARY = """
static __thread volatile unsigned long sink;
__attribute__((noinline, noipa)) void descend(int depth, long iterations)
{
	unsigned long x = sink;

	if (depth > 1) {
		descend(depth - 1, iterations);
		sink++;
		return;
	}
	for (long i = 0; i < iterations; i++) {
		x = x * 6364136223846793005UL + 1442695040888963407UL;
		__asm__ volatile("" : "+r"(x));
	}
	sink = x;
}
"""


def cases():
    known = {case.name: case for case in ALL_CASES}
    chosen = [known[name] for name in ("barrier", "lock-critical", "pingpong")]
    deep = Case("deep", "deep", "work_a", (4000, 3000), (0,))
    return [dataclasses.replace(case, levels=(0.5, 1.0)) for case in (*chosen, deep)]


def build(case, flag, directory):
    directory.mkdir(exist_ok=True)
    further = []
    source = WORKLOADS / f"{case.program}.c"
    if case.name == "deep":
        source, library = directory / "deep.c", directory / "descend.c"
        source.write_text(DEEP)
        library.write_text(LIBRARY)
        shared = directory / "libdescend.so"
        subprocess.run(["cc", *FLAGS, flag, "-fPIC", "-shared", "-o", shared, library], check=True)
        further = [shared, f"-Wl,-rpath,{directory}"]
    command = ["cc", *FLAGS, flag, "-I", WORKLOADS, "-o", directory / case.program, source, *further]
    subprocess.run(command, check=True)


class Built(Case):
    """A case whose program is in a directory of ours."""

    directory = Path()

    def command(self, programs=None):
        return super().command(self.directory)


def pooled(predictions):
    """(mean, standard error) of gains with their 95 % intervals."""
    errors = [(each.high - each.low) / 2 / 1.96 for each in predictions]
    return sum(each.gain for each in predictions) / len(predictions), math.hypot(*errors) / len(errors)


def measure(words, _stacks):
    """Prints a line for each case and level: percent gained, as predicted with and without frame pointers."""
    profiler = [PROFILER]
    wide = 0
    for case in [case for case in cases() if not words or case.name in words]:
        with tempfile.TemporaryDirectory(prefix="unwind-") as name:
            found = {(kind, level): [] for kind in BUILDS for level in case.levels}
            for kind, flag in BUILDS.items():
                build(case, flag, Path(name, kind))
            for turn in range(ROUNDS):
                for kind in list(BUILDS)[:: 1 if turn % 2 == 0 else -1]:
                    built = Built(**vars(case))
                    object.__setattr__(built, "directory", Path(name, kind))
                    levels = predict(profiler, built, DURATION_S, Path(name, "profile")).levels
                    for level, each in levels.items():
                        if each.gain is not None and each.low is not None:
                            found[kind, level].append(each)
            for level in case.levels:
                if not all(found[kind, level] for kind in BUILDS):
                    print(f"{case.name:14} {level:4.0%}: no prediction")
                    continue
                (ours, our_error), (theirs, their_error) = (pooled(found[kind, level]) for kind in BUILDS)
                difference, bound = 100 * (theirs - ours), 196 * math.hypot(our_error, their_error)
                wide += abs(difference) > max(bound, 1)
                print(
                    f"{case.name:14} {level:4.0%}: with {100 * ours:5.1f} +- {196 * our_error:.1f}, without"
                    f" {100 * theirs:5.1f} +- {196 * their_error:.1f}, difference {difference:+.1f} +- {bound:.1f}",
                    flush=True,
                )
    return int(wide > 0)
