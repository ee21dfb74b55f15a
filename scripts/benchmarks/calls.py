"""Whether `trace` counts calls exactly: the same runs counted by valgrind's callgrind, function by function.

The programs are built with -O1 -fno-optimize-sibling-calls: where a function ends by jumping to another one, callgrind
guesses what is a call. Also how long it takes to attach and detach thousands of probes, and whether runs that `trace`
times, with the probes gone, take as long as without it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .cases import ROOT, WORKLOADS
from .machine import describe_machine

REAL = ROOT / "build" / "real"
FLAGS = ["-std=gnu11", "-O1", "-fno-optimize-sibling-calls", "-g", "-pthread", "-w"]
# What a workload does must not depend on time: where threads race for the last round, each run ends differently.
WORKLOAD_RUNS = {
    "checksum": ["5"],
    "barrier": ["50", "40", "--rounds", "97"],
    "pingpong": ["50", "60", "--rounds", "97"],
    "worksleep": ["50", "60", "--rounds", "97"],
    "coz_example": ["50", "60", "--rounds", "97"],
}
# Other workloads would be counted as well, but cannot be compared.
LEFT_OUT = {"execer": "it executes itself, and the file that callgrind leaves then is not complete"}
# Runs that are long enough to be timed, and not for half a minute while their calls are counted.
TIMED, ROUNDS = ("thumbnail", "SQLite"), 21
# From the start-up code of the C runtime; callgrind has no names for most of it.
RUNTIME = {"_init", "_start", "_fini", "deregister_tm_clones", "register_tm_clones", "__do_global_dtors_aux",
           "frame_dummy", "(below main)"}  # fmt: skip
SQL = """
create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000)
  insert into t select i, printf('row %d of %x', i, i * 7919), i * 0.37 from n;
create index tb on t(b);
select count(*), avg(c), max(b) from t where b like '%7%' group by a % 13 order by 2;
select t1.a, t2.b from t t1 join t t2 on t1.a = t2.a + 1 where t1.c > 700 order by t2.b limit 20;
delete from t where a % 3 = 0; vacuum; pragma integrity_check;
"""
JSON = '{"items": [' + ", ".join(f'{{"id": {i}, "name": "item {i:x}", "tags": ["a", "b{i % 7}"]}}' for i in range(200))
JSON += "]}"
FILTER = """
[.items[] | select(.name | test("item [0-9a-f]*7$")) | {id, n: (.tags | join("-"))}]
  | sort_by(.n) | group_by(.n) | map(length)
