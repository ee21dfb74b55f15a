"""Where the debug information of a program is: in itself, in a separate file, at a debuginfod server.

Looks where gdb looks: `/usr/lib/debug/.build-id`, the debuglink beside the program, in `.debug/` and below
`/usr/lib/debug`, and, only when DEBUGINFOD_URLS is set, at those servers.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from causal.errors import CausalError
from causal.symbols.cache import cache_directory
from causal.symbols.elf import Binary
from causal.symbols.native import SECTIONS
from causal.symbols.sections import SectionFile

DEBUG_DIRECTORIES: Sequence[str] = ("/usr/lib/debug",)
_DOWNLOAD_TIMEOUT_S = 10.0
_MAX_DOWNLOAD = 4 << 30
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")


class DebugFile:
    """The sections with debug information of one program. `path` is the file they are in."""

    def __init__(self, path: str, sections: Mapping[str, bytes]) -> None:
        self.path = path
        self.sections = sections


def find_debug_path(binary: Binary, environ: Mapping[str, str] = os.environ) -> str | None:
    """The file that has the line information of `binary`: its own path, that of a separate file, or None."""
    with open(binary.path, "rb") as file:
        own = SectionFile(binary.path, file)
        if ".debug_line" in own:
            return binary.path
        link = _link(own.read(".gnu_debuglink"))
    for candidate in _candidates(binary, link):
        if _fits(candidate, binary, link):
            return candidate
    return _downloaded(binary.build_id, environ)


# What line programs need, without the entries of .debug_info.
_LINE_SECTIONS = (".debug_line", ".debug_line_str", ".debug_str")


def read_debug_file(path: str, inlines: bool = True, further: Sequence[str] = ()) -> DebugFile:
    """What lines and inlined calls need of a file, with its alternate file (dwz). Raises CausalError when damaged.

    `further`: names of other sections that are wanted. Without `inlines` only what line programs consist of; before
    DWARF 5 the directory of a compilation is missing then.
    """
    wanted = [*(name for name in SECTIONS if name.startswith(".")), *further] if inlines else _LINE_SECTIONS
    try:
        with open(path, "rb") as file:
            stored = SectionFile(path, file)
            sections = stored.read_all(wanted)
            if not inlines:
                return DebugFile(path, sections)
            alternate = _alternate_path(path, stored)
    except OSError as error:
        raise CausalError(f"cannot read {path}: {error.strerror}", "check its permissions, or run as root") from error
    if alternate is not None:
        with open(alternate, "rb") as file:
            supplement = SectionFile(alternate, file)
            names = (name.removeprefix("sup") for name in SECTIONS if name.startswith("sup"))
            sections |= {f"sup{name}": content for name, content in supplement.read_all(names).items()}
    return DebugFile(path, sections)


def _link(content: bytes) -> tuple[str, int] | None:
    """(file name, CRC-32) of .gnu_debuglink: a name, padding to four bytes, the sum (gdb manual, "Separate Debug")."""
    name, nul, _ = content.partition(b"\0")
    at = (len(name) + 4) & ~3
    if not name or not nul or len(content) < at + 4 or b"/" in name:
        return None
    return os.fsdecode(name), int.from_bytes(content[at : at + 4], "little")


def _candidates(binary: Binary, link: tuple[str, int] | None) -> Iterator[str]:
    if binary.build_id and _BUILD_ID.fullmatch(binary.build_id):
        for directory in DEBUG_DIRECTORIES:
            yield f"{directory}/.build-id/{binary.build_id[:2]}/{binary.build_id[2:]}.debug"
    if link is not None:
        beside = os.path.dirname(os.path.realpath(binary.path))
        places = (beside, f"{beside}/.debug", *(directory + beside for directory in DEBUG_DIRECTORIES))
        yield from (f"{place}/{link[0]}" for place in places)


def _fits(path: str, binary: Binary, link: tuple[str, int] | None) -> bool:
    """Whether this is the other half of `binary`: the same build-id, or the sum in the link."""
    if not os.path.isfile(path) or os.path.realpath(path) == os.path.realpath(binary.path):
        return False
    try:
        with open(path, "rb") as file:
            if ".debug_line" not in SectionFile(path, file):
                return False
            if binary.build_id:
                return _build_id(path) == binary.build_id
            return link is not None and _crc(path) == link[1]
    except (OSError, CausalError):
        return False


def _build_id(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            # In a file of debug information the segments' notes are gone, but not the section.
            section: Any = ELFFile(file).get_section_by_name(".note.gnu.build-id")
            return next((str(note["n_desc"]) for note in section.iter_notes()), None) if section else None
    except Exception:  # pyelftools lets almost anything escape from damaged files
        return None


def _crc(path: str) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _alternate_path(path: str, stored: SectionFile) -> str | None:
    """The file that .gnu_debugaltlink names: a path, from the directory of `path`, and a build-id."""
    name, nul, build_id = stored.read(".gnu_debugaltlink").partition(b"\0")
    if not name or not nul:
        return None
    identity = build_id.hex()
    beside = os.path.dirname(os.path.realpath(path))
    places = [os.path.join(beside, os.fsdecode(name))]
    places += [f"{directory}/.build-id/{identity[:2]}/{identity[2:]}.debug" for directory in DEBUG_DIRECTORIES]
    return next((p for p in places if os.path.isfile(p) and _build_id(p) in (None, identity)), None)


def _downloaded(build_id: str | None, environ: Mapping[str, str]) -> str | None:
    """From the servers in DEBUGINFOD_URLS, kept below the user's cache directory."""
    urls = environ.get("DEBUGINFOD_URLS", "").split()
    if not urls or not build_id or not _BUILD_ID.fullmatch(build_id):
        return None
    kept = cache_directory(environ) / "debuginfod" / build_id / "debuginfo"
    if kept.is_file():
        return str(kept)
    for url in urls:
        try:
            _download(f"{url.rstrip('/')}/buildid/{build_id}/debuginfo", kept, environ)
            return str(kept)
        except (OSError, ValueError, urllib.error.URLError):
            continue  # this server does not have it, or is out of reach
    return None


def _download(url: str, kept: Path, environ: Mapping[str, str]) -> None:
    if not url.startswith(("http://", "https://")):
        raise ValueError(url)
    timeout_s = float(environ.get("DEBUGINFOD_TIMEOUT") or _DOWNLOAD_TIMEOUT_S)
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_name(f".{kept.name}.{os.getpid()}")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer, open(fresh, "wb") as file:
            size = 0
            while block := answer.read(1 << 20):
                size += file.write(block)
                if size > _MAX_DOWNLOAD:
                    raise ValueError("too large")
        fresh.replace(kept)
    finally:
        fresh.unlink(missing_ok=True)
