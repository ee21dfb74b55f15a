"""The directory of traces: everything that happened, as it happened, and the traces made of it.

`journal.jsonl` gets a line per execution and survives any interruption; `traces.jsonl` is what `explain` reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal.errors import CausalError, UsageError

VERSION = 1
JOURNAL, TRACES = "journal.jsonl", "traces.jsonl"


@dataclass
class Run:
    """What is known of one input so far: its calls (None: not counted yet), the times of its rounds, in ns.

    `threads` are the same calls by the name of the thread, where there was more than one:
    {"io": {"threads": 2, "calls": {"read_all": 7}}}. `instructions` by round are there where they were asked for.
    """

    calls: dict[str, int] | None = None
    threads: dict[str, dict[str, Any]] = field(default_factory=dict)
    exit_code: int = 0
    warm_ns: int | None = None
    wall_ns: dict[int, int] = field(default_factory=dict)
    cpu_ns: dict[int, int] = field(default_factory=dict)
    instructions: dict[int, int] = field(default_factory=dict)
    complaint: str = ""

    def measured(self, measure: str) -> dict[int, int]:
        """What the rounds measured so far of wall, cpu or instructions."""
        return {"wall": self.wall_ns, "cpu": self.cpu_ns, "instructions": self.instructions}[measure]

    def complete(self, measure: str) -> bool:
        """Good for a trace in which this is what is explained."""
        return self.calls is not None and bool(self.measured(measure))


class Journal:
    """An append-only record; `runs` by input id and `dropped` functions are what it says so far."""

    def __init__(self, directory: Path, header: dict[str, Any], force: bool) -> None:
        self.directory = directory
        self.runs: dict[str, Run] = {}
        self.dropped: dict[str, float] = {}  # functions too hot to be counted -> calls per second
        self.resumed = False
        self._header = json.loads(json.dumps({"type": "trace", "version": VERSION, **header}))
        path = directory / JOURNAL
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is a file", "traces are kept in a directory; choose another name with -o")
        if force:
            path.unlink(missing_ok=True)
            (directory / TRACES).unlink(missing_ok=True)
        if directory.exists() and any(directory.iterdir()) and not path.exists():
            raise UsageError(f"{directory} holds something else", "choose another name with -o")
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._resume(path)
        self._file = path.open("a", encoding="utf-8")
        if not self.resumed:
            self._append(self._header)

    def _resume(self, path: Path) -> None:
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):  # the last line was cut off
            os.truncate(path, len(whole))
        try:
            records = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            raise CausalError(
                f"{path} is damaged", "start again with --force, or choose another name with -o"
            ) from None
        if not records:
            return
        different = [key for key in self._header if records[0].get(key) != self._header[key]]
        if different:
            raise UsageError(
                f"{self.directory} holds traces with another {', '.join(different)}",
                "give the same options to go on with them, --force to start again, or another name with -o",
            )
        for record in records[1:]:
            self._apply(record)
        self.resumed = True

    def _apply(self, record: dict[str, Any]) -> None:
        if record["type"] == "drop":
            self.dropped |= record["functions"]
            return
        run = self.runs.setdefault(record["id"], Run())
        run.exit_code = run.exit_code or record["exit_code"]
        run.complaint = run.complaint or record.get("complaint", "")
        if record["type"] == "count":
            run.calls = record["calls"]
            run.threads = record.get("threads", {})
        elif record["type"] == "warm":
            run.warm_ns = record["wall_ns"]
        else:
            run.wall_ns[record["round"]] = record["wall_ns"]
            run.cpu_ns[record["round"]] = record["cpu_ns"]
            if "instructions" in record:
                run.instructions[record["round"]] = record["instructions"]

    def add(self, record: dict[str, Any]) -> None:
        """Write a record down and take it into account."""
        self._append(record)
        self._apply(record)

    def _append(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def run(self, ident: str) -> Run:
        """What is known of an input."""
        return self.runs.get(ident) or Run()

    def close(self) -> None:
        self._file.close()


def write_traces(directory: Path, traces: Sequence[dict[str, Any]]) -> Path:
    """Replace `traces.jsonl` in one step, so that whoever reads it finds the old or the new one."""
    path = directory / TRACES
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for trace in traces:
            file.write(json.dumps(trace) + "\n")
    part.replace(path)
    return path


def traces_in(path: Path) -> Path:
    """The file of traces that a user means by `path`, which may be the directory that `trace` wrote."""
    if not path.is_dir():
        return path
    if not (path / TRACES).exists():
        raise CausalError(f"there are no traces in {path}", "collect some: causal-bpf trace -o DIR -- CMD {}")
    return path / TRACES
