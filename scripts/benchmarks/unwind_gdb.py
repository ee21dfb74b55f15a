"""Stacks of unmodified programs, unwound by the engine and, on the frozen thread, by gdb."""

import collections
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.unwind_probe import Probe, target_for
from benchmarks.unwind_programs import available
from causal.mappings import read_maps
from causal.windows import EngineOptions

# gdb, asked once for each stack over its standard input. Its synthetic frames (tail calls, inlined calls) are apart.
GDB = """
import gdb, json, sys
gdb.execute("set pagination off"); gdb.execute("set confirm off"); gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on"); gdb.execute("set debuginfod enabled off")
while True:
    line = sys.stdin.readline()
    if not line:
        break
    pid, tid = map(int, line.split())
    try:
        gdb.execute(f"attach {pid}", to_string=True)
        next(t for t in gdb.selected_inferior().threads() if t.ptid[1] == tid).switch()
        frame, found = gdb.newest_frame(), []
        while frame is not None:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                found.append(frame.pc())
            frame = frame.older()
        answer = {"pcs": found}
    except Exception as error:
        answer = {"error": str(error)}
    try:
        gdb.execute("detach", to_string=True)
    except Exception:
        pass
    print("ANSWER " + json.dumps(answer), file=sys.stderr, flush=True)
"""
ENDINGS = ("running", "bottom", "lost", "limit")


class Gdb:
    """gdb in the background; `stack` attaches, reads and detaches."""

    def __init__(self, directory):
        script = directory / "ask.py"
        script.write_text(GDB)
        self._process = subprocess.Popen(
            ["gdb", "-q", "-nx", "-batch", "-x", str(script)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "DEBUGINFOD_URLS": ""},
        )  # fmt: skip

    def stack(self, pid, tid):
        self._process.stdin.write(f"{pid} {tid}\n")
        self._process.stdin.flush()
        for line in self._process.stderr:
            if line.startswith("ANSWER "):
                return json.loads(line[7:])
        raise RuntimeError("gdb has ended")

    def close(self):
        self._process.kill()
        self._process.wait()


def same(ours, theirs):
    """Whether the chains are the same: ours are inside of the calls, gdb's are return addresses."""
    return len(ours) == len(theirs) and all(their - our in (0, 1) for our, their in zip(ours, theirs, strict=True))


def difference(pid, ours, theirs):
    """Where two chains part: the last common frame and three more of each, by file and offset."""
    maps = read_maps(pid)

    def place(address):
        found = next((mapping for mapping in maps if address in mapping), None)
        return f"{os.path.basename(found.path)}+{found.file_offset(address):#x}" if found else hex(address)

    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, pair in pairs if not same(pair[:1], pair[1:])), min(len(ours), len(theirs)))
    first = max(at - 1, 0)
    described = [", ".join(map(place, chain[first : at + 3])) or "nothing" for chain in (ours, theirs)]
    return f"from frame {first} of {len(ours)} and {len(theirs)}: {described[0]} | gdb: {described[1]}"


def compare(engine, gdb, pid, count, seconds):
    """Counter of outcomes and examples of differences."""
    target = target_for(engine, pid)
    outcome, examples, until = collections.Counter(), [], time.monotonic() + seconds
    depths = []
    while sum(outcome[k] for k in ("same", "different")) < count and time.monotonic() < until:
        taken = engine.take()
        target.refresh()
        if taken is None:
            outcome["no sample"] += 1
            if outcome["no sample"] > 5:
                break
            continue
        tid, user, ending, ours = taken
        theirs = gdb.stack(pid, tid)
        os.kill(pid, signal.SIGCONT)
        if "error" in theirs:
            outcome["gdb: " + theirs["error"][:40]] += 1
        elif theirs["pcs"][:1] != ours[:1]:
            outcome["moved on before it froze"] += 1
        elif same(ours, theirs["pcs"]):
            outcome["same"] += 1
            outcome["of these in the kernel"] += not user
            depths.append(len(ours))
        else:
            outcome["different"] += 1
            examples.append(f"{ENDINGS[ending]} {difference(pid, ours, theirs['pcs'])}")
    engine.remove_process(pid)
    return outcome, examples, depths


def measure(words, stacks):
    """Prints one line for each program."""
    total = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="unwind-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        programs = {k: v for k, v in available(directory).items() if not words or k in words}
        gdb = Gdb(directory)
        try:
            with Probe(EngineOptions(period_ns=3_000_017)) as engine:
                engine.load()
                engine.freeze_at_samples()
                for name, start in programs.items():
                    with start() as pid:
                        time.sleep(0.5)
                        share = -(-stacks // len(programs))
                        outcome, examples, depths = compare(engine, gdb, pid, share, 600)
                    mean = sum(depths) / max(len(depths), 1)
                    print(
                        f"{name:10} {dict(outcome)} frames: mean {mean:.1f}, most {max(depths, default=0)}", flush=True
                    )
                    for example in examples[:5]:
                        print("   ", example)
                    total += outcome
        finally:
            gdb.close()
    compared = total["same"] + total["different"]
    print(f"{total['same']} of {compared} stacks are the same ({total['same'] / max(compared, 1):.2%})")
    return 0 if compared and total["same"] >= 0.995 * compared else 1
