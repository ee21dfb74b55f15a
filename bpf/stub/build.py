"""Compiles what is C: the cooperating preload library `libcausal-stub.so` from stub.c, and the reader of debug
information that the profiler itself uses, `causal/symbols/native/libcausal-dwarf.so`.

Runs by itself whenever the package is built, also for an editable install (it is hatchling's custom build
hook), and by hand after an edit: `python3 bpf/stub/build.py` compiles only what is older than its sources.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "stub.c"
LIBRARY = HERE / "libcausal-stub.so"

# The library runs inside signal handlers of other people's programs, in any thread, libc and coroutine.
CFLAGS = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
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


READER = HERE.parents[1] / "causal" / "symbols" / "native"
READER_LIBRARY = READER / "libcausal-dwarf.so"
# An ordinary library, but of input that may be hostile.
READER_CFLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=default",
                 "-fstack-protector-strong"]  # fmt: skip
READER_LDFLAGS = ["-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"]


class BuildError(RuntimeError):
    """The stub cannot be compiled; the message says why and what to do."""


def compiler() -> list[str]:
    """The C compiler to call: $CC, else `cc`."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def is_stale(library: Path = LIBRARY) -> bool:
    """Whether a library is missing or older than a source or a header beside it, or these flags."""
    if not library.exists():
        return True
    built = library.stat().st_mtime_ns
    inputs = [*library.parent.glob("*.c"), *library.parent.glob("*.h"), Path(__file__)]
    return any(path.stat().st_mtime_ns > built for path in inputs)


def compile_stub() -> Path:
    """Compile stub.c and put the library in place atomically; raises BuildError with the compiler's words."""
    return _compile([SOURCE], CFLAGS, LDFLAGS, LIBRARY)


def compile_reader() -> Path:
    """Compile the reader of debug information; raises BuildError with the compiler's words."""
    return _compile(sorted(READER.glob("*.c")), READER_CFLAGS, READER_LDFLAGS, READER_LIBRARY)


def _compile(sources: list[Path], cflags: list[str], ldflags: list[str], library: Path) -> Path:
    # Written beside and renamed: a program that has the old library mapped keeps its own copy.
    fresh = library.with_name(f".{library.name}.{os.getpid()}")
    command = [*compiler(), *cflags, *map(str, sources), "-o", str(fresh), *ldflags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"cannot compile {sources[0]}:\n{shlex.join(command)}\n{done.stderr}")
        if done.stderr:
            sys.stderr.write(done.stderr)
        fresh.chmod(0o755)  # the program under test may belong to another user, whatever our umask
        fresh.replace(library)
    except FileNotFoundError:
        raise BuildError(f"no C compiler ({command[0]}): install gcc and the libc headers, or set CC") from None
    finally:
        fresh.unlink(missing_ok=True)
    return library


def ensure_stub() -> bool:
    """Compile the stub if it is stale; returns whether it was compiled. Raises BuildError."""
    if not is_stale():
        return False
    compile_stub()
    return True


def ensure_all() -> None:
    """Compile what is stale. Raises BuildError."""
    ensure_stub()
    if is_stale(READER_LIBRARY):
        compile_reader()


def main() -> int:
    """Compile when stale; exit code 1 with the reason when that fails."""
    try:
        ensure_all()
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
        """Compile both and mark the wheel as one for this platform."""
        ensure_all()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.exit(main())
