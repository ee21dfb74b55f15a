"""The compiled reader of debug information under sanitizers, with damaged input."""

import subprocess

import numpy as np
import pytest

from causal.symbols.native import CONTRIBUTION_DTYPE
from scripts.benchmarks import symbols_fuzz
from tests.unit.dwarf_fixture import End, Function, Row, debug_sections, split_sections
from tests.unit.elf_fixture import CODE_SIZE, CODE_VADDR
from tests.unit.test_unwind import (
    COMMON,
    REMEMBER,
    RESTORE,
    UNDEFINED_RA,
    EhFrame,
    advance,
    block,
    cfa,
    cfa_offset,
    saved,
)

ROWS = (Row(0x10, "main.c", 10), Row(0x20, "/usr/include/x.h", 300), Row(0x40, "sub/other.c", 7), End(0x300))
FUNCTIONS = (
    Function("main", 0x10, 0x300, (
        Function("push", 0x20, 0x60, (Function("grow", 0, 0, (), ("main.c", 5), ((0x30, 0x38), (0x40, 0x48))),),
                 ("main.c", 11)),
    )),
)  # fmt: skip
CODE = [CODE_VADDR, CODE_VADDR + CODE_SIZE]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    try:
        return symbols_fuzz.build(tmp_path_factory.mktemp("fuzz"))
    except subprocess.CalledProcessError as error:
        if "sanitize" in error.stderr or "asan" in error.stderr:
            pytest.skip("the compiler has no sanitizers")
        raise


def call_frames():
    pushed = advance(1) + cfa_offset(16) + saved(6, 2)
    programs = (
        pushed + advance(3) + cfa(6, 16) + REMEMBER + advance(9) + cfa(7, 8) + RESTORE,
        UNDEFINED_RA,
        block(0x0F, 2, 0x77, 8) + block(0x10, 6, 2, 0x76, 0) + advance(4) + cfa_offset(200),
    )
    section = EhFrame().cie().cie(COMMON, b"zRS")
    for number, program in enumerate(programs):
        section.fde(0x20 * number, 0x20, program)
    return section.data + bytes(4)


def seeds():
    frames = call_frames(), 0
    made = [
        symbols_fuzz.seed(debug_sections(ROWS, FUNCTIONS, version), CODE, frames=frames) for version in (2, 3, 4, 5)
    ]
    for version in (4, 5):
        main, split = split_sections(ROWS, FUNCTIONS, version)
        contributions = np.zeros(1, CONTRIBUTION_DTYPE)
        contributions["info_size"] = len(split[".debug_info.dwo"])
        made.append(symbols_fuzz.seed(main | split, CODE, contributions))
    return made


def test_damaged_input_never_leaves_its_memory(program):
    result = symbols_fuzz.fuzz(seeds(), 2, 1, program)
    assert not result.failure
    assert result.inputs > 100 and result.left_out > 0


def test_the_sanitizers_watch(program, tmp_path):
    """A seed that lies about its size makes the program itself read too far: that must be told."""
    (tmp_path / "seeds").write_bytes(seeds()[0][:-40])
    done = subprocess.run([program, tmp_path / "seeds", "1", "1"], capture_output=True, text=True)
    assert done.returncode and "AddressSanitizer" in done.stderr
