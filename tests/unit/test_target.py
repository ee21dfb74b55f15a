"""The kernel's picture of the target: its mappings as rows of a table, and what its threads are called."""

import os
import sys

import numpy as np
import pytest

from causal.engine import MAPPING, UNWIND_MODULE, UNWIND_PAGE
from causal.errors import CausalError
from causal.mappings import Mapping, read_maps
from causal.range_pages import RANGE_PAGE
from causal.regions import RegionTable, Scope
from causal.symbols.native import load_library
from causal.target import Target, thread_label
from causal.unwind.modules import Memory
from causal.unwind.rules import ROW_DTYPE
from causal.windows import EngineOptions

PROGRAM = os.path.realpath(sys.executable)


class Engine:
    """Keeps what it is told."""

    def __init__(self, **options):
        self.options = EngineOptions(**options)
        self.versions = {}
        self.unmapped = 0
        self.spaces = {}
        self.of = {}
        self.ranges = None
        self.handlers = {}
        self.labels = {}
        self.table = np.zeros(self.options.max_mappings, MAPPING)
        self.pages = np.zeros(self.options.max_range_pages, RANGE_PAGE)
        self.memory = Memory(
            np.zeros(1 << 20, ROW_DTYPE), np.zeros(1 << 16, UNWIND_PAGE), np.zeros(1 << 10, UNWIND_MODULE)
        )

    def counters(self):
        return {"unmapped": self.unmapped, "frames_unmapped": 0}

    def mappings(self, first, count):
        return self.table[first : first + count]

    def range_pages(self):
        return self.pages

    def unwind_memory(self):
        return self.memory

    def processes(self):
        return dict(self.versions)

    def remove_process(self, tgid):
        del self.versions[tgid]

    def registered(self, tgid):
        return self.handlers.get(tgid, False)

    def write_space(self, space, first, rows):
        self.spaces[space] = (first, rows.copy())
        self.table[first : first + len(rows)] = rows

    def spaces_in_use(self):
        return set(self.of.values())

    def set_space(self, tgid, space):
        self.of[tgid] = space

    def write_ranges(self, ranges):
        self.ranges = ranges.copy()

    def sites(self):
        return {}

    def threads(self):
        return [(os.getpid(), os.getpid())]

    def set_thread_region(self, tid, region):
        self.labels[tid] = region


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def engine():
    load_library()  # a mapping of this process that would turn up in the middle of a test
    engine = Engine()
    engine.versions[os.getpid()] = 1
    return engine


def target_of(engine, unit="module", patterns=("*",)):
    return Target(engine, RegionTable(unit), Scope(PROGRAM, patterns), clock=Clock())


def test_a_process_becomes_a_table_of_its_mappings(engine):
    table = RegionTable("module")
    Target(engine, table, Scope(PROGRAM, ["*"])).refresh()
    first, rows = engine.spaces[engine.of[os.getpid()]]
    assert rows.dtype == MAPPING and first == 0
    layout = read_maps(os.getpid())
    assert [(row["start"], row["end"], row["offset"]) for row in rows] == [(m.start, m.end, m.offset) for m in layout]
    assert np.all(rows["start"][1:] >= rows["end"][:-1])
    main = next(i for i, mapping in enumerate(layout) if mapping.path == PROGRAM)
    low, high = int(rows["lo"][main]), int(rows["hi"][main])
    region = int(engine.ranges["region"][low])
    assert high == low + 1 and table.region(region).binary == PROGRAM
    # What is mapped several times is one module. Libraries of other tests may have been deleted since.
    paths = {mapping.path for mapping in layout}
    assert sum(map(os.path.exists, paths)) <= len(table) <= len(paths)


def test_outside_of_the_scope_nothing_has_a_region(engine):
    target_of(engine, patterns=()).refresh()
    _, rows = engine.spaces[engine.of[os.getpid()]]
    inside = [m.path == PROGRAM for m in read_maps(os.getpid())]
    assert [bool(row["hi"] > row["lo"]) for row in rows] == inside


