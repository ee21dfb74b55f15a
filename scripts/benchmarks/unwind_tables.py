"""How fast tables are built, and whether their rows are those that readelf prints."""

import mmap
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from causal.unwind.image import read_image
from causal.unwind.rules import Kind, unpack
from causal.unwind.store import load_file
from causal.unwind.table import build_table

DIRECTORY = "/usr/lib/x86_64-linux-gnu"
DEFAULT = (
    f"{DIRECTORY}/libc.so.6", "/usr/bin/python3.11", f"{DIRECTORY}/libpython3.11.so.1.0", f"{DIRECTORY}/libLLVM-14.so.1"
)  # fmt: skip
ROUNDS = 7
READELF = ("readelf", "--debug-dump=frames-interp")
_HEADER = re.compile(r"^\s+LOC\s+CFA\s+(.*?)\s*$")
_REGISTER_NAME = re.compile(r" \(\w+\)")  # behind its number: r10 (r10)
_FUNCTION = re.compile(r"FDE cie=\S+ pc=([0-9a-f]+)\.\.([0-9a-f]+)")


def readelf_rows(path):
    """(address, CFA, rbp, ra) as readelf prints them."""
    done = subprocess.run([*READELF, path], capture_output=True, text=True, check=False)
    rows, columns = [], []
    for line in done.stdout.splitlines():
        if "FDE" in line or "CIE" in line:
            columns = []
            inside = _FUNCTION.search(line)
        elif match := _HEADER.match(line):
            columns = match[1].split()
        elif (
            columns
            and inside
            and (words := _REGISTER_NAME.sub("", line).split())
            and re.fullmatch("[0-9a-f]{16}", words[0])
        ):
            saved = dict(zip(columns, words[2:], strict=False))
            address = int(words[0], 16)
            if address < int(inside[2], 16):
                rows.append((address, words[1], saved.get("rbp", "u"), saved.get("ra", "u")))
    return rows


def agree(row, rule):
    """Whether readelf's row means our rule; None where it does not say what it means ("exp")."""
    _, cfa, rbp, ra = row
    kind, offset, fp = unpack(rule)
    if cfa == "exp" or "exp" in (rbp, ra) or "vexp" in (rbp, ra):
        return None
    if ra == "u":
        return kind is Kind.END
    match = re.fullmatch(r"(r\w+)([+-]\d+)", cfa)
    if ra != "c-8" or not match or match[1] not in ("rsp", "rbp"):
        return kind is Kind.UNKNOWN
    expected = Kind.STACK_POINTER if match[1] == "rsp" else Kind.FRAME_POINTER
    saved = int(rbp[1:]) if re.fullmatch(r"c[+-]\d+", rbp) else 0
    return (kind, offset, fp) == (expected, int(match[2]), saved)


def build(path):
    """(image, table) of a file, as for one that is not in the cache."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        image = read_image(data)
        return image, build_table(data, image)


def print_all(path):
    """What readelf does is thrown away, as nobody waits for its text here."""
    subprocess.run([*READELF, path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def seconds(work, path):
    began = time.perf_counter()
    work(path)
    return time.perf_counter() - began


def measure(words, _stacks):
    """Prints a line for each file: medians of several rounds, ours and readelf's in turn."""
    failed = 0
    for path in [word for word in words or DEFAULT if Path(word).exists()]:
        rounds = [(seconds(build, path), seconds(print_all, path)) for _ in range(ROUNDS)]
        built, took = map(statistics.median, zip(*rounds, strict=True))
        image, table = build(path)
        with tempfile.TemporaryDirectory() as name:
            load_file(path, Path(name))
            began = time.perf_counter()
            load_file(path, Path(name))
            cached = time.perf_counter() - began
        theirs = readelf_rows(path)
        at = (
            np.searchsorted(table.rows["pc"].astype(np.int64), [row[0] - image.base for row in theirs], side="right")
            - 1
        )
        rules = table.rows["rule"][at].tolist()
        verdicts = [agree(row, rule) for row, rule in zip(theirs, rules, strict=True)]
        wrong = [
            (hex(row[0]), *row[1:], unpack(rule))
            for row, rule, ok in zip(theirs, rules, verdicts, strict=True)
            if ok is False
        ]
        print(
            f"{Path(path).name}: {len(table.rows):,} rows of {table.functions:,} functions in {built:.3f} s,"
            f" from the cache {cached * 1000:.1f} ms; readelf {took:.3f} s ({took / built:.0f} times);"
            f" of its {len(theirs):,} rows {verdicts.count(True):,} agree, {len(wrong)} differ,"
            f" {verdicts.count(None)} are expressions"
        )
        for row in wrong[:5]:
            print("   ", row)
        failed += bool(wrong)
    return int(failed > 0)
