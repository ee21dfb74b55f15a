"""The entry point of `causal-bpf`: chooses the verb, and turns every failure into an `error:` and a `hint:` line.

Exit codes: 0, 1 for our own failures, 2 for a command line that makes no sense, 126 and 127 for a command that
cannot be run, 128+n for a signal; `run` otherwise returns what its command returned.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import select
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import causal
from causal.errors import CausalError, UsageError
from cli.command import Command, examples
from cli.complaint import print_labelled

EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13
_DEBUG_VARIABLE = "CAUSAL_BPF_DEBUG"


@dataclass(frozen=True)
class Verb:
    """Where a verb lives; `summary` is its line in the list, known without importing it."""

    module: str
    class_name: str
    summary: str

    def load(self) -> Command:
        """Import the module of the verb and make its command."""
        return cast(Command, getattr(importlib.import_module(self.module), self.class_name)())


VERBS = {
    "run": Verb("cli.run", "RunCommand", "run a program and find out which of its code is worth making faster"),
    "attach": Verb("cli.attach", "AttachCommand", "the same for processes that run already"),
    "report": Verb("cli.report", "ReportCommand", "show a recorded profile again, or turn it into another form"),
    "compare": Verb("cli.compare", "CompareCommand", "compare two profiles: did a change do what was predicted?"),
    "trace": Verb("cli.trace", "TraceCommand", "collect traces of a program's runs, for explain"),
    "explain": Verb("cli.explain", "ExplainCommand", "explain by functions why some runs of a program are slow"),
    "doctor": Verb("cli.doctor", "DoctorCommand", "check what this machine and this user can do"),
}

_EPILOG = examples(
    ("sudo causal-bpf run -p handle_request -- ./server --port 8080", "profile a program by its visits of a function"),
    ("causal-bpf report causal.jsonl", "show the table again"),
    ("sudo causal-bpf doctor", "see whether everything that is needed works here"),
)


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage like every other error."""

    verb = ""  # of the parser above the verbs, which is the one that complains about unknown options

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {' '.join([self.prog, self.verb]).strip()} --help")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of the whole command line, in which only the chosen verb is imported and has its options."""
    parser = _Parser(
        prog="causal-bpf",
        description="Causal profiler: finds the code that is worth making faster, by experiments on it as it runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"causal-bpf {causal.__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", dest="verb", required=True)
    for name, verb in VERBS.items():
        below = verbs.add_parser(name, help=verb.summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            parser.verb = name
            command = verb.load()
            below.description = command.help
            command.prepare_parser(below)
            below.set_defaults(run_verb=command.run)
    return parser


def choose_verb(argv: Sequence[str]) -> str | None:
    """The verb that a command line asks for: its first word that is no option; None when there is none."""
    first = next((word for word in argv if not word.startswith("-")), None)
    return first if first in VERBS else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code; never raises for a failure."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # Symbols and paths are arbitrary bytes: a report must not die of a name that the terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if not words:
            raise UsageError("no command given", "try causal-bpf run -- ./your-program, or causal-bpf --help")
        args = build_parser(choose_verb(words)).parse_args(words)
        code = int(args.run_verb(args))
        sys.stdout.flush()
        return code
    except SystemExit as leaving:  # --help and --version
        return _after_help(leaving)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CausalError as error:
        _print_failure(error, error.message, error.hint)
        return error.exit_code
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return _silence_output()
        message, hint = _describe(error)
        _print_failure(error, message, hint)
        return 1


def _after_help(leaving: SystemExit) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence_output()
    return leaving.code if isinstance(leaving.code, int) else 0


def _reader_left() -> bool:
    """Whether whoever read our output has left (`| head`), as opposed to some other pipe that broke."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _silence_output() -> int:
    # What is still in the buffers would break the pipe again, loudly, when Python flushes them at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return EXIT_BROKEN_PIPE


def _describe(error: Exception) -> tuple[str, str]:
    """What to say about a failure that nobody foresaw: (message, hint)."""
    more = f"set {_DEBUG_VARIABLE}=1 to see where, and please report it with the output of causal-bpf doctor"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if error.filename else ""
        return f"no space left{where}", "free some there, or write to another place"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", f"check that path, or set {_DEBUG_VARIABLE}=1 to see who asked"
    text = str(error)
    return f"unexpected {type(error).__name__}" + (f": {text}" if text else ""), more


def _print_failure(error: Exception, message: str, hint: str) -> None:
    if os.environ.get(_DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    print_labelled("error:", message)
    if hint:
        print_labelled("hint:", hint)


if __name__ == "__main__":
    sys.exit(main())
