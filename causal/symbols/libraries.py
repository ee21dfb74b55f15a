"""The shared libraries a program will load, found as the dynamic loader does, without running anything.

`ldd` would answer too, but it works by executing the program's loader on the program.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from causal.errors import CausalError
from causal.symbols.elf import Binary

_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_LDCONFIG_LINE = re.compile(r"\s+(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>.+)")
_CACHE_KIND = {"x86_64": "x86-64", "aarch64": "AArch64"}
_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def library_matches(pattern: str, path: str) -> bool:
    """Whether `pattern` means the file `path`.

    A pattern with a slash is a path or a glob of whole paths. Others are compared with the file's name: as a glob, or
    as the name without (the rest of) its version: `libz`, `libz.so` and `libz.so.1` mean libz.so.1.2.13.
    """
    if "/" in pattern:
        return fnmatch.fnmatchcase(path, pattern) or os.path.realpath(pattern) == os.path.realpath(path)
    name = os.path.basename(path)
    if ".so." in pattern and name.startswith(pattern + "."):
        return True
    stem = pattern.removesuffix(".so")
    return fnmatch.fnmatchcase(name, pattern) or bool(re.match(re.escape(stem) + r"(-[\d.]+)?\.so(\.|$)", name))


def libraries_of(binary: Binary, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Paths of all libraries the loader will map for `binary`, nearest dependencies first.

    The paths are those by which the loader finds them; a process's memory map shows where their links lead.
    `environ` is the program's environment (LD_LIBRARY_PATH counts unless the program is privileged). Libraries that
    are not found or not readable are left out: the loader will complain about them better than we can.
    """
    preset = "" if binary.is_privileged else environ.get("LD_LIBRARY_PATH", "")
    preset_directories = [part or "." for part in re.split("[:;]", preset)] if preset else []
    found: dict[str, str] = {}
    queue: list[tuple[Binary, tuple[str, ...]]] = [(binary, ())]
    while queue:
        user, inherited = queue.pop(0)
        rpath = (*_directories(user.rpath, user), *inherited) if user.runpath is None else ()
        directories = [*rpath, *preset_directories, *_directories(user.runpath, user)]
        for name in user.needed:
            if name in found:
                continue
            library = _find(name, directories, user.machine)
            if library is not None:
                found[name] = library.path
                # DT_RPATH also serves the libraries' own needs, DT_RUNPATH does not (ld.so(8)).
                queue.append((library, rpath))
    return list(dict.fromkeys(found.values()))


def readable_binaries(libraries: Iterable[Binary | str]) -> Iterator[Binary]:
    """Those of these files, loaded or as paths, that can be read; the others have nothing that we could use."""
    for library in libraries:
        try:
            yield Binary.load(library) if isinstance(library, str) else library
        except CausalError:
            continue


def _directories(search_list: str | None, user: Binary) -> list[str]:
    if not search_list:
        return []
    origin = os.path.dirname(os.path.realpath(user.path))
    replaced = re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: origin, search_list)
    replaced = re.sub(r"\$(PLATFORM\b|\{PLATFORM\})", user.machine, replaced)
    replaced = re.sub(r"\$(LIB\b|\{LIB\})", f"lib/{_MULTIARCH.get(user.machine, '')}", replaced)
    return [part for part in replaced.split(":") if part]


def _find(name: str, directories: Iterable[str], machine: str) -> Binary | None:
    if "/" in name:
        return _load(name)
    default = _default_directories(machine)
    places = [os.path.join(directory, name) for directory in directories]
    places += loader_cache(machine).get(name, ())
    places += [os.path.join(directory, name) for directory in default]
    return next((library for library in map(_load, places) if library is not None), None)


def _load(path: str) -> Binary | None:
    # As the loader does, pass over files of another architecture on the way to the right one.
    if not os.path.isfile(path):
        return None
    try:
        return Binary.load(path)
    except CausalError:
        return None


def _default_directories(machine: str) -> Sequence[str]:
    multiarch = _MULTIARCH.get(machine, "")
    return [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


@lru_cache(maxsize=4)
def loader_cache(machine: str) -> dict[str, tuple[str, ...]]:
    """What ld.so.cache knows: library name -> paths, for `machine`; empty where there is no ldconfig (musl)."""
    for program in _LDCONFIG:
        if os.path.exists(program):
            try:
                run = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return {}
            return parse_loader_cache(run.stdout, machine)
    return {}


def parse_loader_cache(text: str, machine: str) -> dict[str, tuple[str, ...]]:
    """The output of `ldconfig -p` -> library name -> paths, in the loader's order of preference."""
    wanted = _CACHE_KIND.get(machine, machine)
    paths: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        match = _LDCONFIG_LINE.match(line)
        if match and wanted in re.split(r",\s*", match["kind"]):
            paths[match["name"]] = (*paths.get(match["name"], ()), match["path"])
    return paths
