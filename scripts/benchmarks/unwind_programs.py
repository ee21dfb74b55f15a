"""Programs whose stacks are compared: Debian's own, unmodified, and two of ours at -O2 without frame pointers."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from benchmarks.unwind_probe import running

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
create table t(a integer primary key, b text, c real);
with recursive n(x) as (select 1 union all select x+1 from n where x < 20000)
insert into t select x, printf('%d-%x', x % 977, x), x / 7.0 from n;
with recursive c(x) as (select 1 union all select x+1 from c where x < 100000000)
select count(*), sum(abs(x % 7)), max(printf('%d', x)),
  sum((select count(*) from t where b like '%' || (x % 97) || '%' group by a % 13 order by c desc limit 1)) from c;
"""
PERL = """
while (1) {
    my %h; $h{$_ % 97} .= "x$_" for 1..5000; my @a = sort { $h{$a} cmp $h{$b} } keys %h;
    s/x(\\d+)/<$1>/g for values %h;
}
"""
POSTGRES_SQL = """
create temporary table t as select i, md5(i::text) as m, i % 97 as g from generate_series(1, 3000) i;
create index on t (m);
do $$ begin for k in 1..1000000 loop
  perform g, count(*), max(m), string_agg(m, ',' order by m) from t where m ~ '[0-9a]{3}' group by g;
  perform count(*) from t a join t b on a.m = b.m where b.i < 500;
  update t set i = i + 1 where g = k % 97;
end loop; end $$;
"""
NGINX_PORT, POSTGRES_PORT = 18087, 18088
CLIENT = f"""
import socket
while True:
    try:
        s = socket.create_connection(("127.0.0.1", {NGINX_PORT}))
        for _ in range(90):
            s.sendall(b"GET /page.html HTTP/1.1\\r\\nHost: x\\r\\nAccept-Encoding: gzip\\r\\n\\r\\n")
            s.recv(65536)
    except OSError:
        pass
"""


@contextmanager
def command(*words):
    """Runs a command; gives its number."""
    with running(list(words)) as child:
        yield child.pid


@contextmanager
def cpp(directory):
    """Sorting, streams, regular expressions and exceptions, at -O2 without frame pointers."""
    (directory / "cpp.cc").write_text(CPP)
    flags = ["-O2", "-fomit-frame-pointer"]
    subprocess.run(["g++", *flags, "-o", directory / "cpp", directory / "cpp.cc"], check=True)
    with command(str(directory / "cpp")) as pid:
        yield pid


@contextmanager
def rust(directory):
    """Maps, formatting and recursion, with -O."""
    (directory / "rust.rs").write_text(RUST)
    rustc = shutil.which("rustc") or str(Path.home() / ".cargo/bin/rustc")
    flags = ["-C", "opt-level=2", "-C", "force-frame-pointers=no"]
    subprocess.run([rustc, *flags, "-o", directory / "rust", directory / "rust.rs"], check=True, cwd=directory)
    with command(str(directory / "rust")) as pid:
        yield pid


@contextmanager
def nginx(directory):
    """One process that serves compressed pages to one client."""
    (directory / "page.html").write_text("x" * 5000)
    for name in ("logs", "body"):
        (directory / name).mkdir(exist_ok=True)
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; error_log /dev/null; pid {directory}/pid; events {{}}"
        f"http {{ access_log {directory}/logs/a; gzip on; gzip_types *; gzip_min_length 1;"
        f" client_body_temp_path {directory}/body;"
        f" server {{ listen 127.0.0.1:{NGINX_PORT}; root {directory}; }} }}"
    )
    words = ["/usr/sbin/nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]
    with command(*words) as pid, running([sys.executable, "-c", CLIENT]):
        yield pid


@contextmanager
def postgres(directory):
    """The process that serves one connection of a cluster of its own."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    data, sql = directory / "data", directory / "load.sql"
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    sql.write_text(POSTGRES_SQL)
    user = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/tmp"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
    subprocess.run([binaries / "initdb", "-D", data, "-A", "trust"], **user, **quiet)
    connect = ["-h", "127.0.0.1", "-p", str(POSTGRES_PORT), "-U", "postgres"]
    # The server itself ends a group of its own when it is killed; its children notice.
    with running([binaries / "postgres", "-D", data, "-k", data, "-p", str(POSTGRES_PORT), "-c", "fsync=off"], **user):
        until = time.monotonic() + 20
        while subprocess.run([binaries / "pg_isready", "-q", *connect]).returncode and time.monotonic() < until:
            time.sleep(0.2)
        with running([binaries / "psql", "-q", *connect, "-f", str(sql), "postgres"], **user):
            yield backend()


def backend(patience_s=20):
    """The number of the process that runs our statements."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if b"127.0.0.1(" in (line := (entry / "cmdline").read_bytes()) and b" DO" in line:
                        return int(entry.name)
                except OSError:
                    continue
        time.sleep(0.2)
    raise RuntimeError("PostgreSQL does not run the statements")


def available(directory):
    """Name -> a function that gives a context with the number of a busy process, of the programs that are there."""
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    found = {
        "python3": (python, lambda: command(python, "-c", PYTHON)),
        "sqlite3": ("/usr/bin/sqlite3", lambda: command("/usr/bin/sqlite3", ":memory:", SQL)),
        "nginx": ("/usr/sbin/nginx", lambda: nginx(directory)),
        "postgres": ("/usr/lib/postgresql", lambda: postgres(directory)),
        "c++": ("/usr/bin/g++", lambda: cpp(directory)),
        "rust": (shutil.which("rustc") or str(Path.home() / ".cargo/bin/rustc"), lambda: rust(directory)),
        "perl": ("/usr/bin/perl", lambda: command("/usr/bin/perl", "-e", PERL)),
        "openssl": ("/usr/bin/openssl", lambda: command("openssl", "speed", "-seconds", "600", "rsa2048")),
        "xz": ("/usr/bin/xz", lambda: command("sh", "-c", "exec xz -9e -T1 < /dev/urandom")),
    }
    return {name: start for name, (path, start) in found.items() if os.path.exists(path)}
