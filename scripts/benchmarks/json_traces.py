"""Traces of a real program: Python's json module writing documents of many sizes with options chosen at random.

    python3 -m benchmarks.json_traces > json.csv       # in scripts/
    causal-bpf explain json.csv

Every document is written seven times unobserved, for T1..T7, and once under a profile function that counts the calls
of all functions of the module, and of the C functions that they call.
"""

import json
import os
import random
import sys
import time
from collections import Counter

REPEATS = 7


def make_document(rng, size):
    """A list of records with text, numbers and lists in them."""
    return [
        {
            "name": "".join(rng.choices("abcdefg\N{LATIN SMALL LETTER E WITH ACUTE}", k=12)),
            "value": rng.random(),
            "tags": rng.choices(["red", "green", "blue"], k=3),
        }
        for _ in range(size)
    ]


def make_options(rng):
    """Keyword arguments of json.dumps, each there or not."""
    options = {}
    if rng.random() < 0.4:
        options["indent"] = 2
    if rng.random() < 0.5:
        options["ensure_ascii"] = False
    if rng.random() < 0.5:
        options["sort_keys"] = True
    if rng.random() < 0.5:
        options["separators"] = (",", ":")
    if rng.random() < 0.5:
        options["check_circular"] = False
    return options


def count_calls(work):
    """How often each function of json, or C function called by it, is called; nothing is timed meanwhile."""
    calls = Counter()
    home = os.path.dirname(json.__file__)

    def note(frame, event, function):
        if os.path.dirname(frame.f_code.co_filename) != home:
            return
        if event == "call":
            calls[f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[f"{function.__module__ or 'builtins'}.{function.__qualname__}"] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def time_runs(work):
    """Microseconds of each of REPEATS runs, after one that warms up."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def main(count=400, seed=1):
    """Prints the traces as CSV."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        size = rng.randrange(5, 300)
        document, options = make_document(rng, size), make_options(rng)

        def work(document=document, options=options):
            return json.dumps(document, **options)

        name = "+".join(options) or "plain"
        rows.append((f"{number}:{name}", size, time_runs(work), count_calls(work)))
    functions = sorted({name for *_, calls in rows for name in calls})
    print(",".join(["id", "records", *(f"T{i + 1}" for i in range(REPEATS)), *functions]))
    for ident, size, times, calls in rows:
        print(",".join([ident, str(size), *(f"{t:.1f}" for t in times), *(str(calls[f]) for f in functions)]))


if __name__ == "__main__":
    main()
