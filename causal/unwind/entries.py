"""The compiled reader of call-frame information (causal/symbols/native/frames.c) as numpy arrays."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from causal.symbols.native import Section, load_library
from causal.unwind.image import Frames, Image, NoImage

# As in native/frames.h.
EMITTED_DTYPE = np.dtype([("pc", "<u8"), ("rule", "<u4"), ("pad", "<u4")])
FUNCTION_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8")])
_IS_DEBUG, _BOUNDED = 1, 2
_ROWS, _FUNCTIONS, _LOST, _OUT_OF_MEMORY = range(4)


@dataclass(frozen=True)
class Entries:
    """Of one section: `rows` (EMITTED_DTYPE) function by function, `functions` (FUNCTION_DTYPE) in the section's order,
    both relative to the image; `lost`: how many entries make no sense."""

    rows: NDArray[np.void]
    functions: NDArray[np.void]
    lost: int


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = load_library()
    number, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.frames_read.restype = pointer
    library.frames_read.argtypes = [
        ctypes.POINTER(Section), number, ctypes.c_uint32, number, pointer, number, pointer, number,
    ]  # fmt: skip
    library.frames_array.restype = pointer
    library.frames_array.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(number)]
    library.frames_free.restype = None
    library.frames_free.argtypes = [pointer]
    return library


def read_entries(frames: Frames, image: Image, known: NDArray[np.void]) -> Entries:
    """The entries for code that is there, but for functions that begin in one of `known` (FUNCTION_DTYPE, sorted).

    Raises NoImage when there is no memory for them.
    """
    library = _library()
    code = np.array(
        [(s.vaddr, s.vaddr + s.filesz) for s in image.segments if s.executable and s.vaddr + s.filesz < 1 << 64],
        np.uint64,
    ).reshape(-1, 2)
    data = frames.data  # kept alive, and not copied
    section = Section(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
    flags = _IS_DEBUG * frames.is_debug | _BOUNDED * frames.bounded
    known = np.ascontiguousarray(known, FUNCTION_DTYPE)
    handle = library.frames_read(
        ctypes.byref(section), frames.address, flags, image.base, code.ctypes.data, len(code), known.ctypes.data,
        len(known),
    )  # fmt: skip
    if not handle:
        raise NoImage("there is no memory for its table")
    try:
        if _count(handle, _OUT_OF_MEMORY):
            raise NoImage("there is no memory for its table")
        return Entries(
            _array(handle, _ROWS, EMITTED_DTYPE), _array(handle, _FUNCTIONS, FUNCTION_DTYPE), _count(handle, _LOST)
        )
    finally:
        library.frames_free(handle)


def _count(handle: int, which: int) -> int:
    count = ctypes.c_uint64()
    _library().frames_array(handle, which, ctypes.byref(count))
    return count.value


def _array(handle: int, which: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    count = ctypes.c_uint64()
    address = _library().frames_array(handle, which, ctypes.byref(count))
    if not count.value:
        return np.empty(0, dtype)
    view = (ctypes.c_char * (count.value * dtype.itemsize)).from_address(address)
    array: NDArray[Any] = np.frombuffer(memoryview(view), dtype)
    return array.copy()
