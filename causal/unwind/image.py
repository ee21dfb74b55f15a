"""Where the call-frame information of a program, library or vDSO is. Program headers suffice.

Reads headers by itself because it does so for every module of every process when a run starts: pyelftools needs about
10 ms for one.
"""

from __future__ import annotations

import platform
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from causal.symbols.functions import Segment

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_COMPRESSION_HEADER = struct.Struct("<IIQQ")
_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, little endian
_MACHINE = 62  # x86-64
_PT_LOAD, _PT_NOTE, _PT_GNU_EH_FRAME = 1, 4, 0x6474E550
_PF_X = 1
_SHT_NOBITS, _SHF_COMPRESSED, _ELFCOMPRESS_ZLIB = 8, 0x800, 1
_NT_GNU_BUILD_ID = 3
_PAGE = 4096
_TABLE_REACH = 1 << 32  # rows have addresses of 32 bits
# Sizes that a header claims are not believed beyond this.
_MOST_DEBUG_FRAME = 1 << 30


class Bytes(Protocol):
    """What headers and sections are cut from: the bytes of a file, or the file itself."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...


class NoImage(Exception):
    """Not a file that could have a table; the text says why."""


@dataclass(frozen=True, slots=True)
class Frames:
    """A section of call-frame information. `address` is where it is loaded, 0 for .debug_frame, which is not;
    `bounded` says that `data` is exactly the section, otherwise it ends somewhere in there, with a terminator."""

    data: bytes
    address: int
    is_debug: bool
    bounded: bool


@dataclass(frozen=True, slots=True)
class Image:
    """`base`: the address of the module's first page before relocation; tables count from there."""

    build_id: str | None
    base: int
    segments: tuple[Segment, ...]
    sections: tuple[tuple[str, int, int, int, int], ...]  # name, address, offset, size, flags
    eh_frame_header: int  # file offset of .eh_frame_hdr, 0: none

    def table_address(self, file_offset: int) -> int | None:
        """Where the table has the code that a mapping shows from this offset (a multiple of the page) on."""
        for segment in self.segments:
            start = segment.offset & -_PAGE
            if segment.executable and start <= file_offset < segment.offset + segment.filesz:
                address = file_offset - segment.offset + segment.vaddr - self.base
                # Damaged headers may place code anywhere.
                return address if 0 <= address < _TABLE_REACH else None
        return None


def read_image(data: Bytes) -> Image:
    """Reads the headers of a whole file. Raises NoImage."""
    if data[:6] != _IDENTITY or len(data) < _HEADER.size:
        raise NoImage("not a 64-bit ELF file")
    fields = _HEADER.unpack(data[: _HEADER.size])
    machine, program_headers, section_headers = fields[2], fields[5], fields[6]
    if machine != _MACHINE or platform.machine() != "x86_64":
        raise NoImage("built for another architecture")
    segments, build_id, header = [], None, 0
    for kind, flags, offset, vaddr, _, filesz, _, _ in _headers(
        data, _PROGRAM_HEADER, program_headers, fields[9], fields[10]
    ):
        if offset + filesz > len(data):
            continue
        if kind == _PT_LOAD:
            segments.append(Segment(vaddr, offset, filesz, bool(flags & _PF_X)))
        elif kind == _PT_NOTE:
            build_id = build_id or _build_id(data[offset : offset + filesz])
        elif kind == _PT_GNU_EH_FRAME:
            header = offset
    if not segments:
        raise NoImage("nothing of it is loaded")
    sections = tuple(_sections(data, section_headers, fields[11], fields[12], fields[13]))
    return Image(build_id, min(s.vaddr for s in segments) & -_PAGE, tuple(segments), sections, header)


def frames_of(data: Bytes, image: Image) -> list[Frames]:
    """The sections with call-frame information, the more trustworthy one first; none if there is none."""
    found = []
    named = {name: (address, offset, size, flags) for name, address, offset, size, flags in image.sections}
    if ".eh_frame" in named and named[".eh_frame"][2]:
        address, offset, size, _ = named[".eh_frame"]
        found.append(Frames(data[offset : offset + size], address, is_debug=False, bounded=True))
    elif image.eh_frame_header and (frames := _behind_header(data, image)):
        found.append(frames)
    if ".debug_frame" in named:
        _, offset, size, flags = named[".debug_frame"]
        raw = data[offset : offset + size]
        unpacked = _inflate(raw) if flags & _SHF_COMPRESSED else raw
        if unpacked:
            found.append(Frames(unpacked, 0, is_debug=True, bounded=True))
    return found


def _headers(
    data: Bytes, layout: struct.Struct, offset: int, size: int, count: int
) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
    if size < layout.size:
        return
    for i in range(count):
        at = offset + i * size
        if at + layout.size > len(data):
            return
        yield layout.unpack(data[at : at + layout.size])[:8]


def _build_id(notes: bytes) -> str | None:
    at = 0
    while at + 16 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name_size + 3 & -4)
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0" and 0 < size <= 64:
            return notes[start : start + size].hex()
        at = start + (size + 3 & -4)
    return None


def _sections(data: Bytes, offset: int, size: int, count: int, names: int) -> Iterator[tuple[str, int, int, int, int]]:
    headers = list(_headers(data, _SECTION_HEADER, offset, size, count)) if offset else []
    if names >= len(headers):
        return
    strings = data[headers[names][4] : headers[names][4] + headers[names][5]]
    for name, kind, flags, address, start, length, _, _ in headers:
        if kind != _SHT_NOBITS and start + length <= len(data):
            label = strings[name : strings.find(b"\0", name)] if name < len(strings) else b""
            if label in (b".eh_frame", b".debug_frame"):
                yield label.decode(), address, start, length, flags


def _behind_header(data: Bytes, image: Image) -> Frames | None:
    # Version, three encodings, then where .eh_frame is; its size is not told, so at most to the end of its segment.
    # (Linux Standard Base, Core, 10.6.2.)
    at = image.eh_frame_header
    header_bytes = data[at : at + 8]
    if header_bytes[:2] != b"\x01\x1b" or len(header_bytes) < 8:  # linkers write nothing but pcrel | sdata4
        return None
    (distance,) = struct.unpack_from("<i", header_bytes, 4)
    header = next((at - s.offset + s.vaddr for s in image.segments if s.offset <= at < s.offset + s.filesz), None)
    if header is None:
        return None
    address = header + 4 + distance
    for segment in image.segments:
        if 0 <= address - segment.vaddr < segment.filesz:
            start = address - segment.vaddr + segment.offset
            return Frames(data[start : segment.offset + segment.filesz], address, is_debug=False, bounded=False)
    return None


def _inflate(raw: bytes) -> bytes:
    if len(raw) < _COMPRESSION_HEADER.size:
        return b""
    kind, _, size, _ = _COMPRESSION_HEADER.unpack_from(raw)
    if kind != _ELFCOMPRESS_ZLIB or not 0 < size <= _MOST_DEBUG_FRAME:
        return b""
    try:
        return zlib.decompressobj().decompress(raw[_COMPRESSION_HEADER.size :], size)
    except zlib.error:
        return b""
