"""The memory map of a process, from its text."""

import os

import pytest

from causal.errors import CausalError
from causal.mappings import open_path, parse_maps, read_maps

MAPS = r"""00400000-00401000 r--p 00000000 fd:01 131 /opt/prog
00401000-00402000 r-xp 00001000 fd:01 131                                /opt/prog
7f0000000000-7f0000001000 r-xp 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00028000 fd:01 77                         /lib/old.so (deleted)
7f0000004000-7f0000005000 rwxp 00000000 00:01 1024                       /memfd:jit (deleted)
7f0000006000-7f0000007000 r-xp 00000000 fd:01 88                         /opt/with space (1).so
7f0000008000-7f0000009000 r-xp 00000000 fd:01 89                         /opt/new\012line\x.so
7f000000a000-7f000000b000 rwxp 00000000 00:00 0                          [anon:v8]
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0                          [stack]
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
nonsense
"""


def test_only_executable_mappings_with_their_kind():
    found = [(mapping.path, mapping.kind, mapping.deleted) for mapping in parse_maps(MAPS)]
    assert found == [
        ("/opt/prog", "file", False),
        ("[anonymous]", "anonymous", False),
        ("/lib/old.so", "file", True),
        ("/memfd:jit", "anonymous", True),
        ("/opt/with space (1).so", "file", False),
        ("/opt/new\nline\\x.so", "file", False),
        ("[anon:v8]", "anonymous", False),
        ("[vdso]", "vdso", False),
        ("[vsyscall]", "vdso", False),
    ]


def test_numbers_and_file_offsets():
    mapping = parse_maps(MAPS)[2]
    assert (mapping.start, mapping.end, mapping.offset) == (0x7F0000002000, 0x7F0000003000, 0x28000)
    assert (mapping.inode, mapping.device) == (77, "fd:01")
    assert mapping.file_offset(0x7F0000002010) == 0x28010
    assert 0x7F0000002000 in mapping and 0x7F0000003000 not in mapping and 0x7F0000001FFF not in mapping


def test_files_are_opened_through_the_process():
    plain, _, deleted = parse_maps(MAPS)[:3]
    assert open_path(42, plain) == "/proc/42/root/opt/prog"
    assert open_path(42, deleted) == "/proc/42/map_files/7f0000002000-7f0000003000"


def test_own_process_maps_its_own_program():
    program = os.path.realpath("/proc/self/exe")
    assert program in {mapping.path for mapping in read_maps(os.getpid()) if mapping.kind == "file"}


def test_ended_process_has_no_mappings(tmp_path):
    assert read_maps(42, str(tmp_path)) == []


def test_forbidden_map_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CausalError) as caught:
        read_maps(42, str(tmp_path))
    assert "process 42" in caught.value.message and caught.value.hint == "run as root"
