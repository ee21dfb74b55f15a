"""One program or shared library on disk: what it is, what it needs, and where its functions are.

Use:

    binary = Binary.load("/usr/bin/python3")
    binary.functions.names, binary.functions.start      # file offsets
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import numpy as np
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment, NoteSegment
from numpy.typing import NDArray

from causal.errors import CausalError
from causal.symbols.functions import (
    SYMBOL32_DTYPE,
    SYMBOL_DTYPE,
    FunctionTable,
    Segment,
    SymbolTable,
    function_table,
)

_ELFCLASS32, _ELFDATA2LSB = 1, 1
_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine
# What the kernel of a 64-bit machine runs as well: samples are as good, but nothing there can be paused.
_MACHINES_32 = {3: "x86_64"}
_OTHER_MACHINES = {3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390", 40: "arm", 243: "riscv"}
_DF_1_PIE = 0x08000000
_SHF_EXECINSTR = 4
_PF_X = 1
# The runtime of each sanitizer defines or imports its own entry.
_SANITIZERS = {
    b"\0__asan_init\0": "address",
    b"\0__hwasan_init\0": "hardware address",
    b"\0__tsan_init\0": "thread",
    b"\0__msan_init\0": "memory",
}


@dataclass(frozen=True, slots=True)
class _Section:
    """Where a section lies in the file, checked to be inside it."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _SymbolSections:
    symbols: _Section
    strings: _Section
    entry_size: int


@dataclass(frozen=True, eq=False)
class Binary:
    """What the headers of an ELF file say. Addresses are those of the file, before any load bias.

    `kind` is "executable" (fixed address), "pie" or "library". `build_id` is hex or None. `interpreter` is the dynamic
    loader's path or None. `needed` are the DT_NEEDED names; `runpath` and `rpath` the unexpanded search
    lists. `has_symtab` is false in a stripped file, which still has the functions it exports or imports by name.
    `sanitizer` names the sanitizer the code was built with, or None. `is_privileged`: set-user-id, set-group-id or file
    capabilities, so the loader ignores LD_PRELOAD for an ordinary user.
    """

    path: str
    machine: str
    bits: int
    kind: str
    build_id: str | None
    interpreter: str | None
    needed: tuple[str, ...]
    soname: str | None
    rpath: str | None
    runpath: str | None
    has_symtab: bool
    has_debug_info: bool
    sanitizer: str | None
    is_privileged: bool
    segments: tuple[Segment, ...]
    _symbol_sections: tuple[_SymbolSections, ...]
    _code_sections: NDArray[np.uint64]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Binary:
        """Read the headers of `path`; the symbol tables follow when `functions` is first used.

        Raises CausalError: missing, unreadable, not an ELF file, damaged or for another architecture.
        """
        name = os.fspath(path)
        with _open(name) as file:
            size = os.fstat(file.fileno()).st_size
            machine = _check_identity(name, file)
            try:
                return _read_headers(name, file, size, machine)
            except CausalError:
                raise
            except Exception as error:
                # pyelftools lets almost anything escape from a file whose fields point outside of it.
                raise _damaged(name, str(error) or type(error).__name__) from error

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)

    @property
    def is_pie(self) -> bool:
        return self.kind == "pie"

    @property
    def is_library(self) -> bool:
        return self.kind == "library"

    @property
    def is_static(self) -> bool:
        """No dynamic loader takes part when it runs, so nothing can be preloaded. Says nothing about libraries."""
        return self.interpreter is None and not self.needed

    @property
    def is_stripped(self) -> bool:
        """Whether the names of its functions are lost: not in the file, nor anywhere else."""
        return not self.has_symtab and not self._separate_symbols

    @cached_property
    def _separate_symbols(self) -> list[SymbolTable]:
        from causal.symbols.separate import separate_symbols  # which reads files of this kind

        return [] if self.has_symtab else separate_symbols(self)

    @cached_property
    def functions(self) -> FunctionTable:
        """All functions, from .symtab (also that of a stripped program, where it was put elsewhere) and .dynsym.

        Raises CausalError when the file went away or is damaged.
        """
        with _open(self.path) as file:
            tables = [_read_symbols(self.path, file, where) for where in self._symbol_sections]
        tables += self._separate_symbols
        return function_table(tables, self.segments, self._code_sections)

    def file_offset(self, vaddr: int) -> int | None:
        """File offset of an address, None when no file bytes are loaded there."""
        for segment in self.segments:
            if 0 <= vaddr - segment.vaddr < segment.filesz:
                return vaddr - segment.vaddr + segment.offset
        return None

    def vaddr(self, file_offset: int) -> int | None:
        """Address at which a byte of the file is loaded; as code, where two segments show the same byte."""
        for segment in sorted(self.segments, key=lambda s: not s.executable):
            if 0 <= file_offset - segment.offset < segment.filesz:
                return file_offset - segment.offset + segment.vaddr
        return None

    def read(self, file_offset: int, size: int) -> bytes:
        """Up to `size` bytes of the file, fewer at its end."""
        with _open(self.path) as file:
            file.seek(file_offset)
            return file.read(size)


