"""Fixtures of the tests with real eBPF. All of them need root; nothing they start outlives its test."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from causal.child import Child, Preload
from causal.engine import PAUSE_SIGNAL, Engine
from causal.regions import RegionTable, Scope
from causal.symbols.elf import Binary
from causal.target import Target
from causal.windows import EngineOptions
from cli.main import main
from tests.kernel.profiler import Finished, Profiler, Recording

PROGRAMS = Path(__file__).parent / "programs"
POINTS = 8


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The directory of the built programs of single tests."""
    directory = tmp_path_factory.mktemp("programs")
    subprocess.run(["make", "--silent", "-C", PROGRAMS, f"BUILD={directory}"], check=True, timeout=120)
    return directory


@pytest.fixture
def start_profiler(tmp_path):
    """`start_profiler("run", ...)` returns the running Profiler."""
    started = []

    def start(*words, **options):
        started.append(Profiler(words, tmp_path, f"run{len(started)}", **options))
        return started[-1]

    yield start
    for profiler in started:
        profiler.stop()


@pytest.fixture
def causal_bpf(start_profiler):
    """`causal_bpf("report", path)` runs it to its end and returns how it ended."""
    return lambda *words, **options: start_profiler(*words, **options).wait()


@pytest.fixture
def in_process(capsys):
    """`in_process("trace", ...)`: as causal_bpf, but in this very process, which is faster; not for experiments."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Finished(code, *capsys.readouterr())

    return run


@pytest.fixture
def record(causal_bpf, tmp_path):
    """`record("barrier", "5000", options=["--duration", "8s"])`: a quiet run with a profile.

    The program is a path; the progress point is `progress` and the unit `function` unless the options name others.
    """
    numbers = itertools.count()

    def run(program, *arguments, options=(), point="progress", seed=1, **popen):
        path = tmp_path / f"profile{next(numbers)}.jsonl"
        points = ("-p", point) if point else ()
        unit = () if "-u" in options else ("-u", "function")
        words = ("run", "--quiet", "--seed", seed, *points, *unit, *options, "-o", path, "--", program, *arguments)
        return Recording(path, causal_bpf(*words, **popen))

    return run


@pytest.fixture(scope="module")
def engine():
    """A loaded engine, shared by the tests of a module: compare counters before and after."""
    with Engine(EngineOptions(), random.Random(1)) as engine:
        engine.load(POINTS)
        yield engine
        engine.stop()


@pytest.fixture
def launch(engine):
    """`launch(program, *arguments)` starts a program on the engine's clock and returns its Child."""
    children = []

    def start(program, *arguments):
        command = [str(program), *map(str, arguments)]
        child = Child.start(
            command[0], command, Preload(engine.answers_fd, engine.options.max_answers, int(PAUSE_SIGNAL)), owner=None
        )
        children.append(child)
        os.setpgid(child.pid, child.pid)  # it waits at its gate
        engine.add_process(child.pid)
        child.release()
        return child

    yield start
    engine.stop()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for tgid in engine.processes():
        engine.remove_process(tgid)


@pytest.fixture
def regions_of(engine):
    """`regions_of(program)`: (Target, {name: region id}) of a program's functions, known to the engine."""

    def describe(program):
        path = os.path.realpath(program)
        table = RegionTable("function", engine.options.max_ranges)
        table.add_functions([Binary.load(path)])
        engine.write_ranges(table.ranges)
        return Target(engine, table, Scope(path)), {region.name: region.id for region in table}

    return describe
