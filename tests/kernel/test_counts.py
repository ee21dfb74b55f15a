"""Visits of progress points are counted exactly, whatever the processes of the target do (prime numbers of them)."""

import pytest

from causal.progress import parse_spec, resolve
from causal.symbols.elf import Binary
from causal.symbols.libraries import libraries_of

# bcc's own, once for each string it is given.
pytestmark = pytest.mark.filterwarnings("ignore:not a bytes object:DeprecationWarning")

PATIENT_S = 60


@pytest.fixture(scope="module")
def attached(engine):
    """Points that are attached already: (program, spec) -> number."""
    return {}


@pytest.fixture
def count(engine, launch, attached):
    """Run a program to its end; returns how often it visited the point."""

    def run(spec, program, *arguments):
        if (program, spec) not in attached:
            number = len(attached)
            attached[program, spec] = number
            main = Binary.load(program)
            for probe in resolve(parse_spec(spec), main, libraries_of(main)):
                engine.probes.attach_points(number, probe.path, [probe.file_offset])
        number = attached[program, spec]
        before = engine.probes.visits(number + 1)[number]
        assert launch(program, *arguments).wait() == 0
        return engine.probes.visits(number + 1)[number] - before

    return run


@pytest.mark.parametrize("rounds", [1, 1009])
def test_a_function_of_the_program(count, workloads, rounds):
    assert count("progress", workloads / "barrier", 50, 40, "--rounds", rounds) == rounds


def test_a_function_of_a_library(count, workloads):
    rounds = 499
    assert count("clock_nanosleep@libc", workloads / "sleeper", 50, 50, "--beside", 0, "--rounds", rounds) == rounds


def test_children_and_theirs_and_a_spawned_process(count, programs):
    children, visits = 7, 71
    assert count("progress", programs / "families", children, visits) == (2 * children + 1) * visits


def test_a_program_that_executes_itself(count, workloads):
    rounds, execs = 101, 6
    assert count("progress", workloads / "execer", 50, rounds, "--execs", execs) == rounds * (execs + 1)


def test_other_processes_do_not_count(count, engine, workloads, workload):
    stranger = workload("barrier", 50, 40, "--rounds", 307)
    assert count("progress", workloads / "barrier", 50, 40, "--rounds", 211) == 211
    stranger.wait(PATIENT_S)
    before = engine.probes.visits(1)
    assert workload("barrier", 50, 40, "--rounds", 53).wait(PATIENT_S) == 0
    assert engine.probes.visits(1) == before


def test_also_while_the_target_is_left_alone(count, engine, programs):
    """The last one: nothing but points is attached any more."""
    engine.let_go()
    before = engine.counters()
    children, visits = 5, 83
    assert count("progress", programs / "families", children, visits) == (2 * children + 1) * visits
    assert engine.counters() == before  # no sample, no wakeup
