"""ELF files written in memory: small enough to know every byte, so no binaries live in the repository.

    path.write_bytes(ElfFile(symbols=[Symbol("work", 0, 16)]).build())

Code lies at file offset CODE_OFFSET and address CODE_VADDR, which differ by no round number on purpose.
"""

import platform
import struct
from dataclasses import dataclass, field

CODE_OFFSET = 0x1000
CODE_VADDR = 0x403000
CODE_SIZE = 0x1000
MACHINE_NUMBERS = {"x86_64": 62, "aarch64": 183}

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_FILE, STT_GNU_IFUNC = 0, 1, 2, 4, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
SHN_UNDEF, SHN_ABS, TEXT_SECTION = 0, 0xFFF1, 1

ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 1, 2, 3, 6, 7, 11
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_FLAGS_1 = 1, 5, 14, 15, 29, 0x6FFFFFFB
_DATA_VADDR = 0x700000


@dataclass
class Symbol:
    """`at` is relative to the start of the code; a STT_FILE symbol names the unit of the local ones after it."""

    name: str
    at: int = 0
    size: int = 0
    kind: int = STT_FUNC
    bind: int = STB_GLOBAL
    section: int = TEXT_SECTION


def unit(name):
    return Symbol(name, kind=STT_FILE, bind=STB_LOCAL, section=SHN_ABS)


@dataclass
class ElfFile:
    symbols: list = field(default_factory=list)
    dynamic_symbols: list = field(default_factory=list)
    needed: tuple = ()
    soname: str | None = None
    rpath: str | None = None
    runpath: str | None = None
    flags_1: int = 0
    interpreter: str | None = None
    build_id: bytes = b""
    kind: int = ET_EXEC
    machine: int = MACHINE_NUMBERS.get(platform.machine(), 62)
    has_debug_info: bool = False
    debug: dict = field(default_factory=dict)  # section name -> contents, or (contents, section flags)
    code: bytes = b""

    def build(self):
        self._data = bytearray(64 + 56 * 8)
        self._sections = [("", 0, 0, 0, 0, 0, 0, 0)]
        self._segments = []
        self._data.extend(bytes(CODE_OFFSET - len(self._data)))
        self._add_section(".text", _SHT_PROGBITS, self.code.ljust(CODE_SIZE, b"\x55"), address=CODE_VADDR, flags=6)
        self._segments.append((_PT_LOAD, 5, CODE_OFFSET, CODE_VADDR, CODE_SIZE))
        data_offset = len(self._data)
        self._add_loaded_parts(data_offset)
        self._segments.append((_PT_LOAD, 4, data_offset, _DATA_VADDR, len(self._data) - data_offset))
        if self.symbols:
            self._add_symbols(".symtab", _SHT_SYMTAB, ".strtab", self.symbols)
        if self.has_debug_info:
            self._add_section(".debug_info", _SHT_PROGBITS, bytes(16))
        for name, content in self.debug.items():
            content, flags = content if isinstance(content, tuple) else (content, 0)
            self._add_section(name, _SHT_PROGBITS, content, flags=flags)
        return self._finish()

    def _add_loaded_parts(self, base):
        if self.interpreter:
            offset, size = self._append(self.interpreter.encode() + b"\0")
            self._segments.append((_PT_INTERP, 4, offset, 0, size))
        if self.build_id:
            note = struct.pack("<III", 4, len(self.build_id), 3) + b"GNU\0" + self.build_id
            offset, size = self._add_section(".note.gnu.build-id", _SHT_NOTE, note)
            self._segments.append((_PT_NOTE, 4, offset, 0, size))
        texts = [(_DT_NEEDED, name) for name in self.needed]
        texts += [(_DT_SONAME, self.soname), (_DT_RPATH, self.rpath), (_DT_RUNPATH, self.runpath)]
        texts = [(tag, text) for tag, text in texts if text is not None]
        if not texts and not self.flags_1 and not self.dynamic_symbols:
            return
        strings = Strings()
        entries = [(tag, strings.add(text)) for tag, text in texts]
        symbols = b"".join(self._symbol(symbol, strings) for symbol in [NULL_SYMBOL, *self.dynamic_symbols])
        self._append(b"")
        string_address = _DATA_VADDR + len(self._data) - base
        self._add_section(".dynstr", _SHT_STRTAB, strings.data, address=string_address, flags=2)
        self._add_section(".dynsym", _SHT_DYNSYM, symbols, link=len(self._sections) - 1, entry=24, flags=2)
        entries += [(_DT_STRTAB, string_address), (_DT_FLAGS_1, self.flags_1), (0, 0)]
        packed = b"".join(struct.pack("<QQ", *entry) for entry in entries)
        offset, size = self._add_section(".dynamic", _SHT_DYNAMIC, packed, link=len(self._sections) - 2, entry=16)
        self._segments.append((_PT_DYNAMIC, 4, offset, 0, size))

    def _add_symbols(self, name, kind, strings_name, symbols):
        strings = Strings()
        packed = b"".join(self._symbol(symbol, strings) for symbol in [NULL_SYMBOL, *symbols])
        self._add_section(strings_name, _SHT_STRTAB, strings.data)
        self._add_section(name, kind, packed, link=len(self._sections) - 1, entry=24)

    @staticmethod
    def _symbol(symbol, strings):
        value = CODE_VADDR + symbol.at if symbol.section == TEXT_SECTION else 0
        info = symbol.bind << 4 | symbol.kind
        return struct.pack("<IBBHQQ", strings.add(symbol.name), info, 0, symbol.section, value, symbol.size)

    def _append(self, content):
        self._data.extend(bytes(-len(self._data) % 8))
        offset = len(self._data)
        self._data.extend(content)
        return offset, len(content)

    def _add_section(self, name, kind, content, address=0, flags=0, link=0, entry=0):
        offset, size = self._append(content)
        self._sections.append((name, kind, flags, address, offset, size, link, entry))
        return offset, size

    def _finish(self):
        names = Strings()
        for section in [*self._sections, (".shstrtab",)]:
            names.add(section[0])
        self._add_section(".shstrtab", _SHT_STRTAB, names.data)
        headers = b"".join(
            struct.pack("<IIQQQQIIQQ", names.add(name), kind, flags, address, offset, size, link, 0, 1, entry)
            for name, kind, flags, address, offset, size, link, entry in self._sections
        )
        section_offset, _ = self._append(headers)
        identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
        header = struct.pack(
            "<HHIQQQIHHHHHH", self.kind, self.machine, 1, CODE_VADDR, 64, section_offset, 0,
            64, 56, len(self._segments), 64, len(self._sections), len(self._sections) - 1,
        )  # fmt: skip
        programs = b"".join(
            struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, 8)
            for kind, flags, offset, address, size in self._segments
        )
        self._data[: 64 + len(programs)] = identity + header + programs
        return bytes(self._data)


class Strings:
    """A string section under construction."""

    def __init__(self):
        self.data = b"\0"
        self._known = {"": 0}

    def add(self, text):
        if text not in self._known:
            self._known[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._known[text]


NULL_SYMBOL = Symbol("", kind=STT_NOTYPE, bind=STB_LOCAL, section=SHN_UNDEF)
