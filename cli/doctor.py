"""`causal-bpf doctor`: what this machine and this user can do, each thing tried, each with its remedy."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence

import causal
from causal import capabilities
from causal.capabilities import Capability
from cli.command import examples


class DoctorCommand:
    """Prints the capabilities; the output belongs into every bug report."""

    name = "doctor"
    help = (
        "Try everything that profiling needs on this machine, one thing after the other, and say what to do\n"
        "about what is missing. The exit code is 0 when all that is required works, else 1."
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
        parser.epilog = examples(
            ("sudo causal-bpf doctor", "check as the user who will profile: root"),
            ("sudo causal-bpf doctor --json | jq '.capabilities[] | select(.ok | not)'", "only what is missing"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Probe, print, and return 1 when something required is missing."""
        found = capabilities.probe()
        if args.json:
            print(json.dumps(as_json(found), indent=2))
        else:
            _print_table(found)
        return 0 if _all_required(found) else 1


def as_json(found: Sequence[Capability]) -> dict[str, object]:
    """The object that `doctor --json` prints."""
    return {
        "version": causal.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "ok": _all_required(found),
        "capabilities": [
            {"name": each.name, "ok": each.ok, "required": each.required, "detail": each.detail, "remedy": each.remedy}
            for each in found
        ],
    }


def _all_required(found: Sequence[Capability]) -> bool:
    return all(each.ok for each in found if each.required)


def _mark(each: Capability) -> tuple[str, str]:
    """The word in front of a capability, and its style."""
    if each.ok:
        return "ok", "green"
    return ("MISSING", "bold red") if each.required else ("no", "yellow")


def _remedies(found: Sequence[Capability]) -> dict[str, list[str]]:
    """What to do, each thing once, with the names of the capabilities it brings."""
    remedies: dict[str, list[str]] = {}
    for each in found:
        if not each.ok:
            remedies.setdefault(each.remedy, []).append(each.name)
    return remedies


def _print_table(found: Sequence[Capability]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("")
    table.add_column("capability", no_wrap=True)
    table.add_column("found", overflow="fold")
    for each in found:
        # Details hold paths and names of the machine: as Text, or rich reads brackets as markup.
        table.add_row(Text(*_mark(each)), Text(each.name), Text(each.detail))
    system = f"Linux {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    console.print(Text(f"causal-bpf {causal.__version__} on {system}"))
    console.print(table)
    for remedy, names in _remedies(found).items():
        # Not wrapped by rich, so that a command in it can be copied in one piece.
        console.print(Text(f"{', '.join(names)}:\n    {remedy}"), soft_wrap=True)
    lacking = [each.name for each in found if each.required and not each.ok]
    verdict = f"cannot profile yet: start with {lacking[0]}" if lacking else "ready to profile"
    console.print(Text(verdict, "bold"))
