"""Reads the files that `valgrind --tool=callgrind` writes: how often each function was called, and what it all cost.

Format: valgrind's manual, "Callgrind Format Specification".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from causal.errors import CausalError

_LINE = re.compile(r"(?P<key>[a-z]+)=(?P<value>.*)")
_HEADER = re.compile(r"(?P<key>[a-zA-Z]+):\s*(?P<value>.*)")
_COMPRESSED = re.compile(r"\((?P<number>\d+)\)(?:\s+(?P<name>.*))?$")
_KINDS = {"ob": "ob", "cob": "ob", "fn": "fn", "cfn": "fn"}
_RECURSION = re.compile(r"'\d+$")  # f'2 is f at the second level of a recursion (--separate-recs)


@dataclass
class CallgrindProfile:
    """`calls`: (object file, function) -> times called; `totals`: event (such as Ir, instructions) -> count."""

    command: str = ""
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    totals: dict[str, int] = field(default_factory=dict)


def is_callgrind(head: str) -> bool:
    """Whether the first bytes of a file look like callgrind's."""
    return "callgrind format" in head or ("\nevents:" in head and ("creator: callgrind" in head))


def read_callgrind(path: Path) -> CallgrindProfile:
    """Raises CausalError for what is no callgrind file, or was cut off."""
    found = CallgrindProfile()
    names: dict[str, dict[str, str]] = {"ob": {}, "fn": {}}
    now = {"ob": "", "cob": "", "cfn": ""}
    events: list[str] = []
    counts: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if match := _LINE.match(line):
            key, value = match["key"], match["value"]
            if key in _KINDS:
                name = _name(names[_KINDS[key]], value, path, number)
                if key == "ob":
                    now["ob"] = now["cob"] = name
                elif key != "fn":
                    now[key] = name
            elif key == "calls":
                called = (now["cob"] or now["ob"], _RECURSION.sub("", now["cfn"]))
                found.calls[called] += _count(value, path, number)
                now["cob"] = now["ob"]  # cob= holds for one call only
        elif match := _HEADER.match(line):
            if match["key"] == "events":
                events = match["value"].split()
            elif match["key"] == "cmd":
                found.command = match["value"]
            elif match["key"] in ("summary", "totals"):
                counts = [int(each) for each in match["value"].split()]
    if not events or not counts:
        raise CausalError(
            f"{path} is no complete callgrind file", "it must have the lines `events:` and `totals:`; profile again"
        )
    found.totals = dict(zip(events, counts, strict=False))
    return found


def _name(known: dict[str, str], value: str, path: Path, number: int) -> str:
    match = _COMPRESSED.match(value)
    if match is None:
        return value
    if match["name"] is not None:
        known[match["number"]] = match["name"]
    elif match["number"] not in known:
        raise CausalError(f"{path}, line {number}: name ({match['number']}) was never defined", "profile again")
    return known[match["number"]]


def _count(value: str, path: Path, number: int) -> int:
    first = value.split()[0] if value.split() else ""
    if not first.isdigit():
        raise CausalError(f"{path}, line {number}: {value!r} is no number of calls", "profile again")
    return int(first)
