"""The preloaded library without its profiler: it must do nothing at all, whatever its environment says."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from causal.capabilities import STUB_PATH

# Prints its signal masks, survives a SIGURG, and says so.
SCRIPT = """
grep -E '^Sig(Ign|Cgt)' /proc/self/status
grep -E '^Sig(Ign|Cgt)' /proc/$$/status
kill -URG $$
echo alive
"""
LINES = 8192


def run(configuration=None, preload=True, **options):
    environment = {"PATH": os.environ["PATH"]}
    if preload:
        environment["LD_PRELOAD"] = str(STUB_PATH)
    if configuration is not None:
        environment["CAUSAL_BPF_STUB"] = configuration
    words = [shutil.which("sh"), "-c", SCRIPT]
    options = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.fixture(scope="module")
def alone():
    return run(preload=False)


@pytest.fixture
def unused_descriptor():
    descriptor = os.dup(2)
    os.close(descriptor)
    return descriptor


GARBAGE = [
    "", ":", "::", ":::::", "x", "600", "600:", "600:8192", "600:8192:", "600:0:23", "600:8192:0", "-1:8192:23",
    "0x10:8192:23", "99999999999999999999:99999999999999999999:99999999999999999999", "600:8192:64", "600:8192:65",
    "600:8192:9", "600:8192:19", "600:18446744073709551615:23", "\x01\x02", "600:8192:23" + "0" * 4000, " 600:8192:23",
]  # fmt: skip


def test_without_its_variable(alone):
    assert alone.stdout.endswith("alive\n")
    done = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")


@pytest.mark.parametrize("configuration", GARBAGE, ids=lambda text: repr(text[:24]))
def test_with_garbage_in_its_variable(alone, configuration):
    done = run(configuration)
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")


def test_with_a_closed_descriptor(alone, unused_descriptor):
    done = run(f"{unused_descriptor}:{LINES}:{int(signal.SIGURG)}")
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")


@pytest.mark.parametrize("file", [os.devnull, "/dev/zero", __file__, "/"])
def test_with_another_file_behind_its_descriptor(alone, file):
    """A daemon closes all descriptors and opens its own: the number means something else then."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        done = run(f"{descriptor}:{LINES}:{int(signal.SIGURG)}", pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")


HANDLER = """
import os, signal, sys
seen = []
signal.signal(signal.SIGURG, lambda number, frame: seen.append(number))
os.kill(os.getpid(), signal.SIGURG)
print(seen)
"""


def test_a_program_that_has_a_handler_of_its_own_keeps_it(unused_descriptor):
    environment = {**os.environ, "LD_PRELOAD": str(STUB_PATH), "CAUSAL_BPF_STUB": f"{unused_descriptor}:{LINES}:23"}
    done = subprocess.run(
        [sys.executable, "-c", HANDLER], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"[{int(signal.SIGURG)}]\n"


def test_it_needs_no_library_and_exports_only_what_coz_does():
    words = ["readelf", "--dynamic", "--dyn-syms", "--wide", STUB_PATH]
    listing = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "(NEEDED)" not in listing
    names = [line.split() for line in listing.splitlines() if re.match(r"\s+\d+:", line)]
    exported = [words[-1] for words in names if "UND" not in words and words[4] in ("GLOBAL", "WEAK")]
    undefined = [words[-1] for words in names if "UND" in words and words[-1] != "UND"]
    coz = ["_coz_add_delays", "_coz_get_counter", "_coz_post_block", "_coz_pre_block"]
    assert sorted(exported) == coz and undefined == []