"""


@dataclass(frozen=True)
class Comparison:
    """One program: functions that either tool saw called, and those on which they differ: name -> (ours, callgrind)."""

    program: str
    functions: int
    calls: int
    different: dict[str, tuple[int, int]]
    untold: int  # functions called for which callgrind knows no name

    @property
    def exact(self) -> float:
        return 1 - len(self.different) / max(self.functions, 1)


def count_here(command: list[str], stdin: str | None) -> dict[str, int]:
    from causal.symbols.elf import Binary
    from causal.tracing.execution import Executor
    from causal.tracing.functions import select_functions
    from causal.tracing.probes import CallCounts

    program = os.path.realpath(command[0])
    functions = select_functions(Binary.load(program)).functions
    with CallCounts(functions) as counts:
        refused = counts.attach()
        if refused:
            print(f"cannot be probed: {[functions[i].name for i in refused]}", file=sys.stderr)
        Executor(program, None, None).execute(command, stdin, started=counts.trace)
        totals = counts.counts()
    return {each.name: int(n) for each, n in zip(functions, totals, strict=True) if n}


def count_by_callgrind(command: list[str], stdin: str | None, directory: Path) -> dict[str, int]:
    from causal.tracing.callgrind import read_callgrind

    out = directory / "callgrind.out"
    valgrind = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", *command]
    with open(stdin or os.devnull, "rb") as source:
        subprocess.run(valgrind, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200)
    program = os.path.realpath(command[0])
    calls: dict[str, int] = {}
    for (path, name), n in read_callgrind(out).calls.items():
        if os.path.realpath(path) == program and not name.startswith("0x"):
            calls[name] = calls.get(name, 0) + n
    return calls


def compare(name: str, command: list[str], stdin: str | None, directory: Path) -> Comparison:
    """Functions of one name (static ones of several files) are added up, as callgrind has it."""
    ours: dict[str, int] = {}
    for label, n in count_here(command, stdin).items():
        plain = label.partition(" (")[0].partition("#")[0]
        ours[plain] = ours.get(plain, 0) + n
    theirs = count_by_callgrind(command, stdin, directory)
    names = (ours.keys() | theirs.keys()) - RUNTIME
    different = {each: (ours.get(each, 0), theirs.get(each, 0)) for each in sorted(names)
                 if ours.get(each, 0) != theirs.get(each, 0)}  # fmt: skip
    return Comparison(name, len(names), sum(ours.values()), different, len(ours.keys() & RUNTIME))


def attach_times(program: Path, wanted: int) -> tuple[int, float, float]:
    """Number of functions of a program, seconds to attach to all of them and to detach."""
    from causal.symbols.elf import Binary
    from causal.tracing.functions import select_functions
    from causal.tracing.probes import CallCounts

    functions = select_functions(Binary.load(str(program)), limit=1 << 20).functions[:wanted]
    with CallCounts(functions) as counts:
        begin = time.perf_counter()
        counts.attach()
        attached = time.perf_counter()
        counts.detach()
        return len(functions), attached - begin, time.perf_counter() - attached


def cpu_alone_ms(command: list[str], stdin: str | None) -> float:
    """CPU time of a run that nothing of ours has started."""
    with open(stdin or os.devnull, "rb") as source:
        child = subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def cpu_times_ms(command: list[str], stdin: str | None, rounds: int) -> tuple[float, float, float]:
    """Medians in turn: alone, as `trace` times a run, and while its calls are counted."""
    from causal.symbols.elf import Binary
    from causal.tracing.execution import Executor
    from causal.tracing.functions import select_functions
    from causal.tracing.probes import CallCounts

    program = os.path.realpath(command[0])
    executor = Executor(program, None, None)
    times: list[list[float]] = [[], [], []]
    with CallCounts(select_functions(Binary.load(program)).functions) as counts:
        for _ in range(rounds):
            times[0].append(cpu_alone_ms(command, stdin))
            counts.attach()
            times[2].append(executor.execute(command, stdin, started=counts.trace).cpu_ns / 1e6)
            counts.detach()
            times[1].append(executor.execute(command, stdin).cpu_ns / 1e6)
    alone, timed, counted = map(statistics.median, times)
    return alone, timed, counted


def runs(directory: Path) -> list[tuple[str, list[str], str | None]]:
    found: list[tuple[str, list[str], str | None]] = []
    for name, arguments in WORKLOAD_RUNS.items():
        program = directory / name
        subprocess.run(["cc", *FLAGS, "-o", program, WORKLOADS / f"{name}.c", "-lm"], check=True)
        found.append((name, [str(program), *arguments], None))
    program = directory / "thumbnail"
    subprocess.run(["cc", *FLAGS, "-o", program, WORKLOADS / "thumbnail.c"], check=True)
    with (directory / "image").open("wb") as file:
        subprocess.run([program, "--make", "indexed", "150"], stdout=file, check=True)
    found.append(("thumbnail", [str(program), str(directory / "image"), "smooth"], None))
    (directory / "sql").write_text(SQL)
    (directory / "json").write_text(JSON)
    if (REAL / "sqlite3_shell").exists():
        found.append(("SQLite", [str(REAL / "sqlite3_shell"), "-batch", ":memory:"], str(directory / "sql")))
    if (REAL / "jq_traced").exists():
        found.append(("jq with Oniguruma", [str(REAL / "jq_traced"), FILTER], str(directory / "json")))
    if len(found) < len(WORKLOAD_RUNS) + 3:
        print("real programs are missing: scripts/real-programs traced builds them", file=sys.stderr)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench calls", description=__doc__)
    parser.add_argument("--only", metavar="NAME", nargs="*", help="some of the programs")
    parser.add_argument("--attach-to", metavar="PROGRAM", type=Path, help="a program with many functions")
    options = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        parser.error("valgrind is missing: sudo apt install valgrind")
    sys.path.insert(0, str(ROOT))
    machine = describe_machine()
    print(f"Measured on {machine['model']}, {machine['cpus']} CPUs, Linux {machine['kernel']}.\n")
    print("| program | functions called | calls | counted exactly as by callgrind | differences (ours, callgrind's) |")
    print("|---|---|---|---|---|")
    times: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for title, command, stdin in runs(Path(name)):
            if options.only and title not in options.only:
                continue
            if title in TIMED:
                alone, timed, counted = cpu_times_ms(command, stdin, ROUNDS)
                difference = f"{timed / alone - 1:+.1%}"
                times.append(f"| {title} | {alone:.2f} ms | {timed:.2f} ms ({difference}) | {counted:.0f} ms |")
            found = compare(title, command, stdin, Path(name))
            differences = ", ".join(f"{each} ({a}, {b})" for each, (a, b) in found.different.items()) or "none"
            print(f"| {title} | {found.functions} | {found.calls:,} | {found.exact:.1%} | {differences} |", flush=True)
    for title, reason in LEFT_OUT.items():
        print(f"\nLeft out: {title}: {reason}.")
    if times:
        print(f"\n| CPU time, medians of {ROUNDS} | alone | timed by `trace` | while calls are counted |")
        print("|---|---|---|---|")
        print("\n".join(times))
    if options.attach_to:
        count, on_s, off_s = attach_times(options.attach_to, 5000)
        print(
            f"\n{count:,} functions of {options.attach_to.name}: attached in {on_s:.3f} s, detached in {off_s:.3f} s."
        )
    return 0
