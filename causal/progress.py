"""Progress points: from what the user writes after `-p` to the places in files where a probe goes.

Use:

    spec = parse_spec("requests=handle_request@libserver")
    resolve(spec, main, libraries)      # -> [Probe(path, file_offset, ...)]

SPEC is one of these, optionally with a name of its own in front: `NAME=SPEC`.

    function, function@library          also with * for several
    file.c:123, file.c:123@library      the first instruction of the line, in all its copies
    0x4011d6, 0x11d6@library            an address, as the file's symbols have it
    usdt:provider:name                  a point that the program's authors marked; @library where it is
    tracepoint:category:name            a kernel tracepoint, while a thread of the target is current
    end-to-end                          whole runs: `run` knows it as --repeat, and nothing else does
    sampled:file.c:123                  a line by its CPU time, a visit for each 0.1 ms; nothing is probed
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from causal.errors import CausalError, UsageError
from causal.line_points import Stretch, find_line
from causal.symbols.demangle import bare_name, base_name, demangle, is_piece
from causal.symbols.elf import Binary
from causal.symbols.libraries import library_matches, readable_binaries
from causal.symbols.nearest import near_names
from causal.symbols.usdt import readable, usdt_points
from causal.tracefs import available_events

# A single "=" only, so that `operator==` stays a function.
_NAMED = re.compile(r"(?P<name>[A-Za-z_][\w .-]*)=(?!=)(?P<spec>.*)$", re.DOTALL)
_SOURCE_LINE = re.compile(r"[^:]+:\d+$")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+$")
_PREFIXES = {
    "usdt": (re.compile(r"[^:]+:[^:]+$"), "usdt:PROVIDER:NAME"),
    "tracepoint": (re.compile(r"\w+:\w+$"), "tracepoint:CATEGORY:NAME, as in tracepoint:syscalls:sys_exit_sendto"),
    "sampled": (_SOURCE_LINE, "sampled:FILE:LINE"),
}
# Code and no kernel: these get uprobes.
PROBED = ("function", "line", "address", "usdt")
# Copies of a whole function under the function's name; `.part` and `.cold` are only pieces of one.
_CLONE = re.compile(r"(\.(isra|constprop|lto_priv|llvm)\.\d+)+$")


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One progress point as asked for. `text` is the SPEC without a name, `what` it without kind and library.

    `kind`: function, line, address, usdt, tracepoint, sampled or end-to-end. `library` is None for the program itself.
    """

    name: str
    text: str
    kind: str
    what: str
    library: str | None


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a probe goes: byte `file_offset` of `path` (at `vaddr` before relocation); `symbol` says what is there.

    `semaphore`: file offset of the counter that switches a USDT point on, 0 for none.
    `cheap`: the kernel can emulate the first instruction; otherwise it must single-step it, which takes many times as
    long (causal/probe_costs.py measures both).
    """

    path: str
    file_offset: int
    vaddr: int
    symbol: str
    cheap: bool
    semaphore: int = 0


def parse_spec(text: str) -> PointSpec:
    """Read `[NAME=]SPEC`. Raises UsageError when it makes no sense."""
    match = _NAMED.match(text.strip())
    name, spec = (match["name"].strip(), match["spec"].strip()) if match else ("", text.strip())
    if not spec:
        raise UsageError("a progress point is empty", "write -p FUNCTION or -p FUNCTION@LIBRARY")
    if spec == "end-to-end":
        raise UsageError(
            "end-to-end is whole runs of a command, with no other point beside it", "run --repeat N -- COMMAND"
        )
    place, at, library = spec.rpartition("@")
    if not at:
        place = spec
    elif not place or not library:
        raise UsageError(f"progress point {spec} lacks a function or a library", "write -p FUNCTION@LIBRARY")
    kind, what = _kind(spec, place)
    if kind == "tracepoint" and at:
        raise UsageError(f"progress point {spec}: tracepoints are the kernel's", "leave out what follows the @")
    return PointSpec(name or spec, spec, kind, what, library if at else None)


def _kind(spec: str, place: str) -> tuple[str, str]:
    prefix, colon, rest = place.partition(":")
    if colon and prefix in _PREFIXES and not rest.startswith(":"):
        pattern, form = _PREFIXES[prefix]
        if not pattern.match(rest):
            raise UsageError(f"progress point {spec} makes no sense", f"write -p {form}")
        return prefix, rest
    if _ADDRESS.match(place):
        return "address", place
    return "line" if _SOURCE_LINE.match(place) else "function", place


def resolve(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> list[Probe]:
    """All places that a point means, in file order; [] for kinds without probes (see `PROBED`).

    `libraries`: those the program uses, loaded or as paths (see libraries_of); they are read only when needed. A C++ or
    Rust function is found by its readable name with or without parameters and template arguments, or by its symbol; all
    overloads, instances and compiler-made copies of it count. Raises CausalError with near names when there is none.
    """
    if spec.kind == "tracepoint":
        _check_event(spec)
    if spec.kind not in PROBED:
        return []
    if spec.kind == "usdt":
        return _usdt(spec, main, libraries)
    binaries = _binaries(spec, main, libraries)
    if spec.kind == "line":
        codes = find_line(spec.text, spec.what, binaries)
        return [_probe_at(code.binary, offset, spec.what) for code in codes for offset in code.firsts()]
    if spec.kind == "address":
        return [_at_address(spec, binary) for binary in binaries]
    return _functions(spec, binaries, libraries)


def find_stretches(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> list[Stretch]:
    """The code of a sampled line; raises CausalError as `resolve`."""
    codes = find_line(spec.text, spec.what, _binaries(spec, main, libraries))
    return [stretch for code in codes for stretch in code.stretches()]


def is_loaded(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> bool:
    """Whether the library that a point names is one that the program uses; true when it names none."""
    return spec.library is None or any(library_matches(spec.library, _path(each)) for each in (main, *libraries))


def _binaries(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> list[Binary]:
    binaries = [main] if spec.library is None else list(_matching(spec.library, main, libraries))
    if not binaries:
        raise _no_such_library(spec, main, libraries)
    return binaries


def _functions(spec: PointSpec, binaries: Sequence[Binary], libraries: Sequence[Binary | str]) -> list[Probe]:
    found = [(binary, row) for binary in binaries for row in find_function(binary, spec.what)]
    if not found and "*" in spec.what:
        found = [(binary, row) for binary in binaries for row in _functions_like(binary, spec.what)]
    if not found:
        raise _no_such_function(spec, binaries, libraries)
    for binary, row in found:
        # Refused even beside ordinary functions of the name: those are old versions, kept for old programs (libc's
        # memcpy), which would never be visited.
        if binary.functions.ifunc[row]:
            raise _indirect(spec, binary, row)
    return [_probe(binary, row, spec.what) for binary, row in found]


def _functions_like(binary: Binary, pattern: str) -> list[int]:
    symbols = (each for each in binary.functions.all_names() if not is_piece(each[0]))
    names = ((bare_name(base_name(demangle(name))), row) for name, row in symbols)
    return sorted({row for name, row in names if fnmatchcase(name, pattern) and not binary.functions.ifunc[row]})


def _check_event(spec: PointSpec) -> None:
    events = available_events()
    if spec.what not in events:
        near = near_names(spec.what.rpartition(":")[2], [event.rpartition(":")[2] for event in events])
        full = [event for name in near for event in sorted(events) if event.endswith(f":{name}")][:5]
        hint = "did you mean " + ", ".join(full) + "?" if full else "see /sys/kernel/tracing/available_events"
        raise CausalError(f"progress point {spec.text}: the kernel has no tracepoint {spec.what}", hint)


def _usdt(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> list[Probe]:
    binaries = [main, *readable_binaries(libraries)] if spec.library is None else _binaries(spec, main, libraries)
    provider, _, name = spec.what.partition(":")
    found = resolve_usdt(binaries, provider, name)
    if not found:
        known = [(point.provider, point.name) for binary in binaries for point in usdt_points(binary)]
        raise _no_such_usdt(spec, provider, known, main)
    return found


def resolve_usdt(binaries: Iterable[Binary], provider: str, name: str) -> list[Probe]:
    """All places of a USDT point in these files, [] when there are none."""
    return [
        _probe_at(
            binary, offset, f"{provider}:{name}", binary.file_offset(point.semaphore) or 0 if point.semaphore else 0
        )
        for binary in binaries
        for point in usdt_points(binary)
        if point.provider == provider and name in (point.name, readable(point.name))
        if (offset := binary.file_offset(point.vaddr)) is not None
    ]


def _no_such_usdt(spec: PointSpec, provider: str, known: Sequence[tuple[str, str]], main: Binary) -> CausalError:
    where = spec.library or f"{main.name} and its libraries"
    if not known:
        return CausalError(f"progress point {spec.text}: {where} have no USDT points", "choose a function: -p FUNCTION")
    providers = sorted({provider for provider, _ in known})
    if provider not in providers:
        return CausalError(
            f"progress point {spec.text}: {where} have no USDT provider {provider}",
            f"there are {', '.join(providers)}; `causal-bpf run --list-points {main.path} 'usdt:*'` lists all points",
        )
    names = sorted({readable(name) for its, name in known if its == provider})
    near = near_names(readable(spec.what.partition(":")[2]), names) or names[:5]
    return CausalError(f"progress point {spec.text}: {provider} has no such point", f"it has {', '.join(near)}")


def _at_address(spec: PointSpec, binary: Binary) -> Probe:
    address = int(spec.what, 16)
    offset = binary.file_offset(address)
    if offset is None or not any(s.executable and s.offset <= offset < s.offset + s.filesz for s in binary.segments):
        raise CausalError(
            f"progress point {spec.text}: {binary.name} has no code at {spec.what}",
            "give the address as nm and objdump print it, before the program is loaded",
        )
    if not _is_instruction(binary, address, offset):
        raise CausalError(
            f"progress point {spec.text}: it is not certain that an instruction begins at {spec.what}, and a probe in "
            "the middle of one would break the program",
            "give the address of a function or of a source line, or install binutils (objdump), which can tell",
        )
    return _probe_at(binary, offset, spec.what)


def _is_instruction(binary: Binary, address: int, offset: int) -> bool:
    functions = binary.functions
    if offset in functions.start:
        return True
    before = functions.start[functions.start <= offset]
    objdump = shutil.which("objdump")
    if objdump is None or not len(before):
        return False
    # Decoding must begin where an instruction is known to.
    begin = binary.vaddr(int(before[-1]))
    words = [objdump, "-d", "--no-show-raw-insn", f"--start-address={begin}", f"--stop-address={address + 16}"]
    try:
        listing = subprocess.run([*words, binary.path], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(rf"^\s*{address:x}:(?!.*\(bad\))", listing, re.MULTILINE) is not None


def find_function(binary: Binary, wanted: str) -> list[int]:
    """Rows of `binary.functions` that a user means by `wanted`, in file order; [] when none."""
    # Whatever is left out of a readable name, the last word of what was asked for is in it: a cheap first look.
    words = re.findall(r"\w+", wanted)
    word = words[-1] if words else ""
    return sorted({row for name, row in binary.functions.all_names() if _means(name, wanted, word)})


def _means(symbol: str, wanted: str, word: str) -> bool:
    if symbol == wanted:
        return True
    if symbol.startswith(("_Z", "_R")):
        readable = demangle(symbol)
        if word not in readable or is_piece(symbol):
            return False
        base = base_name(readable)
        return wanted in (readable, base, bare_name(base))
    return "." in symbol and _CLONE.sub("", symbol) == wanted


def first_instruction_is_cheap(code: bytes, machine: str) -> bool:
    """Whether a uprobe on this instruction is emulated instead of single-stepped.

    `code`: the bytes from the instruction on, 5 are enough. For x86-64 see arch/x86/kernel/uprobes.c
    (push_setup_xol_ops, branch_setup_xol_ops); for arm64, where most instructions are stepped, probes/decode-insn.c.
    """
    if machine == "aarch64":
        word = int.from_bytes(code[:4], "little")
        is_hint, is_branch = word & 0xFFFFF01F == 0xD503201F, word & 0x7C000000 == 0x14000000
        return len(code) >= 4 and (is_hint or is_branch)
    if code.startswith((b"\xf3\x0f\x1e\xfa", b"\x0f\x1f", b"\x66\x0f\x1f", b"\x66\x90", b"\x90")):  # endbr64, nops
        return True
    if len(code) >= 2 and code[0] == 0x41 and 0x50 <= code[1] <= 0x57:  # push %r8..%r15
        return True
    if len(code) >= 2 and code[0] == 0x0F:
        return 0x80 <= code[1] <= 0x8F  # jcc, 32-bit
    return bool(code) and (0x50 <= code[0] <= 0x57 or 0x70 <= code[0] <= 0x7F or code[0] in (0xE8, 0xE9, 0xEB))


def _probe(binary: Binary, row: int, wanted: str) -> Probe:
    functions = binary.functions
    symbol = wanted if wanted in functions.aliases.get(row, ()) else functions.names[row]
    return _probe_at(binary, int(functions.start[row]), symbol)


def _probe_at(binary: Binary, offset: int, symbol: str, semaphore: int = 0) -> Probe:
    cheap = first_instruction_is_cheap(binary.read(offset, 8), binary.machine)
    vaddr = binary.vaddr(offset)
    assert vaddr is not None, "code lies in segments"
    return Probe(binary.path, offset, vaddr, symbol, cheap, semaphore)


def _path(library: Binary | str) -> str:
    return library if isinstance(library, str) else library.path


def _matching(pattern: str, main: Binary, libraries: Sequence[Binary | str]) -> Iterator[Binary]:
    candidates = [library for library in (main, *libraries) if library_matches(pattern, _path(library))]
    if not candidates and "/" in pattern and not any(character in pattern for character in "*?["):
        candidates = [pattern]  # one that is loaded only later, by dlopen
    for candidate in candidates:
        yield Binary.load(candidate) if isinstance(candidate, str) else candidate


def _no_such_library(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> CausalError:
    names = [_path(library).rpartition("/")[2] for library in (*libraries, main)]
    near = near_names(spec.library or "", names) or names[:5]
    return CausalError(
        f"progress point {spec.text}: {main.name} uses no library that matches {spec.library}",
        f"it uses {', '.join(near)}; a library that is loaded later is named by its path",
    )


def _no_such_function(spec: PointSpec, binaries: Sequence[Binary], libraries: Sequence[Binary | str]) -> CausalError:
    where = ", ".join(binary.name for binary in binaries)
    elsewhere = readable_binaries(libraries) if spec.library is None else ()
    others = [binary.name for binary in elsewhere if find_function(binary, spec.what)]
    hints = [f"{name} has it: -p {spec.what}@{name}" for name in others[:1]]
    near = near_names(spec.what, (name for binary in binaries for name in _typed_names(binary)))
    if near and not hints:
        hints.append("did you mean " + ", ".join(near) + "?")
    if not others and any(binary.is_stripped for binary in binaries):
        hints.append(f"{where} is stripped: only the functions it exports have names; use a build with symbols")
    elif not hints:
        hints.append(
            "an inlined function has no symbol; choose its caller, or build with -fno-inline-functions; "
            f"`causal-bpf run --list-points {binaries[0].path}` lists what there is"
        )
    return CausalError(f"progress point {spec.text}: no function {spec.what} in {where}", "; ".join(hints))


def _indirect(spec: PointSpec, binary: Binary, row: int) -> CausalError:
    functions = binary.functions
    stem = functions.names[row].strip("_")
    # libc calls them __memcpy_avx_unaligned; a stripped libc does not name them at all.
    named = [name for name, _ in functions.all_names() if name.startswith(f"__{stem}_")]
    near = near_names(stem, (name for name in named if not name.endswith("_chk")))
    hint = "choose the function that calls it"
    if near:
        hint = f"choose the implementation that this machine uses, such as {', '.join(near)}"
    return CausalError(
        f"progress point {spec.text}: {spec.what} is an indirect function (IFUNC) of {binary.name}; "
        "a probe would count how often an implementation is chosen, which is once",
        hint,
    )


def _typed_names(binary: Binary) -> Iterator[str]:
    """What a user would type for each function."""
    for name, _ in binary.functions.all_names():
        yield base_name(demangle(name))
