"""Programs that do a fixed number of rounds, and how long they take with and without a profiler around them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import coz
from .cases import ALL_CASES, ROOT, WORKLOADS
from .prediction import PROGRESS_POINT
from .truth import RESULT

sys.path.insert(0, str(ROOT))

from causal.errors import CausalError
from causal.profile import Profile, read_profile

REAL = ROOT / "build" / "real"
REAL_SOURCES = ROOT / "scripts" / "real"
MEMCACHED_PORT = "21213"
LONGEST_S = 600
_STOP_S = 60
# One of each kind, and one whose threads hand over a thousand times a second or more.
DEFAULT_CASES = ("barrier", "pipeline", "pingpong", "pingpong-0.5ms", "lock-critical", "spin", "oversub", "worksleep")


class TimingFailed(Exception):
    """A run ended with an error or without its closing line, or its profile has no placebo windows."""


@dataclass(frozen=True)
class Subject:
    """A program that counts rounds. With a `load`, the program is a server and the load counts the rounds."""

    name: str
    command: list[str]
    point: str
    coz_command: list[str] | None = None
    load: list[str] | None = None


@dataclass(frozen=True)
class Timing:
    """`wall_s` from the start of the command to its end, `steady_s` from the first round to the last of `rounds`."""

    wall_s: float
    steady_s: float
    rounds: int

    @property
    def rate(self) -> float:
        """Rounds per second."""
        return (self.rounds - 1) / self.steady_s


def select_subjects(names: Iterable[str], with_coz: bool) -> list[Subject]:
    """The programs with these names, the default ones without names. Unknown names raise KeyError."""
    real = {subject.name: subject for subject in real_subjects(with_coz)}
    cases = {case.name: case for case in ALL_CASES}
    wanted = list(names) or [*DEFAULT_CASES, *real]
    return [real[name] if name in real else _workload(cases[name].name) for name in wanted]


def _workload(name: str) -> Subject:
    case = next(case for case in ALL_CASES if case.name == name)
    built = case.command(coz.COZ_PROGRAMS) if coz.can_answer(case) else None
    return Subject(name, case.command(), PROGRESS_POINT, built)


def real_subjects(with_coz: bool) -> list[Subject]:
    """SQLite and memcached, where `scripts/real-programs build` has built them."""
    subjects = []
    if (REAL / "sqlite_load").exists():
        threads = ["--threads", "2"]
        built = [str(REAL / "coz" / "sqlite_load"), *threads] if with_coz else None
        subjects.append(Subject("sqlite", [str(REAL / "sqlite_load"), *threads], "transaction_done", built))
    if (REAL / "memcached.bin").exists() and (REAL / "mc_load").exists():
        user = ["-u", "root"] if os.geteuid() == 0 else []  # it refuses to run as root without being told
        server = [str(REAL / "memcached.bin"), "-l", "127.0.0.1", "-p", MEMCACHED_PORT, "-U", "0", "-t", "4", *user]
        load = [str(REAL / "mc_load"), "--port", MEMCACHED_PORT, "--connections", "8"]
        subjects.append(Subject("memcached", server, "process_command_ascii", None, load))
    return subjects


def build(subjects: Sequence[Subject], with_coz: bool) -> None:
    """The workloads, and what COZ needs."""
    subprocess.run(["make", "--silent", "-C", str(WORKLOADS)], check=True)
    if with_coz:
        coz.build_programs()
        if any(subject.name == "sqlite" for subject in subjects):
            _build_sqlite_for_coz()


def _build_sqlite_for_coz() -> None:
    # Library and load in one go: COZ must find its kind of debug information in the main executable.
    target, amalgamation = REAL / "coz" / "sqlite_load", REAL / "sqlite3" / "sqlite3.c"
    if target.exists() or not amalgamation.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-gdwarf-3", "-no-pie", "-fno-omit-frame-pointer", "-pthread", "-DWORKLOADS_COZ",
         "-DSQLITE_THREADSAFE=1", "-DSQLITE_OMIT_LOAD_EXTENSION", f"-I{WORKLOADS}", f"-I{amalgamation.parent}",
         "-o", str(target), str(REAL_SOURCES / "sqlite_load.c"), str(amalgamation), "-lm"],
        check=True,
    )  # fmt: skip


def run(subject: Subject, wrapper: Sequence[str], *limit: str) -> Timing:
    """One run inside `wrapper` (a profiler's command line) to the given limit of rounds or seconds."""
    if subject.load is None:
        return _run_program([*wrapper, *subject.command, *limit])
    return _run_server([*wrapper, *subject.command], [*subject.load, *limit])


def _run_program(command: Sequence[str]) -> Timing:
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TimingFailed(str(error)) from error
    if done.returncode != 0:
        raise TimingFailed(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return read_timing(done.stdout, time.monotonic() - started)


def _run_server(command: Sequence[str], load: Sequence[str]) -> Timing:
    started = time.monotonic()
    # Its own process group, so that an interrupt meant for us does not reach it twice.
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    try:
        timing = _run_program(load)
        return Timing(time.monotonic() - started, timing.steady_s, timing.rounds)
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def read_timing(output: str, wall_s: float) -> Timing:
    """The closing line of a program, with the time of the whole command."""
    found = RESULT.search(output)
    if found is None or float(found[3]) <= 0:
        raise TimingFailed(f"no rate in the output: {output[-200:]!r}")
    rounds = int(found[1])
    return Timing(wall_s, (rounds - 1) / float(found[3]), rounds)


def placebo_rate(path: Path, point: str) -> float:
    """Visits per second of wall time in the placebo windows: samples and signals, but no delays."""
    try:
        return rate_in_placebos(read_profile(path), point)
    except CausalError as error:
        raise TimingFailed(error.message) from error


def rate_in_placebos(profile: Profile, point: str) -> float:
    """The same for a profile in memory."""
    windows = [window for window in profile.windows if window.arm == "placebo" and window.void is None]
    wall_s = sum(window.wall_ns for window in windows) / 1e9
    visits = sum(seen.delta for window in windows for seen in window.points if seen.name == point)
    if wall_s <= 0 or visits == 0:
        raise TimingFailed("no placebo window with a visit: give it more --seconds")
    return visits / wall_s


def stated_overhead(profiler: Sequence[str], path: Path) -> dict[str, float | None]:
    """The `overhead` object of `report --json`."""
    done = subprocess.run([*profiler, "report", str(path), "--json"], capture_output=True, text=True, check=False)
    try:
        stated = json.loads(done.stdout)["overhead"]
    except (ValueError, KeyError) as error:
        raise TimingFailed(f"no report: {done.stderr.strip()[-300:]}") from error
    return {str(key): None if value is None else float(value) for key, value in stated.items()}
