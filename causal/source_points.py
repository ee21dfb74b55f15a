"""Progress points that a program's source names (bpf/stub/causal.h), for where its counters cannot be read.

Counters are connected when a program starts with our library in it. A program that runs already, or is static, has
none; but each point of causal.h is a USDT point as well. Programs built with COZ's header have only the counters.
"""

from __future__ import annotations

from collections.abc import Sequence

from causal.points import MACRO_MARK, Found, Latency, Place, marks_in, own_libraries
from causal.progress import PointSpec, resolve_usdt
from causal.symbols.elf import Binary
from causal.symbols.libraries import readable_binaries
from causal.symbols.usdt import usdt_points

_PROGRESS, _BEGIN, _END = "causal_progress", "causal_begin", "causal_end"


def points_in_source(main: Binary, libraries: Sequence[str]) -> Found:
    """What CAUSAL_PROGRESS, CAUSAL_BEGIN and CAUSAL_END name in a program and its libraries; empty when nothing."""
    binaries = [main, *readable_binaries(libraries)]
    names: dict[str, dict[str, None]] = {_PROGRESS: {}, _BEGIN: {}, _END: {}}
    for binary in binaries:
        for point in usdt_points(binary):
            if point.provider in names:
                names[point.provider][point.name] = None

    def place(provider: str, name: str) -> Place:
        spec = PointSpec(name, f"usdt:{provider}:{name}", "usdt", f"{provider}:{name}", None)
        return Place(spec, tuple(resolve_usdt(binaries, provider, name)))

    pairs = [name for name in names[_BEGIN] if name in names[_END]]
    return Found(
        tuple(place(_PROGRESS, name) for name in names[_PROGRESS]),
        tuple(
            Latency(
                f"{name} (latency)" if name in names[_PROGRESS] else name, f"{_BEGIN}:{name},{_END}:{name}",
                place(_BEGIN, name), place(_END, name),
            )
            for name in pairs
        ),
    )  # fmt: skip


def unread_counters(main: Binary, libraries: Sequence[str], runs_already: bool) -> str:
    """What to say of counters in the program that nobody can read; "" where there are none."""
    if MACRO_MARK not in marks_in((main.path, *own_libraries(libraries))):
        return ""
    if runs_already:
        return (
            f"the counters of coz.h in {main.name} are connected when it starts, so only `causal-bpf run` can read "
            "them; those of causal.h can be read here too"
        )
    return f"the counters of coz.h in {main.name} cannot be read, as nothing can be preloaded into it (is it static?)"
