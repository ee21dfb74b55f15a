"""Names close to one that was not found, for "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# difflib takes about 10 us a name: a bound keeps the answer to a typing error below half a second.
_MAX_COMPARED = 30_000


def near_names(wanted: str, names: Iterable[str], count: int = 5) -> list[str]:
    """Up to `count` distinct names, best first: those that contain `wanted`, then those spelled like it."""
    known = list(dict.fromkeys(name for name in names if name))
    folded = wanted.casefold()
    contain = sorted((n for n in known if folded and folded in n.casefold()), key=lambda n: (len(n), n))[:count]
    if len(contain) == count:
        return contain
    alike = [n for n in known if 0.5 <= (len(n) + 1) / (len(wanted) + 1) <= 2.0 and n not in contain]
    # Prefer what begins the same where there is too much to compare.
    alike.sort(key=lambda n: n[:1] != wanted[:1])
    close = difflib.get_close_matches(wanted, alike[:_MAX_COMPARED], count - len(contain), cutoff=0.6)
    return contain + close
