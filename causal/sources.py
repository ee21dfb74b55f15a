"""Source files: which of them count, and how they are called for short.

Use:

    scope = SourceScope(["src/*", "!src/vendor"])
    scope.includes("/home/me/project/src/main.c")
    short_names(["/a/x/util.c", "/a/y/util.c"])     # x/util.c, y/util.c
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count

from causal.errors import UsageError

# What belongs to the system or to a toolchain: nobody profiles a program to learn that std::vector is slow.
_NOT_OURS = re.compile(
    r"/usr/(local/)?include/|/usr/(local/)?lib(32|64)?/(gcc|clang|llvm|go|rustlib)|/usr/share/go|/usr/src/rustc"
    r"|/rustc/|/rust/deps/|.*/\.rustup/|.*/\.cargo/(registry|git)/|/usr/local/go/|.*/go/pkg/mod/|.*/include/c\+\+/|.*/libstdc\+\+-v3/"
    r"|<"  # <artificial>, <built-in>
)
# Directories that hold projects, and are none.
_SHARED = re.compile(r"/|/(home|usr|opt|srv|mnt|media|tmp|var|root|build)|/home/[^/]+|/usr/(src|local)|/var/tmp")


class SourceScope:
    """The source files whose lines count.

    `patterns` as `-s` gives them: a glob (`*` also matches `/`) of a path, or of a path's last parts, or of a directory
    with all below it; `!pattern` excludes, which always wins. Without patterns that include something, everything
    counts but system headers, toolchains and their standard libraries, and packages of dependencies.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        if any(not pattern.removeprefix("!").strip("/ ") for pattern in patterns):
            raise UsageError("a source pattern is empty", "give a name such as 'src/*', or !NAME to exclude one")
        self._wanted = [_matcher(pattern) for pattern in patterns if not pattern.startswith("!")]
        self._excluded = [_matcher(pattern[1:]) for pattern in patterns if pattern.startswith("!")]

    def includes(self, path: str) -> bool:
        if any(matches(path) for matches in self._excluded):
            return False
        if self._wanted:
            return any(matches(path) for matches in self._wanted)
        return not _NOT_OURS.match(path)


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], object]:
    pattern = os.path.normpath(pattern)
    anywhere = () if pattern.startswith("/") else (f"*/{pattern}", f"*/{pattern}/*")
    globs = (pattern, f"{pattern}/*", *anywhere)
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs)).match


def source_matches(pattern: str, path: str) -> bool:
    """Whether a pattern of SourceScope means this file."""
    return bool(_matcher(pattern)(path))


def project_directory(files: Iterable[str]) -> str | None:
    """The directory that all these source files share; None where it holds more than one project (/tmp, a home)."""
    absolute = {os.path.dirname(path) for path in files if path.startswith("/")}
    if not absolute:
        return None
    common = os.path.commonpath(absolute)
    return None if _SHARED.fullmatch(common) or common == os.path.expanduser("~") else common


def short_names(paths: Collection[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """Path -> as many of its last parts as no other path has; `taken` maps names in use to their paths."""
    used = dict(taken or {})
    names = {path: name for name, path in used.items()}
    groups: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        if path not in names:
            groups.setdefault(os.path.basename(path), []).append(path)
    for group in groups.values():
        for path in group:
            parts = path.split("/")
            others = [other.split("/") for other in group if other != path]
            for size in range(1, len(parts) + 1):
                name = "/".join(parts[-size:])
                if name not in used and all(other[-size:] != parts[-size:] for other in others):
                    break
            else:
                name = next(f"{path}#{n}" for n in count(2) if f"{path}#{n}" not in used)
            names[path] = name
            used[name] = path
    return {path: names[path] for path in paths}
