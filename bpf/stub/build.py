"""Compiles what the profiler brings into other processes: `libcausal-stub.so`, which `run` preloads, and
`causal-inject`, which brings the same handler into a process that runs already; and for the profiler's own process the
reader of debug information, `libcausal-dwarf.so` in causal/symbols/native, and `libcausal-probed.so`, by which it finds
out what uprobes cost.

Runs by itself whenever the package is built, also for an editable install (it is hatchling's custom build
hook), and by hand after an edit: `python3 bpf/stub/build.py` compiles only when a source is newer.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "libcausal-stub.so"
INJECTOR = HERE / "causal-inject"
PROBED = HERE / "libcausal-probed.so"
LIBRARY_SOURCES = ("stub.c",)
HANDLER_SOURCES = ("handler.c",)
INJECTOR_SOURCES = ("inject.c", "handover.c", "threads.c", "tracee_x86_64.c", "landing_x86_64.c")
READER_SOURCES = HERE.parents[1] / "causal" / "symbols" / "native"
READER = READER_SOURCES / "libcausal-dwarf.so"

STRICT = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
# Both handlers run inside signal handlers of other people's programs, in any thread, libc and coroutine.
CFLAGS = [
    *STRICT,
    "-ffreestanding",
    "-fPIC",
    "-fvisibility=hidden",  # a preloaded name would otherwise take the place of the program's own
    "-fno-stack-protector",  # the canary lives in thread-local storage, which may not exist yet
    "-U_FORTIFY_SOURCE",
    "-mgeneral-regs-only",  # the vector registers belong to the code that was interrupted
    "-fno-tree-loop-distribute-patterns",  # keeps loops from turning into calls of memset and memcpy
    "-fno-omit-frame-pointer",  # stacks stay readable while a thread sleeps in the handler:
    "-fasynchronous-unwind-tables",  # for other profilers, for gdb, and for pthread_cancel's unwinding
]
HANDLER_CFLAGS = [*CFLAGS, "-fno-jump-tables"]  # a table would lie outside of what is copied
LDFLAGS = [
    "-nostdlib",
    "-shared",
    "-Wl,-soname,libcausal-stub.so",
    "-Wl,-z,defs",  # a forgotten libc call fails here and not in somebody's program
    "-Wl,-z,now",
    "-Wl,-z,relro",
    "-Wl,-z,noexecstack",
    "-Wl,--hash-style=both",
    "-Wl,--build-id",
]
# The reader is an ordinary library, but of input that may be hostile.
READER_CFLAGS = [*STRICT, "-fPIC", "-fstack-protector-strong"]
READER_LDFLAGS = ["-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"]


class BuildError(RuntimeError):
    """Something cannot be compiled; the message says why and what to do."""


def compiler() -> list[str]:
    """The C compiler to call: $CC, else `cc`."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def is_stale() -> bool:
    """Whether a product is missing or older than a source, a header or these flags."""
    products = (LIBRARY, INJECTOR, READER, PROBED)
    if not all(product.exists() for product in products):
        return True
    built = min(product.stat().st_mtime_ns for product in products)
    inputs = [path for where in (HERE, READER_SOURCES) for path in where.glob("*.[ch]")] + [Path(__file__)]
    return any(path.stat().st_mtime_ns > built for path in inputs)


def compile_library() -> None:
    """Compile the preload library; raises BuildError with the compiler's words."""
    _produce(LIBRARY, CFLAGS, [HERE / name for name in LIBRARY_SOURCES], LDFLAGS)


def compile_injector(product: Path = INJECTOR, further: Sequence[str] = ()) -> None:
    """Compile the injector with the handler inside; raises BuildError with the compiler's words.

    `further`: sources and options with which tests make one that dies half-way.
    """
    handler = HERE / f".handler.{os.getpid()}.o"
    try:
        _produce(handler, [*HANDLER_CFLAGS, "-c"], [HERE / name for name in HANDLER_SOURCES], [])
        inputs = [*(HERE / name for name in INJECTOR_SOURCES), handler]
        _produce(product, STRICT, inputs, ["-Wl,-z,noexecstack", *further])
    finally:
        handler.unlink(missing_ok=True)


def compile_reader() -> None:
    """Compile the reader of debug information; raises BuildError with the compiler's words."""
    _produce(READER, READER_CFLAGS, sorted(READER_SOURCES.glob("*.c")), READER_LDFLAGS)


def compile_probed() -> None:
    """Compile what uprobes are tried on; raises BuildError with the compiler's words."""
    _produce(PROBED, READER_CFLAGS, [HERE / "probed.c"], READER_LDFLAGS)


def _produce(product: Path, cflags: Sequence[str], inputs: Sequence[Path], ldflags: Sequence[str]) -> None:
    # Written beside and renamed: whoever has the old one mapped keeps its own copy.
    fresh = product.with_name(f".{product.name.lstrip('.')}.{os.getpid()}.new")
    command = [*compiler(), *cflags, *map(str, inputs), "-o", str(fresh), *ldflags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"cannot compile {product.name}:\n{shlex.join(command)}\n{done.stderr}")
        if done.stderr:
            sys.stderr.write(done.stderr)
        fresh.chmod(0o755)  # the program under test may belong to another user, whatever our umask
        fresh.replace(product)
    except FileNotFoundError:
        raise BuildError(f"no C compiler ({command[0]}): install gcc and the libc headers, or set CC") from None
    finally:
        fresh.unlink(missing_ok=True)


def ensure_built() -> bool:
    """Compile all if anything is stale; returns whether it was. Raises BuildError."""
    if not is_stale():
        return False
    compile_library()
    compile_injector()
    compile_reader()
    compile_probed()
    return True


def main() -> int:
    """Compile when stale; exit code 1 with the reason when that fails."""
    try:
        ensure_built()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if TYPE_CHECKING:
    HookBase = object
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface as HookBase
    except ModuleNotFoundError:  # run by hand: hatchling lives only in pip's build environment
        HookBase = object


class StubBuildHook(HookBase):
    """Called by hatchling before it makes a wheel, ordinary or editable."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile all and mark the wheel as one for this platform."""
        ensure_built()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(main())
