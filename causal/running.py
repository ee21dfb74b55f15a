"""A recording of a command that we start: examined, started on the clock, experimented on, and ended with us.

One execution with windows in it, or (--repeat) one execution for each window.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from causal import capabilities
from causal.child import Child, Preload, invoking_user
from causal.engine import PAUSE_SIGNAL
from causal.errors import CausalError
from causal.experiment import Status
from causal.interruption import Interruption
from causal.points import LOADS_MARK, MACRO_MARK, find_points, locate, marks_in, own_libraries
from causal.profile import ProgressPoint
from causal.quota import throttled_periods
from causal.recording import Outcome, Recorder, RecordingOptions, Subject, prepared
from causal.repetition import END_TO_END, Repetitions
from causal.selection import check_unit, find_regions
from causal.source_points import points_in_source
from causal.symbols.elf import Binary
from causal.symbols.executables import find_command, resolve_executable
from causal.symbols.libraries import libraries_of

_TERMINATE_PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class RunOptions(RecordingOptions):
    """What `run` was asked to do."""

    command: Sequence[str]
    repeat: int | None = None
    keep_running: bool = False


def has_points_of_its_own(options: RunOptions) -> bool:
    """Whether the source of the command names progress points (coz.h, causal.h), so that none need be asked for."""
    main = _main_binary(options)
    libraries = libraries_of(main)
    counts = MACRO_MARK in marks_in((main.path, *own_libraries(libraries))) and can_preload(main)
    return counts or bool(points_in_source(main, libraries).places)


def _main_binary(options: RunOptions) -> Binary:
    return Binary.load(os.path.realpath(resolve_executable(options.command[0])))


def examine(options: RunOptions) -> Subject:
    """Check the command, the unit, the regions and the points. Raises CausalError with a remedy for each mistake."""
    check_unit(options.unit)
    program = os.path.realpath(find_command(options.command[0]))
    main = _main_binary(options)
    owner = invoking_user()
    if main.is_privileged and owner is not None:
        raise CausalError(
            f"{main.path} is set-user-id or has file capabilities, so the loader ignores LD_PRELOAD",
            "profile a copy without these bits, or run causal-bpf from a root shell instead of sudo",
        )
    libraries = libraries_of(main)
    # as the kernel names them in a process's mappings
    scope, table, only = find_regions(options, [main], map(os.path.realpath, libraries))
    marks = marks_in((main.path, *own_libraries(libraries)))
    may_load = LOADS_MARK in marks
    points = find_points(
        options.points, options.latencies, options.accept_many, lambda spec: locate(spec, main, libraries, may_load)
    )
    counts = MACRO_MARK in marks and can_preload(main)
    if not (options.points or options.latencies or options.repeat or counts):
        points = points_in_source(main, libraries)
    return Subject(program, main, owner, scope, table, only, points, counts)


def can_preload(main: Binary) -> bool:
    """Whether the handler can come as a preloaded library; if not it is injected after the program has begun.

    musl calls constructors without the environment, which the library needs.
    """
    return not (
        main.is_static
        or main.bits == 32
        or main.sanitizer in ("address", "hardware address")
        or "ld-musl" in (main.interpreter or "")
    )


def record(
    options: RunOptions,
    interruption: Interruption,
    observe: Callable[[Status], None] = lambda status: None,
    report: Callable[[Path], None] = lambda path: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run the command under experiments and write its profile. Raises CausalError; the target is never left paused.

    `observe` is told how it goes; `report` is called with the finished profile, before a command that still runs is
    asked to end; `warn` is told at the start when it cannot be paused.
    """
    capabilities.require()
    subject = examine(options)
    with prepared(options, subject, interruption, observe, report, warn) as recorder:
        run = _Run(recorder, options)
        return run.repeat() if options.repeat else run.experiment()


@dataclass
class _Run:
    """A command that is started, profiled and, if it still runs, ended."""

    base: Recorder
    options: RunOptions

    def experiment(self) -> Outcome:
        """Windows within one execution of the command."""
        base = self.base
        base.add_companions()
        with self._running_child() as child:
            base.write_header(self.options.command, child.pid, base.subject.progress_points(), repeat=None)
            # The loader must have run, else the first look finds nothing to look at.
            self._wait_for_registration(child)
            base.announce_missing()
            reason = base.record(
                lambda: child.poll() is None, lambda: throttled_periods(child.pid), lambda: child.status
            )  # fmt: skip
            return self._leave(child, reason)

    def repeat(self) -> Outcome:
        """One execution of the command per experiment."""
        base = self.base
        whole = (ProgressPoint(END_TO_END, END_TO_END, END_TO_END),)
        base.write_header(self.options.command, 0, whole, repeat=self.options.repeat)
        base.add_companions()
        runs = Repetitions(
            base.engine, base.subject.table, base.writer, base.planner(), self._start_child, base.refresh,
            base.interruption, base.observe, self._can_pause, self.options.duration_s,
        )  # fmt: skip
        reason, child = runs.run(self.options.repeat or 1)
        base.finish(reason, child.status if child else None, runs.pairs)
        return self._leave(child, reason)

    def _can_pause(self) -> bool:
        """To be asked after a first execution."""
        handlers = self.base.handlers
        if handlers is None or (handlers.are_impossible() and not self.base.target.was_registered):
            self.base.announce_missing()
            return False
        return True

    def _start_child(self) -> Child:
        engine, subject = self.base.engine, self.base.subject
        preload = None
        pauses = self.base.handlers is not None
        if subject.has_macros or (pauses and can_preload(subject.main)):
            lines = engine.options.max_answers if pauses else 0
            preload = Preload(
                engine.answers_fd, lines, int(PAUSE_SIGNAL), engine.probes.macros_fd, engine.options.max_macros
            )  # fmt: skip
        if self.base.handlers and preload:
            self.base.handlers.preloaded = True
        child = Child.start(subject.program, self.options.command, preload, subject.owner)
        engine.add_process(child.pid)
        child.release()
        return child

    @contextlib.contextmanager
    def _running_child(self) -> Iterator[Child]:
        child = self._start_child()
        try:
            yield child
        except CausalError as error:
            if child.poll() is None:
                error.hint += f" (the command goes on undisturbed as process {child.pid})"
            raise

    def _wait_for_registration(self, child: Child) -> None:
        handlers = self.base.handlers
        for _ in range(300):
            self.base.target.refresh()
            if self.base.engine.registered(child.pid) or child.poll() is not None or self.base.interruption():
                return
            if handlers is None or child.pid in handlers.lacking:
                return
            time.sleep(0.01)

    def _leave(self, child: Child, reason: str) -> Outcome:
        """The measurement is over: our own child ends with it, unless the user wants to keep it."""
        self.base.engine.close()
        status = child.poll()
        try:
            self.base.report(self.options.output)
        finally:
            # Whatever becomes of the report (its reader may be gone), our child does not stay behind unasked.
            if not self.options.keep_running:
                child.terminate(_TERMINATE_PATIENCE_S, time.sleep)
        return Outcome(self.options.output, reason, status, child.pid if child.poll() is None else None)
