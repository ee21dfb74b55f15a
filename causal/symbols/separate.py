"""Names of functions that a stripped program left elsewhere: in `.gnu_debugdata` (Fedora), or in its debug file."""

from __future__ import annotations

import io
import lzma
from typing import IO, Any

import numpy as np
from elftools.elf.elffile import ELFFile

from causal.errors import CausalError
from causal.symbols.debugfile import find_debug_path
from causal.symbols.elf import Binary
from causal.symbols.functions import SYMBOL_DTYPE, SymbolTable
from causal.symbols.sections import SectionFile

_MAX_SIZE = 1 << 28


def separate_symbols(binary: Binary) -> list[SymbolTable]:
    """The symbol tables of a stripped binary that are not in itself; [] where there are none or they are damaged."""
    try:
        with open(binary.path, "rb") as file:
            packed = SectionFile(binary.path, file).read(".gnu_debugdata")
        if packed:
            content = lzma.LZMADecompressor(memlimit=_MAX_SIZE).decompress(packed, _MAX_SIZE)
            return _symbols(io.BytesIO(content))
        path = find_debug_path(binary, environ={})  # names alone are worth no download
        if path is None or path == binary.path:
            return []
        with open(path, "rb") as file:
            return _symbols(file)
    except (OSError, CausalError, lzma.LZMAError, EOFError, MemoryError):
        return []


def _symbols(file: IO[bytes]) -> list[SymbolTable]:
    try:
        section: Any = ELFFile(file).get_section_by_name(".symtab")
        if section is None or section["sh_entsize"] != SYMBOL_DTYPE.itemsize:
            return []
        file.seek(section["sh_offset"])
        raw = file.read(min(section["sh_size"], _MAX_SIZE))
        strings = section.stringtable
        file.seek(strings["sh_offset"])
        text = file.read(min(strings["sh_size"], _MAX_SIZE))
    except Exception:  # pyelftools lets almost anything escape from damaged files
        return []
    return [SymbolTable(np.frombuffer(raw, SYMBOL_DTYPE, len(raw) // SYMBOL_DTYPE.itemsize), text)]
