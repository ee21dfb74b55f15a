"""The recorded profile: what an experiment run leaves behind and every report starts from.

A profile is a text file of JSON Lines, written while the program runs and never rewritten: one record per line, one
system call per record, so that whatever ends the profiler (also SIGKILL) costs at most the last line. The records are a
superset of those of COZ, so its viewer opens the file too. All times are integers in nanoseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Literal, cast

from causal.errors import CausalError
from causal.new_file import open_new, write_error

FORMAT_NAME = "causal-bpf"
FORMAT_VERSION = 1

Arm = Literal["treated", "placebo", "dilation", "plain"]
ARMS: tuple[Arm, ...] = ("treated", "placebo", "dilation", "plain")
UNPAIRED = -1  # the pair of a window that belongs to none, as COZ's

# A record is a few kilobytes. A first line longer than this is some other kind of file: do not read it into memory.
_LONGEST_LINE = 16 * 1024 * 1024
# Written for COZ's viewer alone: half of the lines of a long profile.
_COZ_ONLY = b'{"type":"throughput-point"'


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """A progress point of the run: its name in the records, the specification it came from, its kind."""

    name: str
    spec: str = ""
    kind: str = "throughput"


@dataclass(frozen=True, slots=True)
class Header:
    """What was profiled, how and where; the first record. `started` is an ISO 8601 time."""

    program: str
    command: tuple[str, ...]
    pid: int
    started: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    progress_points: tuple[ProgressPoint, ...] = ()
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the program that can be sped up; `binary` is None where it has none (a thread).

    Lines and files have a `source`, the path of the file, and lines the `function` they are in.
    """

    name: str
    unit: str
    binary: str | None = None
    source: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Visits:
    """Visits of one progress point in one window.

    `first_ns` and `last_ns` are the effective times, since the start of the window, of the first and the last visit
    (None when there was none); `half_delta` counts the visits in the first half of the window.
    """

    name: str
    delta: int
    first_ns: int | None = None
    last_ns: int | None = None
    half_delta: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One measured stretch of the run.

    `effective_ns` is the length in virtual time (`wall_ns` less `delay_ns`). `level` is the virtual speedup of the pair
    the window belongs to, `speedup` the one that was in force: the same in the treated arm, 0 in the others. `cpus` is
    the number of CPUs the region kept busy. `void` says why the window must not be used, None when it may.
    """

    region: str
    arm: Arm
    pair: int
    level: float
    speedup: float
    effective_ns: int
    wall_ns: int = 0
    delay_ns: int = 0
    start_ns: int = 0
    settle_ns: int = 0
    selected_samples: int = 0
    samples: int = 0
    cpus: float = 0.0
    points: tuple[Visits, ...] = ()
    half_effective_ns: int | None = None
    audit: Mapping[str, Any] = field(default_factory=dict)
    void: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How the run ended and its totals; absent from a profile whose recording was killed."""

    reason: str
    exit_status: int | None = None
    samples: int = 0
    samples_in_scope: int = 0
    period_ns: int = 0
    run_ns: int = 0
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole profile in memory. `samples` maps regions to their samples over the run; `truncated` says that the
    last record was cut off. `path` is where it was read from, or empty; `settled` has the rule by region left early;
    `waits`: region ("" for code in none) -> class of wait -> thread time in ns.

    `serial` are the samples of regions, each divided by how many threads could run at that moment; the sum over
    everything is End.diagnosis["serial_samples"].
    """

    header: Header
    regions: tuple[Region, ...] = ()
    windows: tuple[Window, ...] = ()
    samples: Mapping[str, int] = field(default_factory=dict)
    startup_ns: int | None = None
    runtime_ns: int | None = None
    end: End | None = None
    truncated: bool = False
    path: str = ""
    settled: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    serial: Mapping[str, float] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, float]:
        """Regions that were so much (fractions) faster in all experiments, baselines included."""
        return dict(self.header.options.get("given") or {})


class ProfileWriter:
    """Appends records to a new profile file; usable as a context manager.

    An existing regular file is refused with CausalError unless `force`, which replaces it. Under sudo the new file
    belongs to the user who called sudo. A failing write (disk full) raises CausalError and leaves the file readable.
    """

    def __init__(self, path: str | os.PathLike[str], force: bool = False) -> None:
        self.path = Path(path)
        self._fd = open_new(self.path, force)
        self._size = 0
        self._known_regions: set[str] = set()

    def __enter__(self) -> ProfileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; may be called twice. Raises CausalError when the system only now reports a lost write."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.close(fd)
        except OSError as error:
            raise write_error(self.path, error) from error

    def header(self, header: Header) -> None:
        """Writes the first record."""
        self._write(
            {
                "type": FORMAT_NAME,
                "version": header.version,
                "program": header.program,
                "command": list(header.command),
                "pid": header.pid,
                "started": header.started,
                "machine": dict(header.machine),
                "options": dict(header.options),
                "progress_points": [asdict(point) for point in header.progress_points],
            }
        )

    def startup(self, time_ns: int) -> None:
        """Records the moment at which profiling began."""
        self._write({"type": "startup", "time": time_ns})

    def region(self, region: Region) -> None:
        """Records a region; only the first call for a name writes anything."""
        if region.name in self._known_regions:
            return
        self._known_regions.add(region.name)
        optional = {"source": region.source, "function": region.function}
        known = {key: value for key, value in optional.items() if value}
        self._write({"type": "region", "name": region.name, "unit": region.unit, "binary": region.binary} | known)

    def window(self, window: Window) -> None:
        """Records a window, followed by COZ's own lines where COZ has an equivalent of it."""
        if window.arm in ("treated", "placebo") and window.void is None:
            # COZ knows nothing of void windows and of our other arms: under its own record name it would use them.
            coz_points = [{"type": "throughput-point", "name": v.name, "delta": v.delta} for v in window.points]
            self._write({"type": "experiment"} | _window_record(window), *coz_points)
        else:
            self._write({"type": "window"} | _window_record(window))

    def settled(self, region: str, rule: str) -> None:
        """Records by which rule of `causal.race` a region had enough experiments."""
        self._write({"type": "settled", "region": region, "rule": rule})

    def runtime(self, time_ns: int) -> None:
        """Records how long profiling lasted."""
        self._write({"type": "runtime", "time": time_ns})

    def samples(self, region: str, count: int, serial: float | None = None) -> None:
        """Records the samples of a region over the whole run; `serial` as in Profile."""
        known = {} if serial is None else {"serial": round(serial, 2)}
        self._write({"type": "samples", "location": region, "count": count} | known)

    def waits(self, region: str, classes_ns: Mapping[str, int]) -> None:
        """Records how long the threads waited in a region over the whole run, by class of wait."""
        self._write({"type": "waits", "location": region, "classes": dict(classes_ns)})

    def end(self, end: End) -> None:
        """Writes the last record."""
        self._write(
            {
                "type": "end",
                "reason": end.reason,
                "exit_status": end.exit_status,
                "samples": end.samples,
                "samples_in_scope": end.samples_in_scope,
                "period_ns": end.period_ns,
                "run_ns": end.run_ns,
                "diagnosis": dict(end.diagnosis),
                "messages": list(end.messages),
            }
        )

    def _write(self, *records: Mapping[str, Any]) -> None:
        # ASCII with escapes: names that are not valid UTF-8 (lone surrogates in Python) survive the round trip.
        lines = [json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records]
        data = "".join(lines).encode("ascii")
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            # Part of the record may be on disk. Cut it off, or a later record would continue in the middle of it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise write_error(self.path, error) from error
        self._size += len(data)


