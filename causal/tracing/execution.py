"""One execution of the command under trace: as the user who called sudo, in a process group of its own, measured."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from causal import kernel_calls
from causal.child import Child, Owner
from causal.errors import CausalError, UsageError

TIMED_OUT = 124  # as timeout(1)
_PATIENCE_S = 5.0
_TAIL_BYTES = 400
# A perf event: type and configuration.
_CPU_TIME = (kernel_calls.PERF_TYPE_SOFTWARE, kernel_calls.PERF_COUNT_SW_TASK_CLOCK)
INSTRUCTIONS = (kernel_calls.PERF_TYPE_HARDWARE, kernel_calls.PERF_COUNT_HW_INSTRUCTIONS)


@dataclass(frozen=True)
class Ended:
    """How an execution ended: `status` as shells have it, its time in ns, the end of what it wrote to stderr.

    `count` is that of the Executor's counter, None where it has none.
    """

    status: int
    wall_ns: int
    cpu_ns: int
    complaint: str
    count: int | None = None


@dataclass(frozen=True)
class Executor:
    """Executes `program`; without a `timeout_s` nothing is ever killed. `tick_s`: how often `watch` is called.

    `counter` is an event, such as INSTRUCTIONS, that is counted in user mode, in all threads and children.
    """

    program: str
    owner: Owner | None
    timeout_s: float | None
    tick_s: float = 0.05
    counter: tuple[int, int] | None = None

    def execute(
        self,
        command: Sequence[str],
        stdin: str | None = None,
        started: Callable[[int], None] | None = None,
        watch: Callable[[float], None] | None = None,
    ) -> Ended:
        """Run a command to its end. Output is thrown away, input comes from the file `stdin` or is empty.

        `started` gets the pid before the first instruction; `watch` is called every `tick_s` with the seconds so far,
        unless it is None. Raises CausalError when the command cannot be executed.
        """
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open(stdin or os.devnull, "rb"))
            sink = stack.enter_context(open(os.devnull, "wb"))
            errors = stack.enter_context(tempfile.TemporaryFile())
            streams = (source.fileno(), sink.fileno(), errors.fileno())
            child = Child.start(self.program, command, None, self.owner, streams)
            stack.callback(_end, child)
            # Ctrl-C at the terminal is for us: this run may come to its end.
            with contextlib.suppress(OSError):
                os.setpgid(child.pid, child.pid)
            if started:
                started(child.pid)
            counter = None
            if self.counter:
                counter = kernel_calls.open_counter(*self.counter, child.pid)
                stack.callback(os.close, counter)
            clock = _open_clock(child.pid, stack)
            # Until here it was a copy of ours; what it used as that is not the program's.
            before_ns = time.clock_gettime_ns(_cpu_clock(child.pid))
            begin = time.monotonic_ns()
            child.release()
            timed_out = self._wait(child, watch)
            usage = child.wait_for_usage()
            wall_ns = time.monotonic_ns() - begin
            assert child.status is not None
            count = None if counter is None else _count(counter)
            cpu_ns = max(round((usage.ru_utime + usage.ru_stime) * 1e9) - before_ns, 0)
            if clock is not None and (used_ns := _count(clock)):
                # What is between the two went into getting rid of that copy, some ms of a run that may take less.
                wall_ns = max(wall_ns - max(cpu_ns - used_ns, 0), 1)
                cpu_ns = used_ns
            errors.seek(max(os.fstat(errors.fileno()).st_size - _TAIL_BYTES, 0))
            tail = errors.read().decode(errors="replace").strip().splitlines()
        return Ended(
            TIMED_OUT if timed_out else child.status,
            wall_ns,
            cpu_ns,
            tail[-1] if tail else "",
            count,
        )

    def _wait(self, child: Child, watch: Callable[[float], None] | None) -> bool:
        """Until it ends; whether that was because its time was up. Blocks without ticking where nobody looks."""
        if self.timeout_s is None and watch is None:
            # os.wait4, which follows, does the waiting.
            return False
        begin = time.monotonic()
        descriptor = os.pidfd_open(child.pid)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            while True:
                elapsed = time.monotonic() - begin
                left = None if self.timeout_s is None else max(self.timeout_s - elapsed, 0.0)
                tick = None if watch is None else self.tick_s
                waits = [each for each in (left, tick) if each is not None]
                if poll.poll(min(waits) * 1000):
                    return False
                elapsed = time.monotonic() - begin
                if watch:
                    watch(elapsed)
                if self.timeout_s is not None and elapsed >= self.timeout_s:
                    _kill_group(child, poll)
                    return True
        finally:
            os.close(descriptor)


def _open_clock(pid: int, stack: contextlib.ExitStack) -> int | None:
    """Counts the CPU time of a process and its children from its next exec on; None where the kernel refuses."""
    try:
        clock = kernel_calls.open_counter(*_CPU_TIME, pid)
    except OSError:
        return None
    stack.callback(os.close, clock)
    return clock


def check_counter(counter: tuple[int, int]) -> None:
    """Raises UsageError where there is no such counter."""
    try:
        os.close(kernel_calls.open_counter(*counter, 0))
    except OSError as error:
        raise UsageError(
            f"instructions are not counted here: {error.strerror}",
            "most virtual machines hide the CPU's counters; explain the CPU time instead: --measure cpu",
        ) from None


def _count(descriptor: int) -> int:
    value, enabled_ns, running_ns = kernel_calls.read_counter(descriptor)
    if enabled_ns and not running_ns:
        raise CausalError(
            "the CPU's counters were in use by others all the time",
            "end other profilers (perf, vtune), or give --measure cpu",
        )
    # Where others take turns on the counter, it saw a part of the run.
    return round(value * enabled_ns / running_ns) if running_ns else value


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of a process, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _kill_group(child: Child, poll: select.poll) -> None:
    """What --timeout asks for: SIGTERM, and SIGKILL for what does not listen."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        if poll.poll(_PATIENCE_S * 1000):
            return


def _end(child: Child) -> None:
    """Leave nothing behind when a run is broken off by a second Ctrl-C: it is ours, and asked to end."""
    if child.status is None and child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        child.terminate(_PATIENCE_S, time.sleep)
