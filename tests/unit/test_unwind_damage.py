"""Call-frame information that is damaged, or made to take long: no crash, and no more time or memory than its size."""

import resource
import subprocess
import time
from pathlib import Path

import pytest

from causal.unwind.image import frames_of, read_image
from tests.unit.test_unwind import COMMON, PROGRAM, REMEMBER, ROOT, EhFrame, advance, cfa_offset, image_with, table_of

NATIVE = ROOT / "causal" / "symbols" / "native"
TO_AND_FRO = advance(1) + cfa_offset(16) + advance(1) + cfa_offset(8)


def seconds(build):
    began = time.process_time()
    build()
    return time.process_time() - began


@pytest.mark.parametrize(
    ("what", "section"),
    [
        ("common entries", lambda n: repeated(EhFrame().cie(COMMON + bytes(40)), n)),
        ("rows", lambda n: EhFrame().cie().fde(0, 0xFFFFFFFF, TO_AND_FRO * n)),
        ("states", lambda n: EhFrame().cie().fde(0, 0x20, REMEMBER * n)),
        ("functions", lambda n: functions_of_many(n)),
        ("one function many times", lambda n: repeated_functions(n)),
    ],
)  # fmt: skip
def test_time_and_memory_grow_with_the_section_only(what, section):
    small, large = (image_with(section(n)) for n in (2_000, 60_000))
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert seconds(lambda: table_of(large)) < 40 * seconds(lambda: table_of(small)) + 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 400_000  # kB


def repeated(section, count):
    section.data *= count
    return section


def functions_of_many(count):
    """Each refers to another common entry, the oldest last."""
    section = EhFrame()
    commons = []
    for _ in range(count):
        section.cie()
        commons.append(section.common)
    for number, common in enumerate(reversed(commons)):
        section.common = common
        section.fde(number % 0x700, 1)
    return section


def repeated_functions(count):
    section = EhFrame().cie()
    for _ in range(count):
        section.fde(0, 0x700, advance(1) + cfa_offset(16))
    return section


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory):
    """The reader under sanitizers, in a program that damages what it is given."""
    program = tmp_path_factory.mktemp("fuzz") / "frames_fuzz"
    sources = [NATIVE / "frames.c", NATIVE / "rules.c", NATIVE / "basics.c", Path(__file__).with_name("frames_fuzz.c")]
    command = ["cc", "-std=gnu11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", NATIVE]
    done = subprocess.run([*command, "-o", program, *sources], capture_output=True, text=True)
    if done.returncode and ("sanitize" in done.stderr or "asan" in done.stderr):
        pytest.skip("the compiler has no sanitizers")
    assert not done.returncode, done.stderr
    return program


def sections(tmp_path):
    """Of a real program, and one with a bit of everything."""
    data = Path(PROGRAM).read_bytes()
    real = frames_of(data, read_image(data))[0].data[:20_000]
    varied = EhFrame().cie().fde(0, 0x40, advance(1) + cfa_offset(16) + REMEMBER + b"\x0b\x0f\x04\x77\xa0\x01\x06")
    varied.cie(augmentation=b"zPLR", encoding=b"\x9b\0\0\0\0\x1b\x1b")
    varied.fde(0x100, 0x400, b"\x11\x06\x02\x2e\x10\x03\x01\x01\x07\x10\x10\x06\x02\x76\x00\x16\x03\x02\x77\x08")
    for name, content in (("real", real), ("varied", varied.data * 20)):
        (tmp_path / name).write_bytes(content)
        yield tmp_path / name


def test_damaged_sections_under_sanitizers(fuzz, tmp_path):
    for section in sections(tmp_path):
        done = subprocess.run([fuzz, section, "1", "3000"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[:2000]
        rows, lost = map(int, done.stdout.split())
        assert rows > 3000 and lost > 1000  # both ways are taken