def _window_record(window: Window) -> dict[str, Any]:
    return {
        "selected": window.region,
        "speedup": window.speedup,
        "duration": window.effective_ns,
        "selected_samples": window.selected_samples,
        "arm": window.arm,
        "pair": window.pair,
        "level": window.level,
        "start_ns": window.start_ns,
        "settle_ns": window.settle_ns,
        "wall_ns": window.wall_ns,
        "delay_ns": window.delay_ns,
        "samples": window.samples,
        "cpus": window.cpus,
        "points": [asdict(visits) for visits in window.points],
        "half_duration": window.half_effective_ns,
        "audit": dict(window.audit),
        "void": window.void,
    }


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile, also one whose recording was killed: a cut-off last line and a missing end are tolerated.

    Raises CausalError when the file cannot be read, is empty, is not a profile, comes from a newer version, or is
    damaged before its last line.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            return ProfileReader(name, file).read()
    except OSError as error:
        raise CausalError(
            f"cannot read {name}: {error.strerror}", "give the profile written by `causal-bpf run -o FILE`"
        ) from error


class ProfileReader:
    """Reads an open file record by record, and keeps only what the records say, not the text; see `read_profile`."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._name = name
        self._file = file
        self._line_number = 0
        self._truncated = False
        self._regions: dict[str, Region] = {}
        self._windows: list[Window] = []
        self._samples: dict[str, int] = {}
        self._waits: dict[str, Counter[str]] = {}
        self._times: dict[str, int] = {}
        self._settled: dict[str, str] = {}
        self._serial: dict[str, float] = {}
        self._end: End | None = None

    def read(self) -> Profile:
        """The profile; CausalError as `read_profile`, but for errors of the system."""
        header = self._read_header()
        for record in self._records():
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise self._damaged(f"unexpected content of a {record.get('type')!r} record") from error
        return Profile(
            header=header,
            regions=tuple(self._regions.values()),
            windows=tuple(self._windows),
            samples=self._samples,
            startup_ns=self._times.get("startup"),
            runtime_ns=self._times.get("runtime"),
            end=self._end,
            truncated=self._truncated,
            path=self._name,
            settled=self._settled,
            serial=self._serial,
            waits=self._waits,
        )

    def _read_header(self) -> Header:
        line = self._file.readline(_LONGEST_LINE)
        self._line_number = 1
        if not line.strip():
            raise CausalError(f"{self._name} is empty", "the run that wrote it ended before it began; record it again")
        record = _parse(line)
        if record is None or record.get("type") != FORMAT_NAME:
            raise CausalError(
                f"{self._name} is not a causal-bpf profile", "give the file written by `causal-bpf run -o FILE`"
            )
        version = record.get("version")
        if not isinstance(version, int) or version < 1:
            raise self._damaged("it states no version")
        if version > FORMAT_VERSION:
            raise CausalError(
                f"{self._name} has format version {version}, newer than this program reads ({FORMAT_VERSION})",
                f"read it with the program that wrote it ({record.get('program', 'a newer causal-bpf')}), or upgrade",
            )
        try:
            return _header(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged("unexpected content of the header") from error

    def _records(self) -> Iterator[dict[str, Any]]:
        while line := self._file.readline(_LONGEST_LINE):
            self._line_number += 1
            if not line.strip() or (line.startswith(_COZ_ONLY) and line.endswith(b"}\n")):
                continue
            record = _parse(line)
            if record is not None:
                yield record
            elif self._file.read(_LONGEST_LINE).strip(b"\0 \r\n\t"):
                raise self._damaged("not a JSON record, and more follows")
            else:
                self._truncated = True
                return

    def _take(self, record: dict[str, Any]) -> None:
        kind = record["type"]
        if kind in ("experiment", "window"):
            self._windows.append(_window(record))
        elif kind == "region":
            optional = (record.get(key) for key in ("binary", "source", "function"))
            region = Region(str(record["name"]), str(record["unit"]), *optional)
            self._regions.setdefault(region.name, region)
        elif kind == "samples":
            location = str(record["location"])
            self._samples[location] = self._samples.get(location, 0) + int(record["count"])
            if record.get("serial") is not None:
                self._serial[location] = self._serial.get(location, 0.0) + float(record["serial"])
        elif kind == "waits":
            classes = {str(name): int(spent_ns) for name, spent_ns in record["classes"].items()}
            self._waits.setdefault(str(record["location"]), Counter()).update(classes)
        elif kind in ("startup", "runtime"):
            self._times[kind] = int(record["time"])
        elif kind == "settled":
            self._settled[str(record["region"])] = str(record["rule"])
        elif kind == "end":
            self._end = _end(record)
        elif kind == FORMAT_NAME:
            raise CausalError(
                f"{self._name} holds several profiles, the second from line {self._line_number}",
                "split the file and give the parts: causal-bpf report A B",
            )
        # Anything else is COZ's repetition of our numbers or comes from a later program of the same format version.

    def _damaged(self, what: str) -> CausalError:
        return CausalError(
            f"{self._name} is damaged at line {self._line_number}: {what}",
            "if it was edited or joined by hand, undo that; else record it again",
        )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# One for all lines: json.loads would build a new one for each.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _parse(line: bytes) -> dict[str, Any] | None:
    # UnicodeDecodeError and JSONDecodeError are both ValueErrors; deeply nested garbage ends in RecursionError.
    try:
        record = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("type"), str) else None


def _header(record: dict[str, Any]) -> Header:
    return Header(
        program=str(record.get("program", "")),
        command=tuple(str(argument) for argument in record["command"]),
        pid=int(record["pid"]),
        started=str(record.get("started", "")),
        machine=dict(record.get("machine") or {}),
        options=dict(record.get("options") or {}),
        progress_points=tuple(
            ProgressPoint(str(point["name"]), str(point.get("spec", "")), str(point.get("kind", "throughput")))
            for point in record.get("progress_points") or ()
        ),
        version=int(record["version"]),
    )


def _window(record: dict[str, Any]) -> Window:
    if record["arm"] not in ARMS:
        raise ValueError(f"unknown arm {record['arm']!r}")
    return Window(
        region=str(record["selected"]),
        arm=cast(Arm, record["arm"]),
        pair=int(record["pair"]),
        level=float(record["level"]),
        speedup=float(record["speedup"]),
        effective_ns=int(record["duration"]),
        wall_ns=int(record.get("wall_ns", 0)),
        delay_ns=int(record.get("delay_ns", 0)),
        start_ns=int(record.get("start_ns", 0)),
        settle_ns=int(record.get("settle_ns", 0)),
        selected_samples=int(record.get("selected_samples", 0)),
        samples=int(record.get("samples", 0)),
        cpus=float(record.get("cpus", 0.0)),
        points=tuple(_visits(point) for point in record.get("points") or ()),
        half_effective_ns=_optional_int(record.get("half_duration")),
        audit=_Audit(record.get("audit") or {}),
        void=None if record.get("void") is None else str(record["void"]),
    )


class _Audit(Mapping[str, Any]):
    # A dictionary per window would be half of the memory of a long profile: here the names are shared.
    __slots__ = ("_names", "_values")
    _known: ClassVar[dict[tuple[str, ...], tuple[str, ...]]] = {}

    def __init__(self, audit: Mapping[str, Any]) -> None:
        names = tuple(audit)
        self._names = self._known.setdefault(names, names)
        self._values = tuple(audit.values())

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        return self._values[self._names.index(name)] if name in self._names else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _visits(record: dict[str, Any]) -> Visits:
    return Visits(
        name=str(record["name"]),
        delta=int(record["delta"]),
        first_ns=_optional_int(record.get("first_ns")),
        last_ns=_optional_int(record.get("last_ns")),
        half_delta=_optional_int(record.get("half_delta")),
    )


def _end(record: dict[str, Any]) -> End:
    return End(
        reason=str(record["reason"]),
        exit_status=_optional_int(record.get("exit_status")),
        samples=int(record.get("samples", 0)),
        samples_in_scope=int(record.get("samples_in_scope", 0)),
        period_ns=int(record.get("period_ns", 0)),
        run_ns=int(record.get("run_ns", 0)),
        diagnosis=dict(record.get("diagnosis") or {}),
        messages=tuple(str(message) for message in record.get("messages") or ()),
    )


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)
