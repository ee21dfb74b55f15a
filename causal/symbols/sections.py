"""The debug sections of an ELF file, decompressed: plain, SHF_COMPRESSED (zlib, zstd) or the older .zdebug."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any

from elftools.elf.elffile import ELFFile

from causal.errors import CausalError

_SHF_COMPRESSED = 0x800
_ZLIB, _ZSTD = 1, 2  # ch_type
# Beyond what either can reach with real data: a small file must not fill the memory.
_MAX_RATIO = 1100
_MAX_SIZE = 1 << 33


@dataclass(frozen=True, slots=True)
class Stored:
    """A section as it lies in the file; `size` is that of its contents. `compression`: "", "zlib" or "zstd"."""

    offset: int
    stored_size: int
    size: int
    compression: str
    header_size: int


class SectionFile:
    """Named sections of an open ELF file. Raises CausalError when the section headers make no sense."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        try:
            self._sections = dict(_stored_sections(file))
        except CausalError:
            raise
        except Exception as error:  # pyelftools lets almost anything escape from damaged files
            raise _damaged(path, str(error) or type(error).__name__) from error

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    @property
    def names(self) -> list[str]:
        return list(self._sections)

    def size(self, name: str) -> int:
        """Size of the contents, decompressed."""
        return self._sections[name].size

    def read(self, name: str) -> bytes:
        """The contents, b"" where there is no such section. Raises CausalError when it is cut off or damaged."""
        where = self._sections.get(name)
        if where is None:
            return b""
        self._file.seek(where.offset)
        data = self._file.read(where.stored_size)
        if len(data) != where.stored_size:
            raise _damaged(self.path, f"section {name} lies beyond the end of the file")
        if not where.compression:
            return data
        if where.size > min(_MAX_SIZE, _MAX_RATIO * len(data) + 4096):
            raise _damaged(self.path, f"section {name} claims to be of {where.size} bytes")
        try:
            content = _DECOMPRESS[where.compression](data[where.header_size :], where.size)
        except ValueError as error:
            raise _damaged(self.path, f"section {name}: {error}") from error
        if len(content) != where.size:
            raise _damaged(self.path, f"section {name} is incomplete")
        return content

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those of these sections that there are."""
        return {name: self.read(name) for name in names if name in self}


def _stored_sections(file: IO[bytes]) -> Iterable[tuple[str, Stored]]:
    file.seek(0, 2)
    end = file.tell()
    file.seek(0)
    elf = ELFFile(file)
    names: Any = elf.get_section(elf.get_shstrndx())
    for number in range(min(elf.num_sections(), 1 << 17)):
        # Only the headers: pyelftools' sections of known types read more, and fail more.
        header = elf._get_section_header(number)
        name = names.get_string(header["sh_name"])
        if header["sh_type"] == "SHT_NOBITS":  # the file of the other half has it
            continue
        if name.startswith(".zdebug_"):
            yield ".debug_" + name.removeprefix(".zdebug_"), _old_compressed(file, header, end)
        elif name.startswith((".debug_", ".gnu_debug")):
            yield name, _stored(file, header, end)


def _stored(file: IO[bytes], header: Any, end: int) -> Stored:
    offset, size = header["sh_offset"], min(header["sh_size"], end)
    if not header["sh_flags"] & _SHF_COMPRESSED:
        return Stored(offset, size, size, "", 0)
    file.seek(offset)
    kind, _, content_size, _ = struct.unpack("<IIQQ", file.read(24))
    compression = {_ZLIB: "zlib", _ZSTD: "zstd"}.get(kind)
    if compression is None:
        raise CausalError("a section is compressed in an unknown way", "build with -gz=none")
    return Stored(offset, size, content_size, compression, 24)


def _old_compressed(file: IO[bytes], header: Any, end: int) -> Stored:
    offset, size = header["sh_offset"], min(header["sh_size"], end)
    file.seek(offset)
    magic, content_size = struct.unpack(">4sQ", file.read(12))
    if magic != b"ZLIB":
        return Stored(offset, size, size, "", 0)
    return Stored(offset, size, content_size, "zlib", 12)


def _zlib(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _zstd(data: bytes, size: int) -> bytes:
    """Through the system's libzstd, which package managers need anyway; Python has its own only from 3.14 on."""
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ValueError("it is compressed with zstd, and there is no libzstd (install libzstd1)") from error
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    library.ZSTD_isError.argtypes = [ctypes.c_size_t]
    content = ctypes.create_string_buffer(max(size, 1))
    done = library.ZSTD_decompress(content, size, data, len(data))
    if library.ZSTD_isError(done):
        raise ValueError("its zstd data is damaged")
    return content.raw[:done]


_DECOMPRESS: dict[str, Callable[[bytes, int], bytes]] = {"zlib": _zlib, "zstd": _zstd}


def _damaged(path: str, detail: str) -> CausalError:
    return CausalError(f"the debug information of {path} is damaged: {detail}", "build it again with -g")
