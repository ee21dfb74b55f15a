"""`causal-bpf trace --callers-of TREE`: who calls the functions that an explanation names."""

from __future__ import annotations

import argparse
import json
import signal

from causal.errors import UsageError
from cli.interruption import interruptible


def trace_callers(args: argparse.Namespace) -> int:
    """Prints the callers, and writes callers.json where there is an output directory; 130 when it was interrupted."""
    from rich.console import Console

    from causal.report.callers import render_callers
    from causal.tracing.callers import CallersOptions, callers_in_process, callers_in_runs, functions_of_tree
    from causal.tracing.inputs import find_inputs
    from causal.tracing.requests import program_of
    from cli.trace_progress import TraceProgress

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if (args.pid is None) == (not command):
        raise UsageError(
            "--callers-of looks at a command or at a process",
            "give --inputs and the command as for the traces, or --pid PID",
        )
    if command and not args.inputs:
        raise UsageError("no inputs", "give the same --inputs as for the traces, or some of them")
    options = CallersOptions(functions_of_tree(args.callers_of), args.binary, args.stdin, args.timeout)
    with interruptible() as interrupted, TraceProgress(args.quiet) as progress:
        if args.pid is not None:
            main = program_of(args.pid)
            report = callers_in_process(args.pid, args.duration, main, options, interrupted, progress.show)
        else:
            report = callers_in_runs(command, find_inputs(args.inputs), options, interrupted, progress.show)
        progress.stop()
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "callers.json").write_text(json.dumps(report.as_object(), indent=2) + "\n")
    if not args.quiet:
        render_callers(report, args.pid is not None, Console(markup=False, emoji=False, highlight=False))
        if report.refused:
            print("cannot be probed: " + ", ".join(report.refused))
        for note in report.notes:
            print(note)
        if report.runs < report.wanted:
            print(f"interrupted after {report.runs:,} of {report.wanted:,} runs")
    return 128 + signal.SIGINT if report.runs < report.wanted else 0
