"""Progress points: from what the user writes after `-p` to the places in files where a probe goes.

Use:

    spec = parse_spec("requests=handle_request@libserver")
    resolve(spec, main, libraries)      # -> [Probe(path, file_offset, ...)]

SPEC is `function` or `function@library`, optionally with a name of its own in front: `NAME=SPEC`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from causal.errors import CausalError, UsageError
from causal.symbols.demangle import bare_name, base_name, demangle
from causal.symbols.elf import Binary
from causal.symbols.libraries import library_matches
from causal.symbols.nearest import near_names

# A single "=" only, so that `operator==` stays a function.
_NAMED = re.compile(r"(?P<name>[A-Za-z_][\w .-]*)=(?!=)(?P<spec>.*)$", re.DOTALL)
_SOURCE_LINE = re.compile(r"[^:]+:\d+$")
_LATER = {
    "usdt:": "a USDT point (usdt:provider:name)",
    "tracepoint:": "a tracepoint (tracepoint:category:name)",
    "sampled:": "a sampled line (sampled:file.c:123)",
}
# Copies of a whole function under the function's name; `.part` and `.cold` are only pieces of one.
_CLONE = re.compile(r"(\.(isra|constprop|lto_priv|llvm)\.\d+)+$")


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One progress point as asked for. `text` is the SPEC without a name; `library` is None for the program itself."""

    name: str
    text: str
    kind: str
    function: str
    library: str | None


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a probe goes: byte `file_offset` of `path`, where `symbol` starts (at `vaddr` before relocation).

    `cheap`: the kernel can emulate the first instruction (0.5 us a visit); otherwise it must single-step it (17 us).
    """

    path: str
    file_offset: int
    vaddr: int
    symbol: str
    cheap: bool


def parse_spec(text: str) -> PointSpec:
    """Read `[NAME=]SPEC`. Raises UsageError when it makes no sense, CausalError for kinds that do not exist yet."""
    match = _NAMED.match(text.strip())
    name, spec = (match["name"].strip(), match["spec"].strip()) if match else ("", text.strip())
    if not spec:
        raise UsageError("a progress point is empty", "write -p FUNCTION or -p FUNCTION@LIBRARY")
    _refuse_later_kinds(spec)
    function, at, library = spec.rpartition("@")
    if not at:
        return PointSpec(name or spec, spec, "function", spec, None)
    if not function or not library:
        raise UsageError(f"progress point {spec} lacks a function or a library", "write -p FUNCTION@LIBRARY")
    return PointSpec(name or spec, spec, "function", function, library)


def resolve(spec: PointSpec, main: Binary, libraries: Sequence[Binary | str]) -> list[Probe]:
    """All places that a function point means, in file order.

    `libraries`: those the program uses, loaded or as paths (see libraries_of); they are read only when needed. A C++ or
    Rust function is found by its readable name with or without parameters and template arguments, or by its symbol; all
    overloads, instances and compiler-made copies of it count. Raises CausalError with near names when there is none.
    """
    binaries = [main] if spec.library is None else list(_matching(spec.library, main, libraries))
    if not binaries:
        raise _no_such_library(spec, main, libraries)
    found = [(binary, row) for binary in binaries for row in find_function(binary, spec.function)]
    if not found:
        raise _no_such_function(spec, binaries, libraries)
    for binary, row in found:
        # Refused even beside ordinary functions of the name: those are old versions, kept for old programs (libc's
        # memcpy), which would never be visited.
        if binary.functions.ifunc[row]:
            raise _indirect(spec, binary, row)
    return [_probe(binary, row, spec.function) for binary, row in found]


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
        if word not in readable or ".cold" in symbol or ".part." in symbol:
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
    offset = int(functions.start[row])
    symbol = wanted if wanted in functions.aliases.get(row, ()) else functions.names[row]
    cheap = first_instruction_is_cheap(binary.read(offset, 8), binary.machine)
    vaddr = binary.vaddr(offset)
    assert vaddr is not None, "functions lie in segments"
    return Probe(binary.path, offset, vaddr, symbol, cheap)


def _refuse_later_kinds(spec: str) -> None:
    kind = next((name for prefix, name in _LATER.items() if spec.startswith(prefix)), None)
    if kind is None and _SOURCE_LINE.match(spec):
        kind = "a source line (file.c:123)"
    if kind is not None:
        raise CausalError(
            f"progress point {spec}: {kind} is not available yet", "use a function: -p FUNCTION or -p FUNCTION@LIBRARY"
        )


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
    elsewhere = _readable(libraries) if spec.library is None else ()
    others = [binary.name for binary in elsewhere if find_function(binary, spec.function)]
    hints = [f"{name} has it: -p {spec.function}@{name}" for name in others[:1]]
    near = near_names(spec.function, (name for binary in binaries for name in _typed_names(binary)))
    if near and not hints:
        hints.append("did you mean " + ", ".join(near) + "?")
    if not others and any(binary.is_stripped for binary in binaries):
        hints.append(f"{where} is stripped: only the functions it exports have names; use a build with symbols")
    elif not hints:
        hints.append("an inlined function has no symbol; choose its caller, or build with -fno-inline-functions")
    return CausalError(f"progress point {spec.text}: no function {spec.function} in {where}", "; ".join(hints))


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
        f"progress point {spec.text}: {spec.function} is an indirect function (IFUNC) of {binary.name}; "
        "a probe would count how often an implementation is chosen, which is once",
        hint,
    )


def _readable(libraries: Iterable[Binary | str]) -> Iterator[Binary]:
    for library in libraries:
        try:
            yield Binary.load(library) if isinstance(library, str) else library
        except CausalError:
            continue


def _typed_names(binary: Binary) -> Iterator[str]:
    """What a user would type for each function."""
    for name, _ in binary.functions.all_names():
        yield base_name(demangle(name))
