"""Stacks of unmodified programs, unwound by the engine and, on the frozen thread, by gdb."""

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.unwind_probe import Probe, running, target_for
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
PYTHON = """
import json, re, sqlite3, zlib
data = {str(i): list(range(i % 9)) for i in range(999)}
while True:
    text = json.dumps(data); json.loads(text); re.findall(r"(\\d+), (\\d+)", text)
    zlib.compress(text.encode()); sorted(text, key=lambda c: -ord(c))
    d = sqlite3.connect(":memory:"); d.execute("create table t(a)")
    d.executemany("insert into t values (?)", ((i,) for i in range(500))); d.execute("select sum(a) from t").fetchall()
"""
CPP = """
#include <algorithm>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
volatile long sink;
int depth(int n) { if (!n) throw std::runtime_error("end"); return depth(n - 1) + n; }
int main() {
  for (long k = 0;; k++) {
    std::vector<std::string> v; std::map<std::string, int> m;
    for (int i = 0; i < 500; i++) {
      std::ostringstream s; s << i * 7919 % 1000 << ' ' << 1.5 * i; v.push_back(s.str()); m[v.back()]++;
    }
    std::sort(v.begin(), v.end(), [](auto &a, auto &b) { return a.size() != b.size() ? a.size() < b.size() : a > b; });
    static const std::regex r("([0-9]+) ([0-9.]+)"); std::smatch x;
    for (auto &s : v) sink += std::regex_match(s, x, r);
    try { sink += depth(20); } catch (const std::exception &e) { sink++; }
  }
}
"""
RUST = """
use std::collections::{BTreeMap, HashMap};
fn fib(n: u64) -> u64 { if n < 2 { n } else { std::hint::black_box(fib(n - 1)) + fib(n - 2) } }
fn main() { loop {
    let mut h: HashMap<String, Vec<u64>> = HashMap::new(); let mut b = BTreeMap::new();
    for i in 0..2000u64 {
        h.entry(format!("{:x}", i % 97)).or_default().push(i); b.insert(i * 7919 % 1000, format!("{:?}", i));
    }
    let mut v: Vec<_> = h.iter().map(|(k, v)| (v.iter().sum::<u64>(), k.clone())).collect(); v.sort();
    std::hint::black_box((v, b, fib(15)));
} }
"""
SQL = """
with recursive c(x) as (select 1 union all select x+1 from c where x < 100000000)
select count(*), sum(abs(x % 7)), max(printf('%d', x)) from c;
"""
PERL = """
while (1) {
    my %h; $h{$_ % 97} .= "x$_" for 1..5000; my @a = sort { $h{$a} cmp $h{$b} } keys %h;
    s/x(\\d+)/<$1>/g for values %h;
}
"""
ENDINGS = ("running", "bottom", "lost", "limit")


def commands(directory):
    """Name -> a command that keeps a core busy, of the programs that are there."""
    found = {
        "python3": [sys.executable if not Path("/usr/bin/python3").exists() else "/usr/bin/python3", "-c", PYTHON],
        "sqlite3": ["/usr/bin/sqlite3", ":memory:", SQL],
        "perl": ["/usr/bin/perl", "-e", PERL],
        "openssl": ["/usr/bin/openssl", "speed", "-seconds", "600", "rsa2048"],
        "xz": ["sh", "-c", "exec xz -9e -T1 < /dev/urandom"],
    }  # fmt: skip
    (directory / "cpp.cc").write_text(CPP)
    (directory / "rust.rs").write_text(RUST)
    flags = ["-O2", "-fomit-frame-pointer"]
    subprocess.run(["g++", *flags, "-o", directory / "cpp", directory / "cpp.cc"], check=True)
    found["c++"] = [str(directory / "cpp")]
    rust = Path.home() / ".cargo/bin/rustc"
    if rust.exists():
        subprocess.run([rust, "-O", "-o", directory / "rust", directory / "rust.rs"], check=True, cwd=directory)
        found["rust"] = [str(directory / "rust")]
    server = nginx(directory)
    if server:
        found["nginx"] = server
    return {name: command for name, command in found.items() if Path(command[0]).exists()}


def nginx(directory):
    """One process that serves and a client that asks for it, both children of one shell."""
    if not Path("/usr/sbin/nginx").exists():
        return None
    (directory / "page.html").write_text("x" * 5000)
    for name in ("logs", "body"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; error_log /dev/null; pid {directory}/pid; events {{}}"
        f"http {{ access_log {directory}/logs/a; gzip on; gzip_types *; gzip_min_length 1;"
        f" client_body_temp_path {directory}/body;"
        f" server {{ listen 127.0.0.1:18087; root {directory}; }} }}"
    )
    return ["/usr/sbin/nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]


CLIENT = """
import socket
while True:
    try:
        s = socket.create_connection(("127.0.0.1", 18087))
        for _ in range(90):
            s.sendall(b"GET /page.html HTTP/1.1\\r\\nHost: x\\r\\nAccept-Encoding: gzip\\r\\n\\r\\n")
            s.recv(65536)
    except OSError:
        pass
"""


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
            examples.append((ENDINGS[ending], [hex(a) for a in ours], [hex(a) for a in theirs["pcs"]]))
    engine.remove_process(pid)
    return outcome, examples, depths


def measure(words, stacks):
    """Prints one line for each program."""
    total = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="unwind-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        programs = {k: v for k, v in commands(directory).items() if not words or k in words}
        gdb = Gdb(directory)
        try:
            with Probe(EngineOptions(period_ns=3_000_017)) as engine:
                engine.load()
                engine.freeze_at_samples()
                for name, command in programs.items():
                    with (
                        running(command) as child,
                        running([sys.executable, "-c", CLIENT] if name == "nginx" else ["true"]),
                    ):
                        time.sleep(0.5)
                        share = stacks // len(programs) + 1
                        outcome, examples, depths = compare(engine, gdb, child.pid, share, 600)
                    mean = sum(depths) / max(len(depths), 1)
                    print(
                        f"{name:10} {dict(outcome)} frames: mean {mean:.1f}, most {max(depths, default=0)}", flush=True
                    )
                    for example in examples[:3]:
                        print("   ", example)
                    total += outcome
        finally:
            gdb.close()
    compared = total["same"] + total["different"]
    print(f"{total['same']} of {compared} stacks are the same ({total['same'] / max(compared, 1):.2%})")
    return 0 if compared and total["same"] >= 0.995 * compared else 1
