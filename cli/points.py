"""What `--list-points` prints: the points of a program as SPECs, one a line, to be read, searched and pasted."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby

from causal.errors import CausalError, UsageError
from causal.point_list import Candidate, list_points
from causal.symbols.elf import Binary
from causal.symbols.executables import resolve_executable
from causal.symbols.libraries import libraries_of
from causal.symbols.lines import SourceLines

_TITLES = {"function": "functions", "usdt": "USDT points", "line": "source lines"}
_WIDE = 44
_NAMES_FILE = re.compile(r"\w\.\w+(:|$)")


def print_points_of(words: list[str]) -> None:
    """`words`: a program or library, and perhaps a pattern. Raises CausalError when there is nothing to list."""
    if len(words) > 2:
        raise UsageError("--list-points takes a program and a pattern", "quote the pattern: --list-points BINARY 'a*'")
    path, pattern = words[0], words[1] if len(words) > 1 else None
    # A library is no command, but a file all the same.
    main = Binary.load(os.path.realpath(path if os.path.isfile(path) and "/" in path else resolve_executable(path)))
    print_points(list_points(main, libraries_of(main), pattern), main, pattern)


def print_points(found: Iterable[Candidate], main: Binary, pattern: str | None) -> None:
    """Print them by kind. Raises CausalError when there are none."""
    nothing = True
    for kind, candidates in groupby(found, key=lambda each: each.kind):
        if not nothing:
            print()
        nothing = False
        print(f"{_TITLES[kind]}:")
        for line in _lines(candidates):
            print(line)
    if nothing:
        raise _none(main, pattern)


def _none(main: Binary, pattern: str | None) -> CausalError:
    if main.is_stripped:
        hint = (
            "it is stripped, and only what it exports has a name: count a system call "
            "(-p tracepoint:syscalls:sys_exit_sendmsg) or a function of a library, listed by its path"
        )
    elif pattern and _NAMES_FILE.search(pattern) and SourceLines.load(main) is None:
        hint = "it has no debug information, so its lines are not known: build it with -g, or install its debug package"
    else:
        hint = "give part of a name, a glob of all of it, or FILE.c for lines; libraries are listed by their paths"
    what = f" that matches {pattern}" if pattern else ""
    return CausalError(f"{main.name} has no function, USDT point or line{what}", hint)


def _lines(candidates: Iterable[Candidate]) -> Iterator[str]:
    for each in candidates:
        spec = shlex.quote(each.spec)
        yield f"  {spec:<{_WIDE}}  {each.note}".rstrip()
