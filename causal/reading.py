"""Reads profiles in every form there is: our own, and those that COZ has written over the years.

COZ's forms are JSON Lines (record names with `-` or, later, `_`), lines of fields separated by tabs, and the oldest of
those, which calls its throughput points `progress-point`. COZ appends to its file, so one file may hold several runs.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from causal.errors import CausalError
from causal.profile import (
    FORMAT_NAME,
    UNPAIRED,
    End,
    Header,
    Profile,
    ProfileReader,
    ProgressPoint,
    Region,
    Visits,
    Window,
)

_TYPES = frozenset(
    ("startup", "shutdown", "runtime", "samples", "experiment", "throughput-point", "progress-point", "latency-point")
)
_LONGEST_LINE = 1024 * 1024
# More unreadable lines than this share make a file damaged, not just unlucky (two processes wrote at the same time).
_MOST_BAD = 0.1
_WORD = 2**64
_LINE_REGION = re.compile(r".+:\d+")


def read_any(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile of ours or of COZ; what it is is decided by its first line.

    Raises CausalError with a remedy when it is neither, cannot be read, or is damaged.
    """
    name = os.fspath(path)
    try:
        # Opened once: a pipe such as <(zcat profile.gz) can be read only once.
        with open(path, "rb") as file:
            first = file.peek(_LONGEST_LINE)[:_LONGEST_LINE]
            kind = _kind(first.split(b"\n", 1)[0])
            if kind in _TYPES:
                return _CozReader(name, file).read()
            return ProfileReader(name, file).read()
    except OSError as error:
        raise CausalError(
            f"cannot read {name}: {error.strerror}", "give the profile written by `causal-bpf run -o FILE`"
        ) from error


def _kind(line: bytes) -> str | None:
    record = _parse(line)
    return None if record is None else str(record["type"])


def _parse(line: bytes) -> dict[str, Any] | None:
    # A record of whichever form, its names in the `-` form; None when the line is none.
    text = line.strip(b"\0 \r\n")
    try:
        record = json.loads(text) if text.startswith(b"{") else _fields(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("type"), str):
        return None
    if record["type"] == FORMAT_NAME:
        return record
    return {str(key).replace("-", "_"): value for key, value in record.items()} | {
        "type": record["type"].replace("_", "-")
    }


def _fields(line: bytes) -> dict[str, Any]:
    kind, *fields = line.decode("utf-8", "surrogateescape").split("\t")
    # The oldest form has a field `type` of its own: what the record is, is its first word.
    record = dict(part.split("=", 1) for part in fields if "=" in part)
    return {**record, "type": kind}


@dataclass(slots=True)
class _Experiment:
    region: str
    speedup: float
    duration_ns: int
    samples: int
    points: list[Visits] = field(default_factory=list)


