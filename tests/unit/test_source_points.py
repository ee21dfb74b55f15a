"""causal.h compiles wherever a statement may stand, does nothing by itself, and leaves its points to be found."""

import shutil
import subprocess
from pathlib import Path

import pytest

from causal.points import MACRO_MARK
from causal.source_points import points_in_source, unread_counters
from causal.symbols.elf import Binary

STUB = Path(__file__).parents[2] / "bpf" / "stub"
C = """
#include "causal.h"
#define NAME "by macro"
static inline int twice(int x) { CAUSAL_PROGRESS(NAME); return 2 * x; }
int main(int c, char **v)
{
	(void)v;
	if (c)
		CAUSAL_BEGIN("work \\"%d\\" {a|b}");
	else
		CAUSAL_END("unused");
	for (int i = 0; i < 3; i++)
		CAUSAL_PROGRESS("work \\"%d\\" {a|b}");
	switch (c) { default: CAUSAL_END("work \\"%d\\" {a|b}"); }
	return twice(c) - 2;
}
"""
CXX = (
    C.replace("static inline int twice", "template <typename T> T twice").replace("int x) {", "T x) {")
    + """
struct Thing { Thing() { CAUSAL_PROGRESS("made"); } } thing;
int made = [](int x) { CAUSAL_PROGRESS("lambda"); return x; }(1);
"""
)
COMPILERS = [
    ("gcc", C, ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]),
    ("gcc", C, ["-O0", "-fPIC", "-masm=intel"]),
    ("gcc", C, ["-O2", "-static"]),
    ("clang", C, ["-O2", "-Wall", "-Werror"]),
    ("g++", CXX, ["-O2", "-flto", "-Wall", "-Werror"]),
    ("g++", CXX, ["-O0", "-std=c++11"]),
    ("clang++", CXX, ["-O2"]),
]


@pytest.fixture
def compiled(tmp_path):
    def build(compiler, text, flags):
        if shutil.which(compiler) is None:
            pytest.skip(f"no {compiler}")
        source, program = tmp_path / f"prog.{'cc' if '++' in compiler else 'c'}", tmp_path / "prog"
        source.write_text(text)
        subprocess.run([compiler, *flags, f"-I{STUB}", "-o", program, source], check=True, timeout=60)
        return Binary.load(program)

    return build


@pytest.mark.parametrize(("compiler", "text", "flags"), COMPILERS)
def test_points_are_found_and_do_nothing(compiled, compiler, text, flags):
    program = compiled(compiler, text, flags)
    assert subprocess.run([program.path], check=False, timeout=10).returncode == 0
    found = points_in_source(program, [])
    names = {'work "%d" {a|b}', "by macro"} | ({"made", "lambda"} if text is CXX else set())
    assert {place.spec.name for place in found.points} == names
    assert all(place.probes and all(probe.cheap for probe in place.probes) for place in found.places)
    # one name for both would be two points of one name, and an end without a begin is no pair
    assert [pair.name for pair in found.latencies] == ['work "%d" {a|b} (latency)']


def test_a_name_must_be_a_literal(compiled):
    with pytest.raises(subprocess.CalledProcessError):
        compiled("gcc", C.replace("CAUSAL_PROGRESS(NAME)", "CAUSAL_PROGRESS(x ? NAME : 0)"), ["-w"])


def test_counters_that_cannot_be_read(tmp_path):
    """Of programs built with COZ's header, which have nothing else."""
    (tmp_path / "coz").write_bytes(b"..." + MACRO_MARK + b"...")
    (tmp_path / "other").write_bytes(b"...")
    coz, other = (type("Binary", (), {"path": str(tmp_path / name), "name": name}) for name in ("coz", "other"))
    assert "only `causal-bpf run` can read them" in unread_counters(coz, [], runs_already=True)
    assert "is it static?" in unread_counters(coz, [], runs_already=False)
    assert unread_counters(other, [], runs_already=True) == ""
    assert unread_counters(other, [coz.path], runs_already=True) != ""
