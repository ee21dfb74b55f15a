"""causal-bpf as its users run it: a process with an exit code and two streams, and the profile that it leaves.

`Profiler` is one execution, in a process group of its own together with its target. Its streams go to files, so that
a target that outlives it holds nobody up.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from causal.analysis import analyse
from causal.profile import read_profile

PROGRAM = Path(sys.executable).with_name("causal-bpf")
# Far beyond what anything here takes: it only ends a test whose program hangs.
PATIENCE_S = 90
# Where numbers count, what else the machine does must not take the CPUs from the target: options for such a Profiler.
# Niceness counts within a session only, where the kernel makes groups of sessions, and then the session has one too.
AHEAD_OF_OTHERS = {
    "wrapper": ("sh", "-c", 'echo -10 2>/dev/null >/proc/self/autogroup; exec nice -n -10 "$@"', "sh"),
    "process_group": None,
    "start_new_session": True,
}
# Variables that would change what happens: who called sudo, what is preloaded, how errors are printed.
_UNWANTED = ("SUDO_UID", "SUDO_GID", "SUDO_USER", "LD_PRELOAD", "CAUSAL_BPF_DEBUG", "CAUSAL_BPF_STUB", "COLUMNS")


def wait_until(condition, what, patience_s=PATIENCE_S):
    """Poll until the condition holds; returns its value."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain for {what}"
        time.sleep(0.02)
    return value


def is_alive(pid):
    """Whether a process runs: exists, and is no zombie that nobody has fetched."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def records(path):
    """The records of a profile that may still be being written."""
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


@dataclass(frozen=True)
class Finished:
    """How an execution ended."""

    code: int
    out: str
    err: str

    def assert_error(self, code, error, hint):
        """Exactly one `error:` and one `hint:` line, which match, and nothing else."""
        assert self.code == code, self
        lines = self.err.splitlines()
        assert [line.partition(" ")[0] for line in lines] == ["error:", "hint:"], self.err
        assert re.search(error, lines[0]), self.err
        assert re.search(hint, lines[1]), self.err


class Profiler:
    """An execution of causal-bpf that goes on until `wait`; `stop` ends it and its target whatever they do."""

    def __init__(self, words, directory, name="run", environment=(), wrapper=(), **popen):
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        clean = {key: value for key, value in os.environ.items() if key not in _UNWANTED}
        command = [*map(str, wrapper), str(PROGRAM), *map(str, words)]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "process_group": 0, **popen}
            self.process = subprocess.Popen(command, cwd=directory, env=clean | dict(environment), **options)

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def send(self, number):
        """Signal the profiler alone."""
        self.process.send_signal(number)

    def wait(self):
        self.process.wait(PATIENCE_S)
        return Finished(self.process.returncode, self.out, self.err)

    def stop(self):
        # A stopped process gets SIGKILL all the same.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@dataclass(frozen=True)
class Recording:
    """A profile that was recorded, and how the run ended."""

    path: Path
    finished: Finished

    @cached_property
    def profile(self):
        return read_profile(self.path)

    @cached_property
    def analysis(self):
        return analyse(self.profile)

    @property
    def losses(self):
        """Counters of the whole run."""
        return self.profile.end.diagnosis

    def result(self, region):
        return next(result for result in self.analysis.regions if result.region == region)

    def gain(self, region, level=1.0):
        """The gain as the windows have it, a fraction, however few there are; the analysis asks for more of them."""
        rates = {}
        for arm in ("treated", "placebo"):
            own = [w for w in self.profile.windows if (w.region, w.arm, w.level) == (region, arm, level)]
            assert len(own) >= 2, f"{len(own)} {arm} windows of {region}"
            rates[arm] = sum(w.points[0].delta for w in own) / sum(w.effective_ns for w in own)
        return 1 - rates["placebo"] / rates["treated"]

    def share(self, region):
        """The part of all in-scope samples that are in this region."""
        return self.profile.samples.get(region, 0) / max(sum(self.profile.samples.values()), 1)


def target_of(path):
    """The pid of the target, as soon as the profile names it."""

    def pid():
        return next((record["pid"] for record in records(path) if record["type"] == "causal-bpf"), None)

    return wait_until(pid, f"the header of {path}")


def wait_for_experiment(path, count=1, patience_s=PATIENCE_S):
    """Until so many treated windows are in the profile: the target is being paused."""

    def treated():
        return sum(record.get("arm") == "treated" for record in records(path)) >= count

    wait_until(treated, f"experiments in {path}", patience_s)
