"""What the columns of a table of traces are: id, inputs, outputs, functions.

The paper's form is `id, size..., time (or repeats T1..Tn), f0...`. Everything before the first measurement is an
input, everything behind it a function, unless the user says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from causal.errors import CausalError, UsageError

_ID = re.compile(r"id|trace|trace_id|run|request|name", re.IGNORECASE)
_MEASUREMENT = re.compile(
    r"(wall_|cpu_|wait_|user_|system_)?time|t|t\d+|duration|latency|elapsed|(peak_)?memory|(peak_)?rss|"
    r"(major_|minor_)?faults|page_faults|instructions|cycles",
    re.IGNORECASE,
)
_REPEAT = re.compile(r"t\d+", re.IGNORECASE)
_UNIT = re.compile(r"\s*[(\[][^)\]]*[)\]]$|_(ns|us|ms|s|min|h|b|bytes|kb|mb|gb|kib|mib|gib)$")


@dataclass(frozen=True)
class Roles:
    """Which column is what, as indices into the header; `ident` is None when rows are to be numbered."""

    ident: int | None
    inputs: list[int]
    outputs: list[int]  # several: repeats of one measurement, of which the median counts
    functions: list[int]
    output_name: str


def is_measurement(name: str) -> bool:
    """Whether a column's name says that it was measured: time, T1, peak_memory, time_ms, latency (us)..."""
    return _MEASUREMENT.fullmatch(_UNIT.sub("", name)) is not None


def assign_roles(header: Sequence[str], inputs: Sequence[str] = (), output: str | None = None) -> Roles:
    """Decide from a header and the user's wishes; raises CausalError naming the column that is missing or double."""
    index = _index(header)
    ident = 0 if _ID.fullmatch(header[0]) else None
    measured = [i for i, name in enumerate(header) if i != ident and is_measurement(name) and name not in inputs]
    outputs, output_name = _outputs(header, index, measured, output)
    if inputs:
        chosen = [_find(index, name, "--inputs") for name in inputs]
        if set(chosen) & set(outputs):
            raise UsageError(f"column {output_name!r} cannot be input and output", "choose another --inputs")
        before: list[int] = []
    else:
        first = min([*measured, *outputs])
        chosen = [i for i in range(first) if i != ident]
        before = chosen
    if not chosen:
        raise CausalError(
            f"no input column stands before {output_name!r}",
            "the form is id, size..., time, functions...; or name the inputs with --inputs size",
        )
    used = {ident, *chosen, *before, *measured, *outputs}
    functions = [i for i in range(len(header)) if i not in used]
    return Roles(ident, chosen, outputs, functions, output_name)


def _index(header: Sequence[str]) -> dict[str, int]:
    index: dict[str, int] = {}
    for position, name in enumerate(header):
        if not name:
            raise CausalError(f"row 1: column {position + 1} has no name", "the first line names the columns")
        if name in index:
            raise CausalError(
                f"row 1: column {name!r} stands twice, as columns {index[name] + 1} and {position + 1}",
                "every column needs a name of its own",
            )
        index[name] = position
    return index


def _find(index: dict[str, int], name: str, option: str) -> int:
    if name not in index:
        raise UsageError(f"{option}: there is no column {name!r}", f"there are {_some(list(index))}")
    return index[name]


def _outputs(
    header: Sequence[str], index: dict[str, int], measured: list[int], output: str | None
) -> tuple[list[int], str]:
    if output is not None and output not in index:
        # `--output time` also finds `time_ms`, and the repeats T1..Tn.
        alike = [i for i in measured if _UNIT.sub("", header[i]) == output]
        repeats = [i for i in measured if _REPEAT.fullmatch(header[i])] if output == "time" else []
        if alike or repeats:
            return (alike[:1], header[alike[0]]) if alike else (repeats, "time")
    if output is not None:
        return [_find(index, output, "--output")], output
    if not measured:
        raise CausalError(
            "no column is called time, T1 or the like", f"choose the output with --output; there are {_some(header)}"
        )
    if _REPEAT.fullmatch(header[measured[0]]):
        return [i for i in measured if _REPEAT.fullmatch(header[i])], "time"
    return measured[:1], header[measured[0]]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
