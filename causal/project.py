"""Which lines count when lines or files are sped up: the program's own project, as its debug information tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causal.errors import CausalError
from causal.regions import Region, RegionTable, Scope
from causal.sources import SourceScope, project_directory
from causal.symbols.elf import Binary
from causal.symbols.lines import SourceLines, what_is_missing


class ProjectScope(Scope):
    """The binaries and source files whose lines count.

    `binaries` as `-b` and `sources` as `-s` give them. Without patterns for binaries these are the programs
    themselves and the libraries that have sources in their project. `notes`: binaries that count but lack debug
    information -> why.
    """

    def __init__(self, mains: Sequence[Binary], binaries: Sequence[str] = (), sources: Sequence[str] = ()) -> None:
        super().__init__(mains[0].path, binaries or [main.path for main in mains])
        self.notes: dict[str, str] = {}
        self._sources = SourceScope(sources)
        self._lines: dict[str, SourceLines | None] = {}
        self._guesses: dict[str, bool] = {}
        own = [] if binaries else [path for main in mains for path in self._own_files(main)]
        self._project = project_directory(own)

    def includes(self, path: str) -> bool:
        if super().includes(path):
            return True
        if self._project is None:
            return False
        if path not in self._guesses:
            self._guesses[path] = self._is_of_project(path)
        return self._guesses[path]

    def add_code(self, table: RegionTable, binaries: Iterable[Binary]) -> None:
        for binary in binaries:
            try:
                lines = self._lines_of(binary)
                missing = what_is_missing(binary, lines)
            except CausalError as error:  # one damaged library must not end the run
                self._lines[binary.path] = lines = None
                missing = f"no usable line information ({error.message}): {error.hint}"
            if missing:
                self.notes[binary.path] = missing
            table.add_lines(binary, lines, self._sources.includes)
            if lines is not None:
                lines.release()

    def add_every_file(self, table: RegionTable, binary: Binary) -> bool:
        """Make all source files of a binary regions, in scope or not; False when it has no lines."""
        lines = self._lines.get(binary.path)
        if lines is not None:
            table.add_lines(binary, lines, lambda path: True)
        return lines is not None

    def counts(self, region: Region) -> bool:
        """Whether a line or file is in scope."""
        return bool(region.source) and self._sources.includes(region.source)

    def _lines_of(self, binary: Binary) -> SourceLines | None:
        if binary.path not in self._lines:
            self._lines[binary.path] = SourceLines.load(binary)
        return self._lines[binary.path]

    def _own_files(self, binary: Binary) -> list[str]:
        try:
            lines = self._lines_of(binary)
        except CausalError:
            return []
        return [path for path in lines.files if self._sources.includes(path)] if lines else []

    def _is_of_project(self, path: str) -> bool:
        # Only what was built here: debug packages of the distribution's libraries name other people's directories.
        try:
            binary = Binary.load(path)
        except CausalError:
            return False
        below = f"{self._project}/"
        return binary.has_debug_info and any(file.startswith(below) for file in self._own_files(binary))
