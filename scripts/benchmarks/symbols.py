"""Reading source lines: speed, memory and agreement, beside the tools everybody has.

For each file: our first read (lines alone, and with inlined calls), our read from the cache, and what llvm-dwarfdump,
readelf and addr2line take for the same, all in one run, output thrown away. Peak memory is the largest resident size
of the process, for ours what reading added to it. `--agree N` compares N addresses with llvm-symbolizer and addr2line,
inlined calls included, wherever those two agree with each other.

Instead of that: `--programs` compares all addresses of small programs in C, C++ and Rust built in many ways,
`--attribution` measures what finding a line costs in the kernel, and `--fuzz S` feeds damaged debug information of the
files to the reader for so many seconds, under sanitizers.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import symbols_attribution, symbols_fuzz, symbols_programs
from causal.errors import CausalError
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines
from causal.symbols.sections import SectionFile

ROOT = Path(__file__).resolve().parents[2]
# Executed in a process of its own, so that its peak is that of the reading alone.
OURS = """
import re, sys, time, json
from pathlib import Path
from causal.symbols import lines as L
from causal.symbols.elf import Binary
from causal.symbols.native import Reader
path, how, root = sys.argv[1:]
import numpy as np
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
start = peak()
began = time.perf_counter()
binary = Binary.load(path)
if how == "lines":
    from causal.symbols.debugfile import read_debug_file, find_debug_path
    debug = read_debug_file(find_debug_path(binary), inlines=False)
    rows = Reader(debug.sections, L.code_ranges(binary)).lines()[0]
else:
    rows = L.SourceLines.load(binary, Path(root)).rows