def test_it_is_read_again_only_when_there_is_a_reason(engine, monkeypatch):
    reads = []

    def read(pid):
        reads.append(pid)
        return read_maps(pid)

    monkeypatch.setattr("causal.target.read_maps", read)
    target = target_of(engine)
    for _ in range(3):
        target.refresh()
    assert len(reads) == 1
    engine.unmapped += 1  # an address in no mapping that we know
    target.refresh()
    assert len(reads) == 2
    engine.versions[os.getpid()] += 1  # another program was executed
    target.refresh()
    assert len(reads) == 3
    assert len(engine.spaces) == 1  # nothing had changed


def test_what_has_ended_is_forgotten(engine):
    gone = 2**22 + 1  # above the largest possible pid
    engine.versions[gone] = 1
    target_of(engine).refresh()
    assert set(engine.versions) == {os.getpid()}


def layouts(count, size):
    """Different ones, each with so many mappings."""
    return [
        [Mapping(2**46 + 8192 * i, 2**46 + 8192 * i + 4096 + n, 0, "[x]", 0, "0:0", "anonymous", False)
         for i in range(size)]
        for n in range(count)
    ]  # fmt: skip


def test_room_of_old_mappings_is_used_again_when_nobody_can_be_searching_them(engine, monkeypatch):
    engine.options = EngineOptions(max_mappings=25, max_spaces=4)
    clock, us = Clock(), os.getpid()
    target = Target(engine, RegionTable("thread"), Scope(PROGRAM), clock=clock)
    places = []
    for layout in layouts(5, 10):
        monkeypatch.setattr("causal.target.read_maps", lambda pid, layout=layout: layout)
        engine.versions[us] += 1
        target.refresh()
        places.append(engine.spaces[engine.of[us]][0])
        clock.now += 2
    assert places == [0, 10, 0, 10, 0]
    assert 0 not in engine.spaces  # that one means "not read yet"


def test_rows_that_a_process_has_are_never_written_for_another(engine, monkeypatch):
    """Also if a child has them that was forked by a process whose mappings have changed since."""
    engine.options = EngineOptions(max_mappings=25)
    clock, us = Clock(), os.getpid()
    first, second, third = layouts(3, 10)
    target = Target(engine, RegionTable("thread"), Scope(PROGRAM), clock=clock)
    for layout in (first, second):
        monkeypatch.setattr("causal.target.read_maps", lambda pid, layout=layout: layout)
        engine.versions[us] += 1
        target.refresh()
    engine.of[77] = 1  # what fork() gave it
    clock.now += 60
    parent = os.getppid()
    engine.versions[parent] = 1
    monkeypatch.setattr("causal.target.read_maps", lambda pid: third if pid == parent else second)
    target.refresh()
    assert parent not in engine.of and engine.table["start"][:20].tolist() == [m.start for m in first] * 2
    assert "--max-mappings" in target.unreadable["the table of mappings"]
    del engine.of[77]  # now there is room
    clock.now += 60
    target.refresh()
    assert engine.spaces[engine.of[parent]][0] == 0 and engine.of[us] == 2


def test_processes_with_the_same_mappings_share_them(engine, monkeypatch):
    layout = layouts(1, 10)[0]
    monkeypatch.setattr("causal.target.read_maps", lambda pid: layout)
    monkeypatch.setattr("causal.target.os.path.exists", lambda path: True)
    engine.options = EngineOptions(max_mappings=10)
    engine.versions = {pid: 1 for pid in range(1, 200)}
    Target(engine, RegionTable("thread"), Scope(PROGRAM)).refresh()
    assert len(engine.spaces) == 1 and set(engine.of.values()) == set(engine.spaces) and len(engine.of) == 199


def test_a_program_executed_anew_gets_its_mappings_back(engine):
    """At the same addresses, where they are not random."""
    target = target_of(engine)
    target.refresh()
    space = engine.of.pop(os.getpid())
    engine.versions[os.getpid()] += 1
    target.refresh()
    assert engine.of == {os.getpid(): space}


def test_a_process_that_changes_all_the_time_is_looked_at_for_a_tenth_of_it(engine, monkeypatch):
    clock, reads = Clock(), []
    layout = layouts(1, 1)[0]

    def read(pid):
        reads.append(clock.now)
        clock.now += 0.5
        return layout

    monkeypatch.setattr("causal.target.read_maps", read)
    target = Target(engine, RegionTable("thread"), Scope(PROGRAM), clock=clock)
    engine.versions[os.getppid()] = 1
    for _ in range(3000):
        engine.unmapped += 1
        target.refresh()
        clock.now += 0.01
    spent = 0.5 * len(reads) / (clock.now - 100)
    assert 0.07 < spent <= 0.14


