"""Turns what other profilers wrote into traces: callgrind's files, cProfile's, the output of `perf script`, and CSV.

Each file is one trace, except for CSV, which has one per line. Input variables come from a table whose first column
names the files, or, for callgrind, from the size of the one file on the profiled command line.
"""

from __future__ import annotations

import marshal
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from causal.drt.reading import read_csv
from causal.drt.traces import check_traces
from causal.errors import CausalError, UsageError
from causal.tracing.callgrind import is_callgrind, read_callgrind
from causal.tracing.inputs import SIZE, RunInput

_HEAD_BYTES = 4096
# An event of `perf script`: command, ids, time, then period and event. What was recorded with stacks (perf record -g)
# has its frames on the next lines, indented, until an empty one; without them the one frame stands behind the event.
_PERF_EVENT = re.compile(
    r"^\s*\S.*?\s(?P<pid>\d+)(?:/\d+)?\s+(?:\[\d+\]\s+)?(?P<time>\d+\.\d+):\s+(?:\d+\s+)?(?P<event>\S+):"
    r"(?:\s+(?P<rest>.*))?$"
)
_PERF_FRAME = re.compile(r"^\s*[0-9a-f]+\s+(?P<symbol>.+?)(?:\+0x[0-9a-f]+)?\s+\((?P<file>[^)]*)\)$")


def import_traces(paths: Sequence[Path], inputs: Sequence[RunInput] = ()) -> list[dict[str, Any]]:
    """Traces of all files, as lines of traces.jsonl; directories stand for the files in them.

    `inputs` has the input variables, by the names of the files. Raises CausalError naming the file at fault.
    """
    files = list(_files(paths))
    if not files:
        raise CausalError("there is nothing to import", "name files of callgrind, cProfile, perf script, or CSV")
    known = {each.id: each.values for each in inputs} | {Path(each.id).name: each.values for each in inputs}
    traces: list[dict[str, Any]] = []
    for file in files:
        traces += _read(file, known)
    names = {tuple(trace["outputs"]) for trace in traces}
    if len(names) > 1:
        raise UsageError("these files measure different things", "import one kind of file at a time")
    return traces


def _files(paths: Sequence[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        elif path.is_file():
            yield path
        else:
            raise CausalError(f"{path} does not exist", "check the path")


def _read(path: Path, known: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    text = head.decode(errors="replace")
    if is_callgrind(text):
        return [_from_callgrind(path, known)]
    if head[:1] in (b"{", b"\xfb"):  # a dictionary, as marshal writes it, with or without a reference flag
        return [_from_cprofile(path, known)]
    if path.suffix in (".csv", ".tsv"):
        return _from_csv(path)
    if any(_PERF_EVENT.match(line) for line in text.splitlines()[:60]):
        return [_from_perf_script(path, known)]
    raise CausalError(
        f"{path}: this is no file of callgrind, cProfile, perf script, nor CSV",
        "for perf: perf script -i perf.data > FILE; a CSV file is called something.csv",
    )


def _values(path: Path, known: dict[str, dict[str, float]], own: dict[str, float] | None = None) -> dict[str, float]:
    values = known.get(str(path)) or known.get(path.name) or (own if not known else None)
    if not values:
        raise CausalError(
            f"{path}: nothing is known about its input",
            "give --inputs TABLE.csv with the names of the files in its first column and their sizes in the next ones",
        )
    return values


def _from_callgrind(path: Path, known: dict[str, dict[str, float]]) -> dict[str, Any]:
    profile = read_callgrind(path)
    try:
        words = shlex.split(profile.command)[1:]
    except ValueError:
        words = []
    files = [word for word in words if Path(word).is_file()]
    own = {SIZE: float(Path(files[0]).stat().st_size)} if len(files) == 1 else None
    calls: Counter[str] = Counter()
    for (_, name), count in profile.calls.items():
        calls[name] += count
    outputs = {"instructions" if event == "Ir" else event: total for event, total in profile.totals.items()}
    return {"id": path.name, "inputs": _values(path, known, own), "outputs": outputs, "calls": dict(calls)}


def _from_cprofile(path: Path, known: dict[str, dict[str, float]]) -> dict[str, Any]:
    """As pstats.Stats.dump_stats writes: {(file, line, function): (primitive calls, calls, own s, all s, callers)}."""
    try:
        stats = marshal.loads(path.read_bytes())
        calls: Counter[str] = Counter()
        total = 0.0
        for (file, line, name), (_, count, own, _, _) in stats.items():
            calls[_python_name(file, line, name)] += count
            total += own
    except (ValueError, TypeError, EOFError, AttributeError):
        raise CausalError(f"{path} is no complete cProfile file", "write it with python -m cProfile -o FILE") from None
    return {"id": path.name, "inputs": _values(path, known), "outputs": {"time_s": total}, "calls": dict(calls)}


def _python_name(file: str, line: int, name: str) -> str:
    return name.strip("<>") if file == "~" else f"{Path(file).name}:{line}({name})"


def _from_perf_script(path: Path, known: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Samples that a function is in stand for its calls; of probes (`perf probe`), each event is one.

    The time is that from the first to the last event.
    """
    counts: Counter[str] = Counter()
    times: list[float] = []
    stack: set[str] = set()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        frame: str | None = line
        if event := _PERF_EVENT.match(line):
            counts.update(stack)
            stack = set()
            times.append(float(event["time"]))
            probe = event["event"].startswith("probe")
            frame = None if probe else event["rest"]
            if probe:
                stack = {event["event"].partition(":")[2]}
        if (found := _PERF_FRAME.match(frame or "")) and found["symbol"] != "[unknown]":
            stack.add(found["symbol"])
    counts.update(stack)
    if len(times) < 2:
        raise CausalError(f"{path}: fewer than two events", "record for longer, or with a higher frequency")
    outputs = {"time_s": round(max(times) - min(times), 9)}
    return {"id": path.name, "inputs": _values(path, known), "outputs": outputs, "calls": dict(counts)}


def _from_csv(path: Path) -> list[dict[str, Any]]:
    traces = read_csv(path)
    check_traces(traces)
    calls = traces.calls.tocsr()
    result = []
    for row in range(len(traces)):
        where = slice(calls.indptr[row], calls.indptr[row + 1])
        named = zip(calls.indices[where].tolist(), calls.data[where].tolist(), strict=True)
        result.append(
            {
                "id": traces.ids[row],
                "inputs": dict(zip(traces.input_names, np.asarray(traces.inputs[row]).tolist(), strict=True)),
                "outputs": {traces.output_name: float(traces.output[row])},
                "calls": {traces.functions[column]: count for column, count in named},
            }
        )
    return result
