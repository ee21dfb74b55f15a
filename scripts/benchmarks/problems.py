"""Three performance differences in programs of others, traced and explained from start to finish.

- regex: jq tests strings against a pattern that backtracks (Oniguruma). Trailing blanks before another character make
  it quadratic: what took Stack Overflow down in July 2016.
- index: SQLite answers the same queries with and without an index.
- profile: libpng decodes images with and without a compressed colour profile inside.

The programs of the first two are built by `scripts/real-programs traced`; the third needs libpng-dev.
"""

import argparse
import random
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from .cases import ROOT
from .machine import describe_machine

REAL = ROOT / "build" / "real"
CAUSAL_BPF = ROOT / ".venv" / "bin" / "causal-bpf"
D50 = bytes.fromhex("0000f6d600010000 0000d32d")


def make_regex(directory: Path) -> list[str]:
    """Lines of two kinds: words with single blanks between them, and blanks with a letter behind them."""
    rng = random.Random(1)
    rows = ["file,length"]
    for length in range(400, 8400, 400):
        kinds = {
            "words": "".join(rng.choice("abcdefg ") for _ in range(length - 1)) + "x",
            "blanks-x": " " * (length - 1) + "x",
        }
        for kind, text in kinds.items():
            (directory / f"{kind}-{length}").write_text(f'"{text}"')
            rows.append(f"{kind}-{length},{length}")
    (directory / "runs.csv").write_text("\n".join(rows) + "\n")
    return [str(REAL / "jq_traced"), 'test("\\\\s+$")', "{}"]


def make_index(directory: Path) -> list[str]:
    """Databases of growing size, each with and without an index on the column that is searched."""
    rows = ["database,rows"]
    for count in range(1000, 21000, 1000):
        for kind, index in (("plain", ""), ("indexed", "create index tv on t(v);")):
            name = f"{kind}-{count}"
            sql = (
                "create table t(k integer primary key, v integer, s text);"
                f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})"
                f" insert into t select i, i * 7919 % {count}, 'row ' || i from n; {index}"
            )
            shell = [str(REAL / "sqlite3_shell"), str(directory / name), sql]
            subprocess.run(shell, check=True, timeout=60)
            rows.append(f"{name},{count}")
    (directory / "runs.csv").write_text("\n".join(rows) + "\n")
    query = (
        "with recursive q(i) as (select 1 union all select i + 1 from q where i < 20)"
        " select sum((select count(*) from t where v = q.i * 37)) from q"
    )
    return [str(REAL / "sqlite3_shell"), "{}", query]


def make_profile(directory: Path) -> list[str]:
    """PNG images, every other one with a colour profile of 600 kB, compressed."""
    rng = random.Random(1)
    rows = ["image,pixels"]
    for side in range(60, 360, 10):
        for kind in ("plain", "profile"):
            (directory / f"{kind}-{side}.png").write_bytes(_png(side, rng, kind == "profile"))
            rows.append(f"{kind}-{side}.png,{side * side}")
    (directory / "runs.csv").write_text("\n".join(rows) + "\n")
    program = directory / "png_profile"
    source = Path(__file__).with_name("png_profile.c")
    libraries = ["-l:libpng16.a", "-lz", "-lm"]
    subprocess.run(["cc", "-O2", "-g", "-o", program, source, *libraries], check=True, timeout=60)
    return [str(program), "{}"]


def _png(side: int, rng: random.Random, with_profile: bool) -> bytes:
    rows = b"".join(b"\0" + bytes(rng.getrandbits(4) * 16 for _ in range(3 * side)) for _ in range(side))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))]
    if with_profile:
        chunks.append((b"iCCP", b"display\0\0" + zlib.compress(_profile(600_000, rng))))
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
             for kind, data in chunks]  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _profile(size: int, rng: random.Random) -> bytes:
    """The header and the tag table of an ICC profile (ICC.1:2010, section 7), then data that compresses by half."""
    table = struct.pack(">I", 1) + struct.pack(">4sII", b"A2B0", 144, size - 144)
    header = struct.pack(">I4sI4s4s4s12s4s4sIII8sI12s4s", size, b"test", 0x02100000, b"mntr", b"RGB ", b"XYZ ",
                         bytes(12), b"acsp", b"test", 0, 0, 0, bytes(8), 0, D50, b"test")  # fmt: skip
    header = header.ljust(128, b"\0")
    return (header + table + bytes(rng.getrandbits(4) for _ in range(size)))[:size]


PROBLEMS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "regex": ("jq: a pattern that backtracks", make_regex),
    "index": ("SQLite: with and without an index", make_index),
    "profile": ("libpng: with and without a compressed colour profile", make_profile),
}


def explain(make: Callable[[Path], list[str]], repeat: int) -> str:
    """Make the inputs, trace, explain; what the two commands print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = make(directory)
        trace = [CAUSAL_BPF, "trace", "-o", "traces", "--measure", "cpu", "--repeat", str(repeat), "--inputs",
                 "runs.csv", "--", *command]  # fmt: skip
        shown = [Path(command[0]).name, *command[1:]]
        text = f"$ causal-bpf trace -o traces --measure cpu --inputs runs.csv -- {' '.join(shown)}\n"
        for words in (trace, [CAUSAL_BPF, "explain", "traces"]):
            done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=600)
            text += done.stdout + done.stderr
            if "explain" not in words:
                text += "$ causal-bpf explain traces\n"
        return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench problems", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PROBLEMS, nargs="*", help="some of the problems")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs per input (default: %(default)s)")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    print(f"Measured on {machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}.\n")
    for name in options.only or PROBLEMS:
        title, make = PROBLEMS[name]
        print(
            f"## {title}\n\n    " + explain(make, options.repeat).strip().replace("\n", "\n    "),
            "\n",
            flush=True,
        )
    return 0
