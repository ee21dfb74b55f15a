"""Latencies: the mean time from a begin to an end, and whether there is such a thing.

Little's law (L = lambda * W, Operations Research 1961) gives the mean latency as requests in flight, integrated over
time, divided by the requests that ended, provided that as many end as begin. So a latency is to that integral what
visits are to time, and `causal.analysis.pairs` estimates both alike: a smaller latency is a positive gain.
"""

from __future__ import annotations

from collections.abc import Sequence

from causal.analysis.pairs import visits_of
from causal.profile import Window

# Requests that begin without ending, as a part of those that end, beyond which there is no steady latency; and how many
# are no accident of where windows were cut.
_UNBALANCED, _NOTABLE = 0.05, 20


def is_latency(windows: Sequence[Window], point: str) -> bool:
    """Whether the windows measured a latency at this point."""
    return any(seen.in_flight_ns is not None for window in windows if (seen := visits_of(window, point)) is not None)


def mean_latency_s(windows: Sequence[Window], point: str, min_requests: int) -> float | None:
    """The mean over these windows; None with fewer requests than `min_requests`."""
    known = [seen for window in windows if (seen := visits_of(window, point)) is not None]
    requests = sum(seen.delta for seen in known)
    in_flight_ns = sum(seen.in_flight_ns or 0 for seen in known)
    return in_flight_ns / requests / 1e9 if requests >= max(min_requests, 1) else None


def imbalance(windows: Sequence[Window], point: str) -> str | None:
    """Why a latency has no steady value, as a sentence, by all windows of the run; None when arrivals and departures
    agree."""
    known = [seen for window in windows if (seen := visits_of(window, point)) is not None]
    began, ended = sum(seen.arrivals or 0 for seen in known), sum(seen.delta for seen in known)
    if abs(began - ended) <= max(_NOTABLE, _UNBALANCED * max(began, ended)):
        return None
    if not ended:
        return f"{began:,} requests of {point} began and none ended: check its end"
    if not began:
        return f"{ended:,} requests of {point} ended and none began: check its begin"
    if began > ended:
        return (
            f"{began:,} requests of {point} began and {ended:,} ended: either some never pass the end, or they pile up"
            " and the latency grows without limit"
        )
    return f"{ended:,} requests of {point} ended but only {began:,} began: some pass the end twice or not the begin"
