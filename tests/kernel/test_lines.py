"""Source lines as regions of real programs: inlined libraries, scopes, libraries that are loaded late."""

import re
import subprocess

import pytest

# All its time is in a function of a "library" header that is inlined at two lines of main.c, 3 : 1.
HEADER = """
#include <time.h>
static inline __attribute__((always_inline)) void spin(volatile long *x, int n) {
    for (int i = 0; i < n; i++)
        *x += i * *x + 1;
}
"""
MAIN = """
#include <dlfcn.h>
#include "lib.h"
volatile long sum;
__attribute__((noinline)) void progress(void) { __asm__ volatile(""); }
int main(int argc, char **argv) {
    void (*late)(volatile long *) = 0;
    if (argc > 1)
        late = (void (*)(volatile long *))dlsym(dlopen(argv[1], RTLD_NOW), "late");
    for (;;) {
        spin(&sum, 900000); // often
        spin(&sum, 300000); // rarely
        if (late)
            late(&sum);
        progress();
    }
}
"""
LATE = """
void late(volatile long *x) {
    for (int i = 0; i < 1200000; i++)
        *x += i * *x + 1; // late
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A directory with `prog`, its sources and a library of the same project, `late.so`."""
    directory = tmp_path_factory.mktemp("project")
    for name, text in (("vendor/lib.h", HEADER), ("main.c", MAIN), ("late.c", LATE)):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    flags = ["gcc", "-O1", "-g", "-fno-omit-frame-pointer", "-Ivendor"]
    subprocess.run([*flags, "main.c", "-o", "prog", "-ldl"], check=True, cwd=directory)
    subprocess.run([*flags, "-shared", "-fPIC", "late.c", "-o", "late.so"], check=True, cwd=directory)
    return directory


def line_of(directory, file, mark):
    lines = (directory / file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if mark in line)


def test_a_library_counts_for_the_line_that_uses_it(record, project):
    options = ["-u", "line", "-s", "!vendor", "--duration", "4s", "--speedups", "100"]
    recording = record(project / "prog", options=options)
    assert recording.finished.code == 0
    often, rarely = (f"main.c:{line_of(project, 'main.c', mark)}" for mark in ("// often", "// rarely"))
    assert recording.share(often) + recording.share(rarely) > 0.95
    assert 0.65 < recording.share(often) < 0.85
    assert recording.profile.end.samples_in_scope > 0.9 * recording.profile.end.samples
    regions = {region.name: region for region in recording.profile.regions}
    assert regions[often].function == "main" and regions[often].source == str(project / "main.c")
    treated = [w for w in recording.profile.windows if (w.region, w.arm) == (often, "treated")]
    assert treated and all(w.selected_samples > 0 and w.delay_ns > 0 for w in treated)
    shown = recording.result(often)
    assert (shown.function, shown.unit, shown.source) == ("main", "line", str(project / "main.c"))


def test_lines_are_the_default_and_headers_of_the_project_count(causal_bpf, project, tmp_path):
    path = tmp_path / "p.jsonl"
    words = ("run", "-p", "progress", "--duration", "2s", "-o", path, "--", project / "prog")
    finished = causal_bpf(*words)
    assert finished.code == 0
    # The function stands beside it where the table has room.
    assert re.search(r"^(vendor/)?lib\.h:\d", finished.out, re.MULTILINE), finished.out
    assert '"unit":"line"' in path.read_text().replace(" ", "")


def test_the_list_of_regions(causal_bpf, project):
    words = ("run", "--list-regions", "-s", "!vendor", "--duration", "2s", "--", project / "prog")
    finished = causal_bpf(*words)
    assert finished.code == 0 and finished.err == "", finished
    in_scope, _, outside = finished.out.partition("out of scope")
    often = line_of(project, "main.c", "// often")
    share = re.search(rf"^main\.c:{often} +main +(\d+\.\d)%( +\d+%)?$", in_scope, re.MULTILINE)
    assert share and 60 < float(share[1]) < 90, finished.out
    # Nearly all of it is really in the header.
    share = re.search(r"^lib\.h +(\d+\.\d)%( +\d+%)?$", outside, re.MULTILINE)
    assert share and float(share[1]) > 80, finished.out


def test_files_and_libraries_loaded_late(record, project):
    options = ["-u", "file", "--duration", "2s", "--speedups", "100"]
    recording = record(project / "prog", project / "late.so", options=options)
    assert recording.finished.code == 0
    assert set(recording.profile.samples) <= {"main.c", "lib.h", "late.c"}
    # The library of the project turns up by itself, and is half of the work.
    assert 0.35 < recording.share("late.c") < 0.65
    assert 0.35 < recording.share("lib.h") < 0.65