took = time.perf_counter() - began
print(json.dumps({"rows": len(rows), "seconds": took, "peak": (peak() - start) * 1024}))
"""
TOOL = """
import json, os, sys, time
began = time.perf_counter()
pid = os.fork()
if not pid:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(json.dumps([time.perf_counter() - began, usage.ru_maxrss, status]))
"""


def main(arguments: list[str]) -> int:
    """Prints a table per file; exit code 1 when something that both tools agree on is read differently."""
    options = _parser().parse_args(arguments)
    files = list(map(os.path.abspath, options.files)) or _default_files()
    if not files:
        print("error: no file to read", file=sys.stderr)
        print("hint: apt-get install python3.11-dbg libc6-dbg, or name files", file=sys.stderr)
        return 1
    if options.attribution:
        return symbols_attribution.measure()
    if options.programs:
        return _programs()
    if options.fuzz:
        return symbols_fuzz.campaign(files, options.fuzz)
    failed = False
    for path in files:
        try:
            _speed(path, options.tools)
            failed |= bool(options.agree) and not _agreement(path, options.agree)
        except CausalError as error:
            print(f"{path}: {error.message}")
            failed = True
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench symbols", description=__doc__)
    parser.add_argument("files", nargs="*", help="programs or files of debug information")
    parser.add_argument("--agree", type=int, default=0, metavar="N", help="compare so many addresses with other tools")
    parser.add_argument("--programs", action="store_true", help="compare programs built in many ways, and no files")
    parser.add_argument("--attribution", action="store_true", help="what a line costs in the kernel (needs root)")
    parser.add_argument("--fuzz", type=float, default=0, metavar="S", help="damaged input for so many seconds")
    parser.add_argument("--no-tools", dest="tools", action="store_false", help="time only ourselves")
    return parser


def _default_files() -> list[str]:
    candidates = ["/usr/bin/python3.11d", "/usr/bin/python3.11", "/lib/x86_64-linux-gnu/libc.so.6"]
    candidates += sorted(map(str, Path("/usr/lib/debug/boot").glob("vmlinux-*")))
    return [path for path in candidates if os.path.exists(path)]


# --- speed -----------------------------------------------------------------------------------------------------------


def _speed(path: str, tools: bool) -> None:
    binary = Binary.load(path)
    lines = SourceLines.load(binary)
    debug = lines.path if lines else path
    sizes = _section_sizes(debug)
    line_bytes = sum(size for name, size in sizes.items() if name in (".debug_line", ".debug_line_str"))
    print(f"{debug}: {sum(sizes.values()) / 1e6:,.1f} MB of debug sections, {line_bytes / 1e6:,.1f} MB of them lines")
    with tempfile.TemporaryDirectory() as cache:
        for label, how in (("lines, first read", "lines"), ("all, first read", "all"), ("all, from the cache", "all")):
            found = _ours(path, how, cache)
            print(f"  causal-bpf {label:22} {found['seconds']:8.3f} s  {found['peak'] / 1e6:8.1f} MB  "
                  f"{found['rows']:,} rows")  # fmt: skip
    if tools:
        for command in (["llvm-dwarfdump", "--debug-line"], ["readelf", "--debug-dump=decodedline"]):
            _time_tool([*command, debug], None)
        addresses = _addresses(binary, SourceLines.load(binary), 20_000)
        _time_tool(["addr2line", "-i", "-e", debug], addresses)


def _ours(path: str, how: str, cache: str) -> dict[str, float]:
    words = [sys.executable, "-c", OURS, path, how, cache]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def _section_sizes(path: str) -> dict[str, int]:
    with open(path, "rb") as file:
        stored = SectionFile(path, file)
        return {name: stored.size(name) for name in stored.names if name.startswith(".debug_")}


def _time_tool(command: list[str], addresses: list[int] | None) -> None:
    label = " ".join(command[:2]) + (f" ({len(addresses):,} addresses)" if addresses is not None else "")
    if shutil.which(command[0]) is None:
        print(f"  {label:33} not installed")
        return
    with tempfile.TemporaryFile() as given:
        given.write("\n".join(map(hex, addresses or ())).encode())
        given.seek(0)
        # By way of a small process: what is started inherits the peak of its parent.
        words = [sys.executable, "-SEc", TOOL, *command]
        done = subprocess.run(words, stdin=given, capture_output=True, text=True, check=True)
    took, peak, status = json.loads(done.stdout)
    failed = "" if status == 0 else f"  (exit status {status})"
    print(f"  {label:33} {took:8.3f} s  {peak / 1e3:8.1f} MB{failed}")


# --- agreement -------------------------------------------------------------------------------------------------------


def _addresses(binary: Binary, lines: SourceLines, count: int) -> list[int]:
    """All places where a line or an inlined call begins and the middles between them, or `count` of those."""
    edges = np.union1d(lines.rows["address"], lines.pieces["address"])
    edges = np.union1d(edges, edges[:-1] + np.diff(edges) // np.uint64(2))
    found = [at for at in edges.tolist() if any(0 <= at - s.vaddr < s.filesz for s in binary.segments if s.executable)]
    return found if len(found) <= count else sorted(random.Random(1).sample(found, count))


def _programs() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        for label, path in symbols_programs.build_all(directory):
            print(f"{label}:")
            wrong += not _agreement(path, sys.maxsize)
    print("no difference" if not wrong else f"{wrong} programs with differences")
    return int(wrong > 0)


def _agreement(path: str, count: int) -> bool:
    binary = Binary.load(path)
    lines = SourceLines.load(binary)
    addresses = _addresses(binary, lines, count)
    symbolizer = ["llvm-symbolizer", f"--obj={lines.path}", "-a", "--inlines", "--functions=none", "--output-style=GNU"]
    told = [_chains(command, addresses) for command in (["addr2line", "-a", "-i", "-e", lines.path], symbolizer)]
    agreed, with_one = [], [0, 0]
    for at in addresses:
        if told[0].get(at) == told[1].get(at) is not None:
            agreed.append(at)
        else:
            ours = _known(lines.chain(at))
            with_one = [count + (ours == its.get(at)) for count, its in zip(with_one, told, strict=True)]
    wrong = [at for at in agreed if _known(lines.chain(at)) != told[0][at]]
    print(f"  {len(addresses):,} addresses: addr2line and llvm-symbolizer agree on {len(agreed):,}, "
          f"we differ on {len(wrong):,} of these; of the others we agree with the one on {with_one[0]:,}, "
          f"with the other on {with_one[1]:,}")  # fmt: skip
    for at in wrong[:3]:
        print(f"    {at:#x}: {_known(lines.chain(at))} and not {told[0][at]}")
    return not wrong


def _known(chain: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(path, line) if path and line else ("", 0) for path, line in chain]


def _chains(command: list[str], addresses: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Address -> (path, line) innermost first, from a tool that speaks like addr2line."""
    given = "".join(f"{at:#x}\n" for at in addresses)
    out = subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    chains: dict[int, list[tuple[str, int]]] = {}
    chain: list[tuple[str, int]] = []
    for line in out.splitlines():
        if line.startswith("0x") and ":" not in line:
            chain = chains[int(line, 16)] = []
        elif line.strip():
            path, _, number = line.partition(" (discriminator")[0].rpartition(":")
            is_known = number.isdigit() and number != "0" and path != "??"
            chain.append((os.path.normpath(path), int(number)) if is_known else ("", 0))
    return chains
