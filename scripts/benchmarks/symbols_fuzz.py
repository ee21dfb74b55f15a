"""Damaged debug information for the compiled reader, under AddressSanitizer and UndefinedBehaviorSanitizer.

    seeds = [seed(sections, code, contributions)]
    fuzz(seeds, seconds=60, number=1)

Each input is a seed of real or made-up sections with a few damaged bytes, numbers, or a section cut short. No input may
make the reader touch memory it does not own, overflow, or take seconds.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile

from causal.symbols.debugfile import read_debug_file
from causal.symbols.elf import Binary
from causal.symbols.lines import code_ranges
from causal.symbols.native import CONTRIBUTION_DTYPE, SECTIONS, SPLIT_SECTIONS, Reader
from causal.symbols.split import find_split_files

HERE = Path(__file__).resolve().parent
READER_SOURCES = HERE.parents[1] / "causal" / "symbols" / "native"
FLAGS = ("-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_MAX_SEED = 4 << 20


@dataclass(frozen=True)
class Fuzzed:
    """What a campaign came to: inputs, units that were left out of them, the slowest in seconds, and for a failure
    the end of what the sanitizer said."""

    inputs: int
    left_out: int
    slowest_s: float
    failure: str


def seed(sections, code, contributions=None, frames=(b"", 0)):
    """One input, as symbols_fuzz.c reads it; `frames`: the contents and the address of .eh_frame."""
    contributions = np.zeros(0, CONTRIBUTION_DTYPE) if contributions is None else contributions
    out = np.uint64(len(contributions)).tobytes()
    for name in (*SECTIONS, *SPLIT_SECTIONS):
        content = bytes(sections.get(name, b""))
        out += np.uint64(len(content)).tobytes() + content
    out += contributions.tobytes() + np.asarray(code, np.uint64).ravel()[:2].tobytes()
    return out + np.uint64(len(frames[0])).tobytes() + frames[0] + np.uint64(frames[1]).tobytes()


def seed_of(path):
    """The debug sections of a program with what lies in other files; None where there is too much of it to be quick."""
    binary = Binary.load(path)
    sections = dict(read_debug_file(path).sections)
    split = find_split_files(Reader(sections, code_ranges(binary)).skeletons(), [path])
    sections |= split.sections
    size = sum(map(len, sections.values()))
    if not 0 < size < _MAX_SEED:
        return None
    with open(path, "rb") as file:
        section = ELFFile(file).get_section_by_name(".eh_frame")
        frames = (section.data(), section["sh_addr"]) if section else (b"", 0)
    return seed(sections, code_ranges(binary), split.contributions, frames)


def build(directory):
    """The program that reads and damages seeds. Raises CalledProcessError where the compiler has no sanitizers."""
    program = Path(directory) / "fuzz"
    sources = [HERE / "symbols_fuzz.c", *sorted(READER_SOURCES.glob("*.c"))]
    words = [os.environ.get("CC", "cc"), *FLAGS, f"-I{READER_SOURCES}", *map(str, sources), "-o", str(program)]
    subprocess.run(words, check=True, capture_output=True, text=True)
    return program


def fuzz(seeds, seconds, number, program=None):
    """Fuzzed of one campaign; the same `number` draws the same inputs."""
    with tempfile.TemporaryDirectory() as directory:
        program = program or build(directory)
        (Path(directory) / "seeds").write_bytes(b"".join(seeds))
        words = [str(program), f"{directory}/seeds", str(seconds), str(number)]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", env=os.environ | {
            "ASAN_OPTIONS": "hard_rss_limit_mb=2048:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1",
        })  # fmt: skip
    if done.returncode:
        return Fuzzed(0, 0, 0.0, f"exit status {done.returncode}\n{done.stderr[-4000:]}")
    inputs, left_out, slowest = done.stdout.split()
    return Fuzzed(int(inputs), int(left_out), float(slowest), "")


def campaign(paths, seconds, number=1):
    """Prints what came of fuzzing with these programs as seeds, on all CPUs; exit code 1 for a failure."""
    seeds = [made for made in map(seed_of, paths) if made]
    if not seeds:
        print(f"error: none of these has between 1 byte and {_MAX_SEED >> 20} MB of debug sections", file=sys.stderr)
        return 1
    count = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(count) as pool:
        program = build(directory)
        results = list(pool.map(lambda n: fuzz(seeds, seconds, number + n, program), range(count)))
    for result in results:
        if result.failure:
            print(result.failure)
    inputs, slowest = sum(r.inputs for r in results), max(r.slowest_s for r in results)
    print(f"{inputs:,} damaged inputs from {len(seeds)} seeds, {sum(r.left_out for r in results):,} units left out, "
          f"the slowest took {slowest:.3f} s")  # fmt: skip
    return int(any(r.failure for r in results))
