"""What all tests share: when tests with real eBPF run, and programs under test that never outlive their test.

Tests in tests/kernel need root and a kernel that can do everything in `causal.capabilities`. The environment
variable CAUSAL_BPF_KERNEL_TESTS decides: unset, they run where they can and are skipped with the reason
elsewhere; 1, they must run, and a skip is a failure; 0, they never run.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from causal import capabilities

TESTS = Path(__file__).resolve().parent
WORKLOADS = TESTS / "workloads"
MODE_VARIABLE = "CAUSAL_BPF_KERNEL_TESTS"

# The same examples every time and no deadline: a test must not fail because the machine was busy.
settings.register_profile("causal", deadline=None, derandomize=True)
settings.load_profile("causal")


def kernel_mode():
    """One of try, must and never."""
    value = os.environ.get(MODE_VARIABLE, "")
    modes = {"": "try", "1": "must", "0": "never"}
    if value not in modes:
        raise pytest.UsageError(f"{MODE_VARIABLE} is {value!r}: it should be 1, 0 or unset")
    return modes[value]


def missing_capability():
    """Why real eBPF cannot run here, or None."""
    for each in capabilities.probe():
        if each.required and not each.ok:
            return f"{each.name}: {each.detail} ({each.remedy})"
    return None


def is_kernel_test(node):
    return TESTS / "kernel" in node.path.parents


def pytest_configure(config):
    kernel_mode()


def pytest_collection_modifyitems(items):
    kernel_tests = [item for item in items if is_kernel_test(item)]
    for item in kernel_tests:
        item.add_marker(pytest.mark.kernel)
    mode = kernel_mode()
    reason = None
    if mode == "never":
        reason = f"{MODE_VARIABLE} is 0"
    elif mode == "try" and kernel_tests:
        reason = missing_capability()
    if reason:
        for item in kernel_tests:
            item.add_marker(pytest.mark.skip(reason=reason))


def must_not_skip(node, report):
    """Turn the skip of a kernel test into a failure where such tests must run."""
    expected = hasattr(report, "wasxfail")
    if report.skipped and not expected and kernel_mode() == "must" and is_kernel_test(node):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{MODE_VARIABLE} is 1, so a skip is a failure: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return must_not_skip(item, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return must_not_skip(collector, (yield))


@pytest.fixture(scope="session")
def workloads():
    """The directory of the built workload programs."""
    subprocess.run(["make", "--silent", "-C", WORKLOADS], check=True, timeout=300)
    return WORKLOADS / "build"


@pytest.fixture
def workload(workloads):
    """Start a workload: `workload("barrier", "5", "4")` returns its Popen. Killed with its whole group afterwards."""
    started = []

    def start(name, *arguments, **popen):
        # A group of its own: what the program forks dies with it, also when it has ended before its children.
        options = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL, "process_group": 0, **popen}
        process = subprocess.Popen([str(workloads / name), *map(str, arguments)], **options)
        started.append(process)
        return process

    yield start
    for process in started:
        kill_group(process)


def kill_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()
