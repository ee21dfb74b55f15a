"""`causal-bpf trace -- CMD {}`: collect the traces of a program that `causal-bpf explain` explains."""

from __future__ import annotations

import argparse
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from causal.errors import UsageError
from cli.interruption import interruptible
from cli.trace_callers import trace_callers
from cli.trace_options import declare_options

if TYPE_CHECKING:
    from causal.tracing.requests import RequestSummary
    from causal.tracing.runs import Summary

_SHOWN = 6


class TraceCommand:
    """Runs a command over many inputs, timing it and counting its calls; needs root."""

    name = "trace"
    help = (
        "Collect traces for `explain`: run a command over many inputs, measure how long each takes, and count in\n"
        "another run of each, by eBPF, how often it calls which function; or follow the requests of a live process\n"
        "(--pid). The program is not changed.\n\n"
        "{} in the command stands for the input. Traces are kept in a directory; the same command again goes on\n"
        "where it was interrupted."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        declare_options(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Traces and says what came out; 130 when it was interrupted."""
        if args.callers_of is not None:
            return trace_callers(args)
        if args.output is None:
            raise UsageError("no place for the traces", "name a directory: -o DIR")
        if args.imported:
            return _import(args)
        if args.pid is not None or args.begin is not None:
            return _trace_requests(args)
        return _trace_runs(args)


def _import(args: argparse.Namespace) -> int:
    if args.command or args.pid is not None:
        raise UsageError("what is imported was run before", "give --import without a command or --pid")
    from causal.tracing.imports import import_traces
    from causal.tracing.inputs import find_inputs
    from causal.tracing.journal import JOURNAL, TRACES, write_traces

    if not args.force and ((args.output / TRACES).exists() or (args.output / JOURNAL).exists()):
        raise UsageError(f"{args.output} holds traces", "choose another name with -o, or add --force")
    traces = import_traces(args.imported, find_inputs(args.inputs) if args.inputs else [])
    args.output.mkdir(parents=True, exist_ok=True)
    write_traces(args.output, traces)
    if not args.quiet:
        functions = len({name for trace in traces for name in trace["calls"]})
        print(f"{len(traces):,} traces with {functions:,} functions")
        print(f"explain them: causal-bpf explain {shlex.quote(str(args.output))}", flush=True)
    return 0


def _trace_runs(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command to trace", "put it behind --: causal-bpf trace -o DIR --inputs 'X*' -- CMD {}")
    if not args.inputs:
        raise UsageError("no inputs", "give them with --inputs 'PATTERN', --inputs @LIST or --inputs TABLE.csv")
    from causal.tracing.inputs import find_inputs
    from causal.tracing.runs import RunTracer, TraceOptions
    from cli.trace_progress import TraceProgress

    options = TraceOptions(
        command=command,
        output=args.output,
        binaries=args.binary,
        patterns=args.function,
        max_functions=args.max_functions,
        repeat=args.repeat,
        measure=args.measure,
        stdin=args.stdin,
        seed=args.seed,
        timeout_s=args.timeout,
        max_slowdown=args.max_slowdown,
        force=args.force,
    )
    with interruptible() as interrupted, TraceProgress(args.quiet) as progress:
        summary = RunTracer(options, find_inputs(args.inputs), interrupted, progress.show).trace()
        progress.stop()
        if not args.quiet:
            _print_summary(summary, args.output)
        return 0 if summary.finished or not interrupted() else 128 + signal.SIGINT


def _trace_requests(args: argparse.Namespace) -> int:
    if args.pid is None or args.begin is None:
        missing = "--pid PID" if args.pid is None else "--begin FUNCTION"
        raise UsageError(f"requests of a live process need {missing}", "see the examples of causal-bpf trace --help")
    if args.inputs or args.command:
        raise UsageError("a process and a command cannot be traced together", "give --pid, or --inputs and a command")
    from causal.tracing.points import parse_value
    from causal.tracing.requests import RequestOptions, RequestTracer
    from cli.trace_progress import TraceProgress

    options = RequestOptions(
        pid=args.pid,
        output=args.output,
        begin=args.begin,
        end=args.end,
        values=[parse_value(each) for each in args.input],
        key=args.key,
        parts=args.part,
        binaries=args.binary,
        patterns=args.function,
        max_functions=args.max_functions,
        duration_s=args.duration,
        requests=args.requests,
        dry_run_s=args.dry_run,
        max_overhead=args.max_overhead,
        force=args.force,
    )
    with interruptible() as interrupted, TraceProgress(args.quiet) as progress:
        summary = RequestTracer(options, interrupted, progress.show).trace()
        progress.stop()
        if not args.quiet:
            _print_requests(summary, args.output)
    return 0


def _print_requests(summary: RequestSummary, directory: Path) -> None:
    ended = {"exit": "; the process has ended", "interrupt": "; interrupted"}.get(summary.reason, "")
    print(f"{summary.traces:,} requests traced{ended}")
    print(f"{summary.functions:,} functions counted, {summary.called:,} of them called in requests")
    counters = summary.counters
    losses = {
        "lost, the ring buffer was full": counters["lost"],
        "lost, their calls were overwritten": summary.overwritten,
        "begun without room to follow them": counters["no_room"],
        "never ended, another began in their place": counters["unended"],
        "still going on": summary.in_flight,
        "with arguments that could not be read": summary.unreadable,
    }
    found = [f"{count:,} {what}" for what, count in losses.items() if count]
    print("no request was lost" if not found else "not traced: " + "; ".join(found))
    if counters["nested"]:
        print(f"{counters['nested']:,} begins inside of a request belong to it")
    _print_choice(summary.dropped, summary.refused, summary.notes)
    print(f"explain them: causal-bpf explain {shlex.quote(str(directory))}", flush=True)


def _print_summary(summary: Summary, directory: Path) -> None:
    went_on = " (went on with what was there)" if summary.resumed else ""
    print(f"{summary.traces:,} traces of {summary.inputs:,} inputs{went_on}")
    print(f"{summary.functions:,} functions counted, {summary.called:,} of them called")
    if summary.threads:
        print(f"also by thread ({_some(summary.threads)}): explain --by-thread tells them apart")
    for code, count in sorted(summary.exit_codes.items()):
        complaint = summary.complaints[code]
        print(f"{_how(code)}: {count:,} inputs, kept as a class of their own{f' ({complaint})' if complaint else ''}")
    _print_choice(summary.dropped, summary.refused, summary.notes)
    if not summary.finished:
        print("not finished: the same command again goes on")
    if sum(summary.exit_codes.values()) == summary.traces:
        print("nothing to explain: every run failed; see whether the command is right for these inputs", flush=True)
        return
    print(f"explain them: causal-bpf explain {shlex.quote(str(directory))}", flush=True)


def _print_choice(dropped: dict[str, float], refused: list[str], notes: list[str]) -> None:
    if dropped:
        print("too hot to be counted, their callers tell as much: " + _some(dropped))
    if refused:
        print("cannot be probed: " + _some(refused))
    for note in notes:
        print(note)


def _how(code: int) -> str:
    if code == 124:
        return "ended by --timeout or with exit code 124"
    if code > 128 and code - 128 in signal.valid_signals():
        return f"killed by {signal.Signals(code - 128).name}"
    return f"failed with exit code {code}"


def _some(names: dict[str, float] | list[str]) -> str:
    shown = [f"{name} ({names[name]:,.0f}/s)" if isinstance(names, dict) else name for name in list(names)[:_SHOWN]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(shown) + more