def test_a_process_with_too_many_mappings(engine):
    engine.options = EngineOptions(max_mappings=1)
    with pytest.raises(CausalError) as caught:
        target_of(engine).refresh()
    assert "--max-mappings" in caught.value.hint


def test_a_child_that_may_not_be_looked_at_is_left_out(engine, monkeypatch):
    target = target_of(engine)
    target.refresh()
    engine.versions[os.getppid()] = 1
    layout = read_maps(os.getpid())

    def read(pid):
        if pid == os.getppid():
            raise CausalError(f"may not read {pid}")
        return layout

    monkeypatch.setattr("causal.target.read_maps", read)
    target.refresh()
    assert os.getpid() in engine.of and os.getppid() not in engine.of
    assert list(target.unreadable.values()) == [f"may not read {os.getppid()}"]
    with pytest.raises(CausalError):
        engine.versions.pop(os.getpid())
        target_of(engine).refresh()


def test_is_any_process_registered(engine):
    target = target_of(engine)
    assert not target.registered()
    engine.versions[1] = 1
    engine.handlers[1] = True
    assert target.registered()


# --- unwinding ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_layout(monkeypatch):
    layout = [mapping for mapping in read_maps(os.getpid()) if mapping.path in (PROGRAM, "[vdso]")]
    layout.append(Mapping(2**46, 2**46 + 4096, 0, "[anonymous]", 0, "0:0", "anonymous", False))
    monkeypatch.setattr("causal.target.read_maps", lambda pid: layout)
    return layout


def test_mappings_know_their_tables(engine, small_layout):
    target = target_of(engine)
    target.refresh()
    rows = engine.mappings(engine.spaces[engine.of[os.getpid()]][0], len(small_layout))
    assert [bool(number) for number in rows["module"]] == [m.kind != "anonymous" for m in small_layout]
    assert target.modules.used[0] == 2 and target.without_information() == {}


def test_tables_that_take_too_long_are_built_one_by_one(engine, monkeypatch, small_layout):
    """Those first to which stacks have led, and no large ones in a window."""
    monkeypatch.setattr("causal.target._BUILDING_S", 0)
    monkeypatch.setattr("causal.target._LARGE", 0)
    target = target_of(engine)
    target.refresh(building=False)
    rows = engine.mappings(engine.spaces[engine.of[os.getpid()]][0], len(small_layout))
    assert not rows["module"].any()
    program, vdso = (next(i for i, m in enumerate(small_layout) if m.path == path) for path in (PROGRAM, "[vdso]"))
    rows["guessed"][vdso] = 7
    target.refresh(building=False)
    assert not rows["module"].any()
    target.refresh()
    assert np.flatnonzero(rows["module"]).tolist() == [vdso]
    target.refresh()
    assert np.flatnonzero(rows["module"]).tolist() == sorted([vdso, program]) and rows["pc"][program] > 0
    assert target.without_information() == {"[vdso]": 7}


def test_the_time_for_tables_is_that_of_all_processes(engine, monkeypatch, small_layout):
    monkeypatch.setattr("causal.target._BUILDING_S", 0)
    parts = {os.getpid(): small_layout[:1], os.getppid(): small_layout[1:]}
    monkeypatch.setattr("causal.target.read_maps", parts.get)
    engine.versions[os.getppid()] = 1
    target = target_of(engine)
    target.refresh()
    assert target.modules.used[0] == 1
    target.refresh()
    assert target.modules.used[0] == 2


def test_where_nobody_looks_at_stacks_no_table_is_read(engine):
    target = target_of(engine, unit="thread")
    target.refresh()
    assert target.modules is None


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tid", "name", "label"),
    [(100, "server", "server (main)"), (103, "server", "server/3"), (104, "io-worker", "io-worker")],
)
def test_what_a_thread_is_called(tid, name, label):
    files = {f"/proc/100/task/{tid}/comm": name, "/proc/100/comm": "server"}
    assert thread_label(tid, 100, files.__getitem__) == label


def test_threads_are_given_their_regions(engine):
    table = RegionTable("thread")
    Target(engine, table, Scope(PROGRAM)).refresh()
    assert table.region(engine.labels[os.getpid()]).name.endswith("(main)")
