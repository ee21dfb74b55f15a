"""Debug information written in memory: line programs of versions 2 to 5 and units with inlined calls.

    sections = debug_sections([Row(0x10, "main.c", 3), End(0x20)], [Function("main", 0x10, 0x20)])

Addresses are relative to CODE_VADDR of elf_fixture. Directory 0 is COMP_DIR; a file with a slash keeps its directory.
"""

import struct
from dataclasses import dataclass, field

from tests.unit.elf_fixture import CODE_VADDR

COMP_DIR = "/project"


@dataclass(frozen=True)
class Row:
    at: int
    file: str
    line: int


@dataclass(frozen=True)
class End:
    """The end of a sequence: the code up to here belongs to the last row."""

    at: int


@dataclass(frozen=True)
class Function:
    """A function, or with `call` = (file, line) a call of it that was inlined into what contains it."""

    name: str
    start: int
    end: int
    inside: tuple = ()
    call: tuple | None = None
    ranges: tuple = ()  # instead of start and end


def uleb(value):
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def sleb(value):
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        done = value == -(byte >> 6 & 1)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


def with_length(body):
    return struct.pack("<I", len(body)) + body


@dataclass
class LineProgram:
    """One line program. Its opcodes alternate between the ways there are to say the same."""

    version: int
    files: list = field(default_factory=list)
    code: bytearray = field(default_factory=bytearray)

    LINE_BASE, LINE_RANGE, OPCODE_BASE = -3, 12, 13

    def number(self, file):
        if file not in self.files:
            self.files.append(file)
        return self.files.index(file) + (self.version < 5)

    def run(self, steps):
        address, line, file, opened = 0, 1, 1, False
        for count, step in enumerate(steps):
            to = CODE_VADDR + step.at if step.at >= 0 else -step.at
            if not opened:
                self.code += b"\0\x09\x02" + struct.pack("<Q", to)
                address, line, file, opened = to, 1, 1, True
            if isinstance(step, End):
                self.code += b"\x02" + uleb(to - address) + b"\0\x01\x01"
                opened = False
                continue
            number = self.number(step.file)
            if number != file:
                self.code += b"\x04" + uleb(number)
                file = number
            self._move(to - address, step.line - line, count)
            address, line = to, step.line

    def _move(self, address, line, count):
        skip = (255 - self.OPCODE_BASE) // self.LINE_RANGE  # what DW_LNS_const_add_pc adds
        self.code += b"\x05" + uleb(count)  # a column
        if skip <= address < 2 * skip and count % 2:
            self.code += b"\x08"
            address -= skip
        special = line - self.LINE_BASE + self.LINE_RANGE * address + self.OPCODE_BASE
        if 0 <= line - self.LINE_BASE < self.LINE_RANGE and special <= 255:
            self.code.append(special)
            return
        self.code += b"\x09" + struct.pack("<H", address) if count % 3 else b"\x02" + uleb(address)
        self.code += b"\x03" + sleb(line) + b"\0\x02\x04\x07" + b"\x06\x07\x0a\x01"  # also a discriminator and flags

    def build(self):
        lengths = bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1])
        middle = bytes([1]) + (bytes([1]) if self.version >= 4 else b"")
        middle += struct.pack("<BbBB", 1, self.LINE_BASE, self.LINE_RANGE, self.OPCODE_BASE) + lengths
        middle += self._tables_5() if self.version == 5 else self._tables()
        head = struct.pack("<H", self.version) + (bytes([8, 0]) if self.version == 5 else b"")
        return with_length(head + struct.pack("<I", len(middle)) + middle + bytes(self.code))

    def _split(self):
        directories, files = [], []
        for file in self.files:
            directory, _, name = file.rpartition("/")
            if directory and directory not in directories:
                directories.append(directory)
            files.append((name, directories.index(directory) + 1 if directory else 0))
        return directories, files

    def _tables(self):
        directories, files = self._split()
        out = b"".join(name.encode() + b"\0" for name in directories) + b"\0"
        return out + b"".join(n.encode() + b"\0" + uleb(d) + b"\0\0" for n, d in files) + b"\0"

    def _tables_5(self):
        directories, files = self._split()
        out = bytes([1, 1, 0x08]) + uleb(1 + len(directories))
        out += b"".join(name.encode() + b"\0" for name in [COMP_DIR, *directories])
        out += bytes([2, 1, 0x08, 2, 0x0B]) + uleb(len(files))  # a string, and one byte of directory
        return out + b"".join(n.encode() + b"\0" + bytes([d]) for n, d in files)


# Abbreviations: unit, function, abstract function, inlined call; the last two also with ranges.
_UNIT, _FUNCTION, _ABSTRACT, _INLINED, _RANGED_FUNCTION, _RANGED_INLINED = range(1, 7)
_AT = {"name": 3, "stmt_list": 0x10, "low": 0x11, "high": 0x12, "dir": 0x1B, "origin": 0x31, "ranges": 0x55,
       "call_file": 0x58, "call_line": 0x59, "dwo_name": 0x76, "gnu_dwo_name": 0x2130,
       "gnu_dwo_id": 0x2131}  # fmt: skip


def _split_id(version, split):
    return [("gnu_dwo_id", 7)] if split and version < 5 else []


