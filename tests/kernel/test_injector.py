"""The injector may die at any moment, and other threads may do what they like: the target finds its way back.

It is linked here so that it kills itself before a certain one of the calls by which it touches a target; all of them
are tried, one target each.
"""

import contextlib
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from causal import injection, kernel_calls
from causal.injection import InjectionError, Table, inject
from causal.loading import BPF_DIRECTORY
from causal.processes import look_up
from tests.kernel.profiler import wait_until

LINES = 8192
BEGUN = 12  # calls within which nothing has been opened in the target


@pytest.fixture(scope="module")
def table():
    descriptor = kernel_calls.create_array_map(24 * LINES, kernel_calls.BPF_F_MMAPABLE)
    yield Table(descriptor, LINES)
    os.close(descriptor)


@pytest.fixture(scope="module")
def dying(tmp_path_factory):
    """An injector that dies when it is told to."""
    spec = importlib.util.spec_from_file_location("stub_build", BPF_DIRECTORY / "stub" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    product = tmp_path_factory.mktemp("dying") / "causal-inject"
    source = Path(__file__).with_name("dying.c")
    build.compile_injector(product, [str(source), "-Wl,--wrap=ptrace", "-Wl,--wrap=pwrite"])
    return product


class Victims:
    """Targets that run at once, each with the injection that was tried on it."""

    def __init__(self, program, table, monkeypatch):
        self.program, self.table, self.monkeypatch = program, table, monkeypatch
        self.all = []

    def start(self, mode, variable, number):
        """Start one and inject into it; returns whether the injector came through."""
        target = subprocess.Popen([self.program, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append((mode, number, target))
        assert target.stdout.readline() == "ready\n"
        if mode not in ("spin", "fork"):
            asleep = Path(f"/proc/{target.pid}/stat")
            wait_until(lambda: asleep.read_text().rpartition(")")[2].split()[0] == "S", "its call")
        self.monkeypatch.setenv(variable, str(number))
        try:
            inject(look_up(target.pid), self.table)
        except InjectionError as error:
            assert error.reason == "failed" and "no answer" in error.message, (number, error)
            return False
        finally:
            if mode == "spin":  # it would take the CPU from the others
                target.stdin.write("x")
                target.stdin.flush()
        return True

    def results(self):
        for mode, number, target in self.all:
            out, _ = target.communicate("x", timeout=60)
            yield mode, number, target.returncode, out

    def stop(self):
        for _, _, target in self.all:
            with contextlib.suppress(ProcessLookupError):
                target.kill()
            target.wait()


@pytest.fixture
def victims(programs, table, dying, monkeypatch):
    monkeypatch.setattr(injection, "INJECTOR_PATH", dying)
    victims = Victims(programs / "victim", table, monkeypatch)
    yield victims
    victims.stop()


@pytest.mark.parametrize("mode", ["spin", "nap", "read", "epoll"])
def test_the_injector_is_killed_at_any_moment(victims, mode):
    number = 1
    while not victims.start(mode, "DIE_AT", number):
        number += 1
        assert number < 200
    assert number > 40  # the calls are all there
    for _, number, code, out in victims.results():
        assert (number, code, out) == (number, 0, f"{mode} ok descriptors 3 mask 0\n")


def test_children_forked_in_the_middle_of_an_injection_keep_nothing(victims):
    """The injector takes its time, so that a second thread forks while the descriptors are open."""
    for number in range(BEGUN, 90, 6):
        assert victims.start("fork", "DELAY_AT", number)
    for _, number, code, out in victims.results():
        assert (number, code, out) == (number, 0, "fork ok descriptors 3 mask 0\n")


def test_landings_of_dead_injectors_are_used_again(victims):
    """There are three in a process; who finds them all taken is refused, and comes through when they are old."""
    assert not victims.start("read", "DIE_AT", 30)
    [(_, _, target)] = victims.all
    process, reasons = look_up(target.pid), []
    for _ in range(3):
        with pytest.raises(InjectionError) as caught:
            inject(process, victims.table)
        reasons.append(caught.value.reason)
    assert reasons == ["failed", "failed", "taken"]
    victims.monkeypatch.delenv("DIE_AT")

    def comes_through():
        with contextlib.suppress(InjectionError):
            return inject(process, victims.table).handler

    assert wait_until(comes_through, "the end of the landings")
    [(_, _, code, out)] = victims.results()
    assert (code, out) == (0, "read ok descriptors 3 mask 0\n")
