"""A small program with a known answer, for `doctor --self-test`: two threads take turns, each with work of its own.

Run as a script: `known_answer.py A B SECONDS` works A and B blocks per round, and prints rounds per second.
Making the first thread's share of a round s faster saves s * A / (A + B) of it.
"""

import os
import sys
import threading
import time
import zlib

FIRST, SECOND = "first", "second"
# Checksums of large blocks are computed without the interpreter's lock, in a few hundred microseconds.
_BLOCK = bytes(1_000_000)


def main(first_blocks: int, second_blocks: int, seconds: float) -> None:
    """Works for `seconds` and prints the rate. A round ends with a call of sched_yield, the progress point."""
    mine, theirs = threading.Semaphore(0), threading.Semaphore(0)
    threading.Thread(target=_take_turns, args=(second_blocks, theirs, mine), daemon=True).start()
    _name_thread(FIRST)
    rounds, began = 0, time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        _work(first_blocks)
        theirs.release()
        mine.acquire()
        os.sched_yield()
        rounds += 1
    print(rounds / elapsed)


def _take_turns(blocks: int, turn: threading.Semaphore, other: threading.Semaphore) -> None:
    _name_thread(SECOND)
    while True:
        turn.acquire()
        _work(blocks)
        other.release()


def _work(blocks: int) -> None:
    for _ in range(blocks):
        zlib.crc32(_BLOCK)


def _name_thread(name: str) -> None:
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
        file.write(name)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