def _abbrevs(version, split=False):
    offset = 0x17 if version >= 4 else 0x06
    ranges = 0x23 if split and version >= 5 else offset  # an index
    high = 0x07 if version >= 4 else 0x01  # an offset, or an address
    call = [("call_file", 0x0F), ("call_line", 0x0F)]
    table = [
        (_UNIT, 0x11, 1, [("name", 8), ("dir", 8), ("stmt_list", offset), ("low", 1), *_split_id(version, split)]),
        (_FUNCTION, 0x2E, 1, [("name", 8), ("low", 1), ("high", high)]),
        (_ABSTRACT, 0x2E, 0, [("name", 8)]),
        (_INLINED, 0x1D, 1, [("origin", 0x13), ("low", 1), ("high", high), *call]),
        (_RANGED_FUNCTION, 0x2E, 1, [("name", 8), ("ranges", ranges)]),
        (_RANGED_INLINED, 0x1D, 1, [("origin", 0x13), ("ranges", ranges), *call]),
    ]
    out = b""
    for code, tag, children, attributes in table:
        out += uleb(code) + uleb(tag) + bytes([children])
        out += b"".join(uleb(_AT[name]) + uleb(form) for name, form in attributes) + b"\0\0"
    return out + b"\0"


def _unit_header(version, split_id, kind):
    if version < 5:
        return struct.pack("<HIB", version, 0, 8)
    if split_id is None:
        return struct.pack("<HBBI", version, 1, 8, 0)
    return struct.pack("<HBBIQ", version, kind, 8, 0, split_id)


class _Info:
    def __init__(self, version, program, split_id=None):
        self.version, self.program = version, program
        self.header = _unit_header(version, split_id, 5)
        self.out = bytearray(uleb(_UNIT) + b"main.c\0" + COMP_DIR.encode() + b"\0")
        self.out += struct.pack("<IQ", 0, CODE_VADDR)
        if split_id is not None and version < 5:
            self.out += struct.pack("<Q", split_id)
        self.origins = {}
        self.ranges = bytearray(b"\0" * 16)
        self.list_offsets = [] if split_id is not None and version >= 5 else None

    def abstract(self, function):
        if function.call and function.name not in self.origins:
            self.origins[function.name] = 4 + len(self.header) + len(self.out)
            self.out += uleb(_ABSTRACT) + function.name.encode() + b"\0"
        for inner in function.inside:
            self.abstract(inner)

    def add(self, function):
        codes = (_RANGED_FUNCTION, _RANGED_INLINED) if function.ranges else (_FUNCTION, _INLINED)
        self.out += uleb(codes[function.call is not None])
        if function.call:
            self.out += struct.pack("<I", self.origins[function.name])
        else:
            self.out += function.name.encode() + b"\0"
        self._place(function)
        if function.call:
            file, line = function.call
            self.out += uleb(self.program.number(file)) + uleb(line)
        for inner in function.inside:
            self.add(inner)
        self.out += b"\0"

    def _place(self, function):
        if not function.ranges:
            start, size = CODE_VADDR + function.start, function.end - function.start
            self.out += struct.pack("<QQ", start, size if self.version >= 4 else start + size)
            return
        if self.list_offsets is None:
            self.out += struct.pack("<I", len(self.ranges))
        else:
            self.out += uleb(len(self.list_offsets))
            self.list_offsets.append(len(self.ranges))
        for start, end in function.ranges:  # relative to the unit's address
            if self.version >= 5:
                self.ranges += b"\x04" + uleb(start) + uleb(end)
            else:
                self.ranges += struct.pack("<QQ", start, end)
        self.ranges += b"\0" if self.version >= 5 else bytes(16)

    def range_lists(self):
        if not self.list_offsets:
            return bytes(self.ranges)
        table = b"".join(struct.pack("<I", 4 * len(self.list_offsets) + at) for at in self.list_offsets)
        return with_length(struct.pack("<HBBI", 5, 8, 0, len(self.list_offsets)) + table + bytes(self.ranges))

    def build(self):
        return with_length(self.header + bytes(self.out) + b"\0")


def debug_sections(steps, functions=(), version=5):
    """Name -> contents of the debug sections of one unit."""
    program, info = _described(steps, functions, version, None)
    return {
        ".debug_line": program.build(),
        ".debug_info": info.build(),
        ".debug_abbrev": _abbrevs(version),
        ".debug_rnglists" if version >= 5 else ".debug_ranges": info.range_lists(),
    }


def split_sections(steps, functions=(), version=5, split_id=0x1122334455667788, name="main.dwo"):
    """The same with a skeleton: the sections of the program, and those of its .dwo file."""
    program, info = _described(steps, functions, version, split_id)
    form = 0x17 if version >= 4 else 0x06
    root = [("dwo_name" if version >= 5 else "gnu_dwo_name", 8), ("dir", 8), ("stmt_list", form), ("low", 1)]
    root += _split_id(version, True)
    abbrev = uleb(1) + uleb(0x4A if version >= 5 else 0x11) + b"\0"
    abbrev += b"".join(uleb(_AT[attribute]) + uleb(form) for attribute, form in root) + b"\0\0\0"
    skeleton = _unit_header(version, split_id, 4) + uleb(1) + name.encode() + b"\0" + COMP_DIR.encode() + b"\0"
    skeleton += struct.pack("<IQ", 0, CODE_VADDR) + (b"" if version >= 5 else struct.pack("<Q", split_id))
    main = {".debug_line": program.build(), ".debug_info": with_length(skeleton), ".debug_abbrev": abbrev}
    split = {".debug_info.dwo": info.build(), ".debug_abbrev.dwo": _abbrevs(version, True)}
    (split if version >= 5 else main)[".debug_rnglists.dwo" if version >= 5 else ".debug_ranges"] = info.range_lists()
    return main, split


def _described(steps, functions, version, split_id):
    program = LineProgram(version)
    program.number("main.c")
    program.run(steps)
    info = _Info(version, program, split_id)
    for function in functions:
        info.abstract(function)
    for function in functions:
        info.add(function)
    return program, info
