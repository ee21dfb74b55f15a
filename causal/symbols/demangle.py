"""Names as their authors wrote them: C++ and Rust symbols made readable, and split into what a user would type.

Examples:

    demangle("_ZN3foo3barIiEEvT_")              -> "void foo::bar<int>(int)"
    base_name("void foo::bar<int>(int)")        -> "foo::bar<int>"
    bare_name("foo::bar<int>")                  -> "foo::bar"
"""

from __future__ import annotations

import re
from functools import lru_cache

try:
    from pycxxfilt import demangle as _engine
except ImportError:  # names are then shown as the linker knows them

    def _engine(mangled_name: str, /) -> str | None:
        return None


# rustc before v0: an Itanium name whose last part is "h" and 16 hex digits (rustc, symbol_mangling/legacy.rs).
_RUST_LEGACY = re.compile(r"_ZN(?P<path>.+)17h[0-9a-f]{16}E(?P<suffix>\..*)?$", re.DOTALL)
_RUST_ESCAPE = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$|\.\.")
_RUST_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
# Added by link-time optimisation, different in every build: no part of a name that two runs should share.
_UNSTABLE_SUFFIX = re.compile(r"\.(llvm|lto_priv)\.\d+(?=\.|$)")
_SHOWN_SUFFIX = re.compile(r" \(\.[\w.$]+\)$")
_PARAMETERS_END = re.compile(r"\)(?: const| volatile| &{1,2})*$")
_OPERATOR = re.compile(r"\boperator(?:\(\)|\[\]|\"\" ?\w+| (?:new|delete)\[\]| [^(]+|[^\w\s(]+)")


@lru_cache(maxsize=1 << 17)
def demangle(name: str) -> str:
    """The readable form of a symbol; itself when it is not mangled or cannot be read."""
    if not name.startswith(("_Z", "_R")):
        return _UNSTABLE_SUFFIX.sub("", name) if "." in name else name
    stable = _UNSTABLE_SUFFIX.sub("", name)
    try:
        readable = _rust_legacy(stable) or _engine(stable)
    except (ValueError, TypeError):  # not a mangled name after all, or one with a NUL or a lone surrogate
        return name
    return readable or name


def is_piece(symbol: str) -> bool:
    """Whether a symbol is a part of a function that the compiler put elsewhere (rarely executed code), no function."""
    return ".cold" in symbol or ".part." in symbol


def _rust_legacy(name: str) -> str | None:
    match = _RUST_LEGACY.match(name)
    if match is None:
        return None
    parts, rest = [], match["path"]
    while rest:
        digits = re.match(r"[1-9][0-9]*", rest)
        if digits is None or int(digits[0]) > len(rest) - digits.end():
            return None
        stop = digits.end() + int(digits[0])
        parts.append(_rust_unescape(rest[digits.end() : stop]))
        rest = rest[stop:]
    suffix = match["suffix"]
    return "::".join(parts) + (f" ({suffix})" if suffix else "")


def _rust_unescape(part: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code is None:
            return "::"
        if code in _RUST_ESCAPES:
            return _RUST_ESCAPES[code]
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else match[0]

    # An identifier may not begin with "$", so rustc puts "_" before it.
    return _RUST_ESCAPE.sub(character, part[1:] if part.startswith("_$") else part)


def base_name(readable: str) -> str:
    """A readable C++ name without return type, parameters, qualifiers and clone suffix; other names unchanged."""
    text = _SHOWN_SUFFIX.sub("", readable)
    if " thunk to " in text:  # a jump to the function, not the function
        return text
    masked = _OPERATOR.sub(lambda match: "operator" + "_" * (len(match[0]) - 8), text)
    end = _PARAMETERS_END.search(masked)
    if end is None:
        return text
    opening = _matching_open(masked, end.start())
    if opening <= 0:
        return text
    if masked[opening - 1] == ")" and "(*" in masked[:opening]:  # returns a function pointer: void (*f(int))(char)
        return base_name(text[masked.index("(*") + 2 : opening - 1])
    return text[_last_outer_space(masked[:opening]) + 1 : opening]


def _matching_open(text: str, closing: int) -> int:
    depth = 0
    for position in range(closing, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if depth == 0:
            return position
    return -1


def _last_outer_space(text: str) -> int:
    depth, last = 0, -1
    for position, character in enumerate(text):
        if character in "<([{":
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif character == " " and depth == 0:
            last = position
    return last


def bare_name(base: str) -> str:
    """A base name without template or generic arguments: `Foo<int>::bar<char>` and `foo::bar::<u8>` -> `foo::bar`."""
    if base.startswith("<") or "<" not in base:  # Rust's <Type as Trait>::method has no shorter form
        return base
    masked = _OPERATOR.sub(lambda match: "operator" + "_" * (len(match[0]) - 8), base)
    kept, depth = [], 0
    for position, character in enumerate(masked):
        depth += character == "<"
        if depth == 0:
            kept.append(base[position])
        depth -= character == ">" and depth > 0
    return "".join(kept).removesuffix("::").replace("::::", "::")
