"""`causal-bpf attach PID...`: experiment on processes that run already, print the causal profile, leave them alone."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from cli.arguments import positive
from cli.command import examples
from cli.interruption import interruptible
from cli.recording import (
    announce_suggestions,
    common_options,
    declare_conduct,
    declare_measurement,
    declare_output,
    record_and_print,
    refuse_without_point,
)

if TYPE_CHECKING:
    from causal.attachment import AttachOptions


class AttachCommand:
    """Records a profile of running processes and prints it."""

    name = "attach"
    help = (
        "Find out which code of running processes is worth making faster, without restarting them. Several processes\n"
        "together are one system with one clock; children that they fork or execute belong to it. They are paused for\n"
        "moments and go on afterwards as if nothing had been."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        whom = parser.add_argument_group("which processes")
        whom.add_argument("pids", nargs="*", type=positive, metavar="PID", help="processes, by the host's numbers")
        whom.add_argument(
            "--name", metavar="NAME", action="append", default=[], help="all processes of that name; repeatable"
        )
        whom.add_argument(
            "--cgroup", metavar="PATH", action="append", default=[],
            help="all processes of a control group (a container, a service), by its path below /sys/fs/cgroup",
        )  # fmt: skip
        whom.add_argument(
            "--children", action=argparse.BooleanOptionalAction, default=True,
            help="their children too, those of now and those to come (default: yes)",
        )  # fmt: skip
        what = declare_measurement(parser)
        what.add_argument(
            "--list-points", nargs="?", const="", metavar="PATTERN",
            help="no experiments: list functions, USDT points and, with FILE.c as the pattern, lines as SPECs for -p",
        )  # fmt: skip
        what.add_argument(
            "--list-regions", action="store_true",
            help="no experiments: look at the processes (for --duration, default 10s) and list what could be sped up",
        )  # fmt: skip
        declare_conduct(parser, "Ctrl-C, or when they end")
        declare_output(parser)
        parser.epilog = examples(
            ("sudo causal-bpf attach 4711 -p handle_request --duration 1m", "profile a running server for a minute"),
            ("sudo causal-bpf attach --name postgres -p EndCommand --with $(pgrep pgbench)", "with its load generator"),
            ("sudo causal-bpf attach 12 34 -u process -p reply", "which of two programs is worth making faster?"),
            ("sudo causal-bpf attach 4711 -p reply --callers", "each line apart for what calls it"),
            ("sudo causal-bpf attach 4711 -p reply --inclusive --only parse -u function", "parse and all it calls"),
            ("sudo causal-bpf attach 4711 --latency 'queue=push,pop'", "the mean time from one point to another"),
            ("sudo causal-bpf attach 4711 --list-points 'handle*'", "what a progress point could be, by name"),
            ("sudo causal-bpf attach 4711 --list-regions", "what could be sped up; nothing is done to the process"),
            ("sudo causal-bpf attach 4711 -p work --no-pauses", "touch nothing: shares and rates only"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Records and prints; the exit code is 0 however it ended, as nothing of ours was ended."""
        from causal.attachment import attach

        if args.list_points and args.list_points.isdecimal() and not (args.pids or args.name or args.cgroup):
            args.pids, args.list_points = [int(args.list_points)], ""  # `--list-points PID`
        options = _options(args)
        if args.list_points is not None:
            return _list_points(options, args.list_points or None)
        with interruptible() as interruption:
            if args.list_regions:
                from causal.survey import survey_processes
                from cli.regions import print_survey

                print_survey(survey_processes(options, interruption))
                return 0
            if not (options.points or options.latencies) and not _has_points(options):
                from causal.suggestion import suggest_for_process

                announce_suggestions()
                found = suggest_for_process(options, interruption)
                whom = [*map(str, options.pids), *(f"--name={name}" for name in options.names)]
                whom += [f"--cgroup={group}" for group in options.cgroups]
                return refuse_without_point(found, "causal-bpf attach", whom, "attach to one that goes on for longer")
            outcome = record_and_print(
                args.quiet, lambda *callbacks: attach(options, interruption, *callbacks)
            )
        return 0 if outcome.reason in ("duration", "exit", "interrupt") else 128 + signal.SIGINT


def _has_points(options: AttachOptions) -> bool:
    """Whether the source of a program names points (causal.h) that can be counted in a process that runs already."""
    from causal.attachment import find_members, programs_of
    from causal.source_points import points_in_source

    binaries, libraries = programs_of(find_members(options))
    return any(points_in_source(binary, libraries[binary.path]).places for binary in binaries)


def _list_points(options: AttachOptions, pattern: str | None) -> int:
    from causal.attachment import find_members, programs_of
    from causal.point_list import list_points_of_all
    from cli.points import print_points

    mains, libraries = programs_of(find_members(options))
    print_points(list_points_of_all([(main, libraries[main.path]) for main in mains], pattern), mains[0], pattern)
    return 0


def _options(args: argparse.Namespace) -> AttachOptions:
    from causal.attachment import AttachOptions

    name = next(iter([*args.name, *map(str, args.pids), *args.cgroup]), "nothing")
    return AttachOptions(
        **common_options(args, name), pids=args.pids, names=args.name, cgroups=args.cgroup, children=args.children
    )
