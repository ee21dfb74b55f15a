"""Unwinding by call-frame information: is it right, what does it cost, how fast are its tables built?

scripts/bench unwind gdb       the very samples against gdb, which looks at the frozen threads
scripts/bench unwind cost      time of the sampling program by depth of the stack, as the kernel counts it
scripts/bench unwind modules   a process with 10,000 of them
scripts/bench unwind predictions    the same programs with and without frame pointers, predicted in turn
scripts/bench unwind tables    building tables against `readelf --debug-dump=frames-interp`, rows compared
"""

import argparse
import json
import sys

from benchmarks import unwind_cost, unwind_gdb, unwind_modules, unwind_predictions, unwind_tables
from benchmarks.machine import describe_machine

PARTS = {
    "gdb": unwind_gdb.measure,
    "cost": unwind_cost.measure,
    "modules": unwind_modules.measure,
    "predictions": unwind_predictions.measure,
    "tables": unwind_tables.measure,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench unwind", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument(
        "words", nargs="*", metavar="WORD",
        help="gdb: programs; cost: depths; modules: how many; predictions: cases; tables: files",
    )
    parser.add_argument("--stacks", type=int, default=1000, help="gdb: how many in all (default 1000)")
    options = parser.parse_args(arguments)
    print(json.dumps(describe_machine()), file=sys.stderr)
    return PARTS[options.part](options.words, options.stacks)