def _open(path: str) -> IO[bytes]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise CausalError(f"{path} is not a regular file", "give the path of a program or of a shared library")
        return open(path, "rb")
    except FileNotFoundError as error:
        raise CausalError(f"{path} does not exist", "check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CausalError(f"cannot read {path}: {reason}", "check its permissions, or run as root") from error


def _damaged(path: str, detail: str) -> CausalError:
    return CausalError(f"{path} is damaged or cut off: {detail}", "build or install the file again")


def _check_identity(path: str, file: IO[bytes]) -> str:
    """Look at the first bytes alone, so that a foreign file gets a reason instead of a parser's complaint."""
    header = file.read(20)
    if header[:4] != b"\x7fELF":
        raise CausalError(f"{path} is not an ELF program", "give a compiled program or a shared library")
    if len(header) < 20:
        raise _damaged(path, "the header is incomplete")
    machines = _MACHINES_32 if header[4] == _ELFCLASS32 else _MACHINES
    byte_order = "<" if header[5] == _ELFDATA2LSB else ">"
    (number,) = struct.unpack_from(byte_order + "H", header, 18)
    machine = machines.get(number) if byte_order == "<" else None
    if machine is None or machine != platform.machine():
        found = machine or _MACHINES.get(number) or _OTHER_MACHINES.get(number, f"architecture {number}")
        raise CausalError(
            f"{path} is built for {found}, this machine is {platform.machine()}", "build it for this machine"
        )
    return machine


def _read_headers(path: str, file: IO[bytes], size: int, machine: str) -> Binary:
    file.seek(0)
    elf = ELFFile(file)
    if elf.header["e_type"] not in ("ET_EXEC", "ET_DYN"):
        raise CausalError(f"{path} is not linked yet (or a core dump)", "give a program or a shared library")
    segments = tuple(_load_segments(path, elf, size))
    interpreter = _interpreter(elf)
    dynamic = _dynamic(elf)
    sections = list(elf.iter_sections())
    symbol_sections = tuple(_symbol_sections(path, sections, size))
    return Binary(
        path=path,
        machine=machine,
        bits=elf.elfclass,
        kind=_kind(elf, interpreter, dynamic),
        build_id=_build_id(elf),
        interpreter=interpreter,
        needed=tuple(dynamic.get("DT_NEEDED", ())),
        soname=_first(dynamic, "DT_SONAME"),
        rpath=_first(dynamic, "DT_RPATH"),
        runpath=_first(dynamic, "DT_RUNPATH"),
        has_symtab=any(s["sh_type"] == "SHT_SYMTAB" and s["sh_size"] for s in sections),
        has_debug_info=any(s.name in (".debug_info", ".zdebug_info") for s in sections),
        sanitizer=_sanitizer(path, file, symbol_sections),
        is_privileged=_is_privileged(path, os.fstat(file.fileno())),
        segments=segments,
        _symbol_sections=symbol_sections,
        _code_sections=_code_sections(sections),
    )


def _load_segments(path: str, elf: ELFFile, size: int) -> Iterator[Segment]:
    for segment in elf.iter_segments(type="PT_LOAD"):
        offset, filesz, vaddr = segment["p_offset"], segment["p_filesz"], segment["p_vaddr"]
        if offset + filesz > size or vaddr + filesz >= 2**64:
            raise _damaged(path, "a segment lies beyond the end of the file")
        yield Segment(vaddr, offset, filesz, bool(segment["p_flags"] & _PF_X))


def _dynamic(elf: ELFFile) -> dict[str, list[Any]]:
    """The values of the dynamic section's tags by name: text where they are names, else integers."""
    attributes = {"DT_NEEDED": "needed", "DT_SONAME": "soname", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
    values: dict[str, list[Any]] = {}
    for segment in (s for s in elf.iter_segments() if isinstance(s, DynamicSegment)):
        for tag in segment.iter_tags():
            kind = tag.entry.d_tag
            value = getattr(tag, attributes[kind]) if kind in attributes else tag.entry.d_val
            values.setdefault(str(kind), []).append(value)
    return values


def _first(dynamic: dict[str, list[Any]], tag: str) -> str | None:
    values = dynamic.get(tag)
    return str(values[0]) if values else None


def _interpreter(elf: ELFFile) -> str | None:
    segment = next((s for s in elf.iter_segments() if isinstance(s, InterpSegment)), None)
    section = elf.get_section_by_name(".interp")
    if segment is not None and section is not None and section["sh_type"] == "SHT_NOBITS":
        return ""  # a file of debug information: it has the headers of the program, but something else is in that place
    return segment.get_interp_name() if segment else None


def _kind(elf: ELFFile, interpreter: str | None, dynamic: dict[str, list[Any]]) -> str:
    if elf.header["e_type"] == "ET_EXEC":
        return "executable"
    flags = dynamic.get("DT_FLAGS_1", [0])[0]
    # Older linkers do not set the flag, and libc.so.6 has an interpreter too: it can be run, but also has a soname.
    if flags & _DF_1_PIE or (interpreter is not None and "DT_SONAME" not in dynamic):
        return "pie"
    return "library"


def _build_id(elf: ELFFile) -> str | None:
    for segment in (s for s in elf.iter_segments() if isinstance(s, NoteSegment)):
        for note in segment.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return str(note["n_desc"])
    return None


def _inside(path: str, section: Any, size: int) -> _Section:
    if section["sh_offset"] + section["sh_size"] > size:
        raise _damaged(path, f"section {section.name} lies beyond the end of the file")
    return _Section(section["sh_offset"], section["sh_size"])


def _symbol_sections(path: str, sections: list[Any], size: int) -> Iterator[_SymbolSections]:
    for section in sections:
        if section["sh_type"] not in ("SHT_SYMTAB", "SHT_DYNSYM"):
            continue
        known_sizes = (SYMBOL_DTYPE.itemsize, SYMBOL32_DTYPE.itemsize)
        if section["sh_entsize"] not in known_sizes or not 0 < section["sh_link"] < len(sections):
            raise _damaged(path, f"section {section.name} is not a symbol table")
        strings = _inside(path, sections[section["sh_link"]], size)
        yield _SymbolSections(_inside(path, section, size), strings, section["sh_entsize"])


def _code_sections(sections: list[Any]) -> NDArray[np.uint64]:
    code = [(s["sh_addr"], s["sh_size"]) for s in sections if s["sh_flags"] & _SHF_EXECINSTR and s["sh_addr"]]
    bounds = [(start, min(start + size, 2**64 - 1)) for start, size in code]
    return np.array(bounds, np.uint64).reshape(-1, 2)


def _read_section(path: str, file: IO[bytes], where: _Section) -> bytes:
    file.seek(where.offset)
    data = file.read(where.size)
    if len(data) != where.size:
        raise _damaged(path, "it became shorter while it was read")
    return data


def _read_symbols(path: str, file: IO[bytes], where: _SymbolSections) -> SymbolTable:
    raw = _read_section(path, file, where.symbols)
    stored = SYMBOL_DTYPE if where.entry_size == SYMBOL_DTYPE.itemsize else SYMBOL32_DTYPE
    symbols = np.frombuffer(raw, stored, count=len(raw) // stored.itemsize)
    if stored is SYMBOL32_DTYPE:
        wide = np.empty(len(symbols), SYMBOL_DTYPE)
        for name in SYMBOL32_DTYPE.names or ():
            wide[name] = symbols[name]
        symbols = wide
    return SymbolTable(symbols, _read_section(path, file, where.strings))


def _sanitizer(path: str, file: IO[bytes], tables: tuple[_SymbolSections, ...]) -> str | None:
    for table in tables:
        strings = _read_section(path, file, table.strings)
        for entry, name in _SANITIZERS.items():
            if entry in strings:
                return name
    return None


def _is_privileged(path: str, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_ISUID:
        return True
    # Set-group-id without group execution means mandatory locking, not privilege.
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP:
        return True
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
