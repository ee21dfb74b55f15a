"""Whether progress points that are counted by uprobes cost the program too much, and what is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from causal.analysis.pairs import visits_of
from causal.profile import Profile, Window

# What sampling may take as well, where the profile does not say how much that is.
_USUAL_BUDGET = 0.1


def probe_share(profile: Profile, windows: Sequence[Window], point: str, cost_ns: float) -> float:
    """The part of the program's CPU time that visits of `cost_ns` each took; 0 where too little is known."""
    visits = sum(seen.delta for window in windows if (seen := visits_of(window, point)) is not None)
    samples = sum(window.samples for window in windows)
    used_ns = samples * (profile.end.period_ns if profile.end else 0)
    return min(visits * cost_ns / used_ns, 1.0) if used_ns else 0.0


def probe_messages(profile: Profile, windows: Sequence[Window]) -> Iterator[str]:
    """A sentence for each point above the budget, with the remedy."""
    if profile.end is None:
        return
    budget = float(profile.header.options.get("overhead") or _USUAL_BUDGET)
    for cost in _known_costs(profile.end.diagnosis.get("probe_costs")):
        share = probe_share(profile, windows, cost["point"], cost["ns"])
        if share > budget:
            yield (
                f"counting {cost['point']} takes {share:.0%} of the program's time (a uprobe of {cost['ns'] / 1e3:.1f} "
                f"us a visit{', which the kernel has to single-step' if cost['stepped'] else ''}); cheaper: "
                f"{_what_is_cheaper(cost)}"
            )


def _known_costs(listed: object) -> Iterator[Mapping[str, Any]]:
    for cost in listed if isinstance(listed, list) else ():
        if isinstance(cost, dict) and {"point", "ns", "stepped"} <= cost.keys() and isinstance(cost["ns"], int | float):
            yield cost


def _what_is_cheaper(cost: Mapping[str, Any]) -> str:
    ways = [f"the system call itself (-p {cost['instead']})"] if cost.get("instead") else []
    ways += ["a counter in the source (CAUSAL_PROGRESS of causal.h)", "a line by its samples (-p sampled:FILE:LINE)"]
    if cost["stepped"]:
        ways.append("a function that begins with a push, nop or endbr64")
    return ", ".join([*ways, "or a point that is visited less often"])