class _CozReader:
    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._lines = 0
        self._bad = 0
        self._last_is_bad = False
        self._experiments: list[_Experiment] = []
        self._current: _Experiment | None = None
        self._latency: set[str] = set()
        # COZ repeats its totals during a run: the last of a run counts, and the runs add up.
        self._runs: list[dict[str, int]] = []
        self._samples: dict[str, int] = {}
        self._runtime_ns: int | None = None
        self._run_ns = 0
        self._take: dict[str, Callable[[dict[str, Any]], None]] = {
            "startup": self._begin_run, "shutdown": self._ignore, "runtime": self._take_runtime,
            "samples": self._take_samples, "experiment": self._take_experiment,
            "throughput-point": self._take_throughput, "progress-point": self._take_throughput,
            "latency-point": self._take_latency,
        }  # fmt: skip

    def read(self) -> Profile:
        for record in self._records():
            try:
                self._take[record["type"]](record)
                self._last_is_bad = False
            except (KeyError, TypeError, ValueError):
                self._bad_line()
        self._begin_run({})
        self._refuse_damage()
        samples: Counter[str] = Counter()
        for run in self._runs:
            samples.update(run)
        regions = dict.fromkeys(experiment.region for experiment in self._experiments)
        points = dict.fromkeys(visits.name for experiment in self._experiments for visits in experiment.points)
        return Profile(
            header=Header(
                program="COZ", command=(), pid=0, started="", options={"unit": "line"},
                progress_points=tuple(ProgressPoint(point) for point in points),
            ),
            regions=tuple(Region(name, "line" if _LINE_REGION.fullmatch(name) else "unknown") for name in regions),
            windows=tuple(_window(experiment) for experiment in self._experiments),
            samples=dict(samples),
            runtime_ns=self._runtime_ns,
            end=self._end(sum(samples.values())),
            truncated=self._last_is_bad or self._runtime_ns is None,
            path=self._name,
        )  # fmt: skip

    def _records(self) -> Iterator[dict[str, Any]]:
        while line := self._file.readline(_LONGEST_LINE):
            if not line.strip(b"\0 \r\n"):
                continue
            self._lines += 1
            record = _parse(line)
            if record is not None and record["type"] == FORMAT_NAME:
                raise CausalError(
                    f"{self._name} holds a profile of causal-bpf after one of COZ (line {self._lines})",
                    "split the file and give the parts: causal-bpf report A B",
                )
            # A line of fields that was cut off within a number would be read as another number.
            cut_off = not line.endswith((b"\n", b"}"))
            if record is None or record["type"] not in self._take or cut_off:
                self._bad_line()
            else:
                yield record

    def _bad_line(self) -> None:
        # What follows belongs to an experiment that is not known.
        self._bad += 1
        self._last_is_bad = True
        self._current = None

    def _refuse_damage(self) -> None:
        bad = self._bad - self._last_is_bad
        if bad > _MOST_BAD * self._lines:
            raise CausalError(
                f"{self._name} is damaged: {bad} of {self._lines} lines are no records of COZ",
                "if it was edited or joined by hand, undo that; else record it again",
            )

    def _ignore(self, record: dict[str, Any]) -> None:
        pass

    def _begin_run(self, record: dict[str, Any]) -> None:
        self._runs.append(self._samples)
        self._samples, self._current = {}, None
        if self._run_ns:
            self._runtime_ns = (self._runtime_ns or 0) + self._run_ns
        self._run_ns = 0

    def _take_runtime(self, record: dict[str, Any]) -> None:
        self._run_ns = max(0, _signed(record["time"]))

    def _take_samples(self, record: dict[str, Any]) -> None:
        self._samples[str(record["location"])] = max(0, _signed(record["count"]))

    def _take_experiment(self, record: dict[str, Any]) -> None:
        speedup = float(record["speedup"])
        if not 0.0 <= speedup <= 1.0:
            raise ValueError(f"speedup {speedup}")
        self._current = _Experiment(
            region=str(record["selected"]),
            speedup=round(speedup, 4),
            duration_ns=_signed(record["duration"]),
            samples=_signed(record.get("selected_samples", 0)),
        )
        self._experiments.append(self._current)

    def _take_throughput(self, record: dict[str, Any]) -> None:
        self._add_point(str(record["name"]), _signed(record["delta"]))

    def _take_latency(self, record: dict[str, Any]) -> None:
        self._latency.add(str(record["name"]))
        self._add_point(str(record["name"]), _signed(record["departures"]))

    def _add_point(self, name: str, delta: int) -> None:
        # Points whose experiment was cut off are nobody's.
        if self._current is not None and delta >= 0 and all(visits.name != name for visits in self._current.points):
            self._current.points.append(Visits(name, delta))

    def _end(self, samples: int) -> End:
        messages = ["recorded by COZ: its baselines are not paired with experiments, and nothing tells whether the"
                    " program is paced from outside"]  # fmt: skip
        if bad := self._bad - self._last_is_bad:
            messages.append(f"{bad} of {self._lines} lines could not be read and were left out")
        for name in sorted(self._latency):
            messages.append(f"{name} is a latency point; shown is the rate at which it was completed")
        return End("exit", None, samples, samples, 0, self._runtime_ns or 0, messages=tuple(messages))


def _signed(value: Any) -> int:
    # COZ's numbers are unsigned words, and its durations are differences: those below zero come out near 2^64.
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is no number")
    number_exact = int(value) if not isinstance(value, float) else round(number)
    return number_exact - _WORD if number_exact >= _WORD // 2 else number_exact


def _window(experiment: _Experiment) -> Window:
    void = None
    if experiment.duration_ns <= 0:
        void = "more delay than time"
    return Window(
        region=experiment.region,
        arm="treated" if experiment.speedup > 0 else "placebo",
        pair=UNPAIRED,
        level=experiment.speedup,
        speedup=experiment.speedup,
        effective_ns=max(0, experiment.duration_ns),
        selected_samples=max(0, experiment.samples),
        points=tuple(experiment.points),
        void=void,
    )
