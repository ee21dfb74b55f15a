"""Ten thousand modules in one process: what meeting them costs, and whether stacks through them are whole."""

import os
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.unwind_probe import running
from causal.engine import Engine
from causal.regions import RegionTable, Scope
from causal.target import Target
from causal.windows import EngineOptions

LIBRARY = """
static volatile long sink;
__attribute__((noinline, noipa)) long inner(long n) { while (n-- > 0) sink++; return sink; }
long outer(long n) { return inner(n) + 1; }
"""
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	long count = atol(argv[2]);
	long (**outer)(long) = calloc(count, sizeof(*outer));

	for (long i = 0; i < count; i++) {
		char path[200];
		void *library;
		snprintf(path, sizeof(path), "%s/lib%ld.so", argv[1], i);
		library = dlopen(path, RTLD_NOW);
		if (!library || !(outer[i] = (long (*)(long))dlsym(library, "outer"))) {
			fprintf(stderr, "%s\\n", dlerror());
			return 1;
		}
	}
	puts("loaded");
	fflush(stdout);
	for (long i = 0;; i++)
		outer[i * 7919 % count](1000);
}
"""


def make(directory, count):
    """The program, and copies of a library that differ in their build-ids."""
    for name, text in (("library.c", LIBRARY), ("program.c", PROGRAM)):
        (directory / name).write_text(text)
    flags = ["-O2", "-fomit-frame-pointer"]
    first = directory / "first.so"
    command = ["cc", *flags, "-shared", "-fPIC", "-Wl,--build-id", "-Wl,-z,max-page-size=4096", "-o", first]
    subprocess.run([*command, directory / "library.c"], check=True)
    subprocess.run(["cc", *flags, "-o", directory / "program", directory / "program.c"], check=True)
    data = bytearray(first.read_bytes())
    at = data.index(b"GNU\0", data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")) + 4
    for number in range(count):
        data[at : at + 8] = number.to_bytes(8, "little")
        (directory / f"lib{number}.so").write_bytes(data)


def measure(words, _stacks):
    """Prints what each look at the process costs and how stacks fare meanwhile."""
    count = int(words[0]) if words else 10_000
    with tempfile.TemporaryDirectory(prefix="unwind-") as name, Engine(EngineOptions()) as engine:
        directory = Path(name)
        make(directory, count)
        engine.load()
        command = [str(directory / "program"), name, str(count)]
        with running(command) as child:
            wait_until_loaded(child.pid, count)
            engine.add_process(child.pid, follow=False)
            target = Target(engine, RegionTable("module"), Scope(command[0], ["lib*"]))
            engine.stop()
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            engine.tick(True)
            until, before = time.monotonic() + 12, engine.counters()
            while time.monotonic() < until:
                began = time.process_time()
                target.refresh()
                took = time.process_time() - began
                now = engine.counters()
                stacks = {key: now[key] - before[key] for key in ("stacks_whole", "stacks_guessed", "stacks_lost")}
                before = now
                modules, rows = target.modules.used
                print(f"{took * 1000:7.1f} ms CPU, {modules:6,} modules, {rows:9,} rows, {stacks}", flush=True)
                time.sleep(0.5)
            engine.tick(False)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        print(f"{count:,} modules: {grown / 1024:.0f} MB more")
    return 0


def wait_until_loaded(pid, count, patience_s=120):
    until = time.monotonic() + patience_s
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}"):
        if len(re.findall(r" r-xp .*/lib\d+\.so", Path(f"/proc/{pid}/maps").read_text())) >= count:
            return
        time.sleep(0.3)
    raise RuntimeError("the program has not loaded its libraries")
