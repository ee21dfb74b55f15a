"""`causal-bpf doctor`: what this machine and this user can do, each thing tried, each with its remedy."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import causal
from causal import capabilities
from causal.capabilities import Capability
from cli.command import examples

if TYPE_CHECKING:
    from causal.selftest import SelfTest


# The truth that the self-test measures is uncertain by about a point itself.
_GOOD_ERROR = 0.03


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
        parser.add_argument(
            "--self-test", action="store_true",
            help="also profile a small program with a known answer (20 s) and state the error of the prediction",
        )  # fmt: skip
        parser.epilog = examples(
            ("sudo causal-bpf doctor", "check as the user who will profile: root"),
            ("sudo causal-bpf doctor --json | jq '.capabilities[] | select(.ok | not)'", "only what is missing"),
            ("sudo causal-bpf doctor --self-test", "how well do predictions do on this machine, now?"),
        )

    def run(self, args: argparse.Namespace) -> int:
        """Probe, print, and return 1 when something required is missing."""
        found = capabilities.probe()
        ready = _all_required(found)
        if not args.json:
            _print_table(found)
        tested = _self_test(quiet=args.json) if ready and args.self_test else None
        if args.json:
            print(json.dumps(as_json(found, tested), indent=2))
        elif tested:
            print("\n".join(describe(tested)))
        return 0 if ready else 1


def _self_test(quiet: bool) -> SelfTest:
    from causal.interruption import Interruption
    from causal.selftest import run_self_test

    def say(text: str) -> None:
        if not quiet:
            print(f"self-test: {text}", flush=True)

    return run_self_test(Interruption(), say)


def describe(test: SelfTest) -> list[str]:
    """The result of the self-test in words."""
    from causal.selftest import SPEEDUP_PERCENT

    half = 50 * (test.high - test.low)
    fine = test.covered or abs(test.error) <= _GOOD_ERROR
    verdict = "as it should be" if fine else "that is much: is the machine busy? run it again"
    return [
        f"self-test: one of two threads {SPEEDUP_PERCENT}% faster: predicted {100 * test.predicted:.1f} ± {half:.1f}%,"
        f" really {100 * test.true:.1f}%",
        f"self-test: error {100 * test.error:+.1f} points; {verdict}",
        f"self-test: a sample costs {test.sample_cost_ns / 1e3:.1f} us here, so one is taken every"
        f" {test.period_ns / 1e6:.2f} ms",
    ]


def as_json(found: Sequence[Capability], tested: SelfTest | None = None) -> dict[str, object]:
    """The object that `doctor --json` prints."""
    self_test = None if tested is None else {**asdict(tested), "error": tested.error, "covered": tested.covered}
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
        **({} if self_test is None else {"self_test": self_test}),
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
