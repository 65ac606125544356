"""Patterns as they look to a blurred line (``skeleton.blurred``): one digit for a number, one blank for a gap.

A decision about a blurred line holds for all lines that blur to it, whichever of them a process saw first. For
that a pattern is rewritten so that it matches the blur of every line that it matches: atoms that can share a run of
digits or of blanks with the atom before them become optional, counts of what collapses become "once".
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from diagnoser.compress.line_masking import GAP_BYTES

_DIGIT, _BLANK, _OTHER = 1, 2, 4
_ANY = _DIGIT | _BLANK | _OTHER
_GAPS = " \t-"
_BLURS = {_DIGIT: "0", _BLANK: " "}
"""The character that a run of such characters becomes."""
_BEYOND_ASCII = re.compile(r"\\[WDS]")
"""Members of a class that match characters beyond ASCII."""
_WIDE = r"(?:[\x80-\xff ]{0,4})"
"""What may be left of a character beyond ASCII of which a byte becomes a blank."""
_ESCAPES = {
    "d": ("0", _DIGIT),
    "s": (" ", _BLANK),
    "t": (" ", _BLANK),
    "w": (r"\w", _DIGIT | _OTHER),
    "W": (r"\W", _BLANK | _OTHER),
    "D": (r"\D", _BLANK | _OTHER),
    "S": (".", _ANY),  # also a minus, which is a gap in a blurred line
}
_WIDTHLESS = {"b", "B", "A", "z", "Z", "<", ">"}
_LOOKS = frozenset({"(?=", "(?!", "(?<=", "(?<!"})
"""Only prefixes of dialects look around; what they look for is told by letters and brackets, which a blur keeps."""
_TOKEN = re.compile(
    r"\\x\{[0-9A-Fa-f]+\}|\\x[0-9A-Fa-f]{2}|\\[pP](?:\{\^?\w+\}|\w)|\\."
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"
    r"|\(\?P?<\w+>|\(\?[imsU-]*[:)]|\(\?<?[=!]|[()|^$.]"
    r"|[*+?][?+]?|\{\d+(?:,\d*)?\}[?+]?"
    r"|.",
    re.DOTALL,
)
_MEMBER = re.compile(r"\[:\^?\w+:\]|(\\.|[^\\])-(\\.|[^\\\]])|\\.|.", re.DOTALL)


class _Part(NamedTuple):
    """source: blurred. last: what the text that it matched may end with. empty: it may match nothing."""

    source: str
    last: int
    empty: bool


@lru_cache(maxsize=8192)
def blur(pattern: str) -> str:
    """An RE2 pattern that matches ``blurred(text)`` wherever ``pattern`` matches ``text``. Groups lose their names."""
    tokens = _TOKEN.findall(pattern)
    part, at = _choice(tokens, 0, 0)
    if at < len(tokens):
        raise ValueError(f"unbalanced ')' in {pattern}")
    return part.source


def asks_for_digits(pattern: str) -> bool:
    """Whether a pattern names some digit, so that of two lines with the same blur it may match only one."""
    return any(map(_asks_for_digits, _TOKEN.findall(pattern)))


@lru_cache(maxsize=1024)
def _asks_for_digits(text: str) -> bool:
    if _is_class(text):
        digits = _chars_of(text[1:-1].removeprefix("^")) & set("0123456789")
        return 0 < len(digits) < 10
    if text.startswith(("{", "(", r"\p", r"\P")):
        return False  # a digit in it is a count or part of a name
    return "0" <= _char(text) <= "9"


def _choice(tokens: list[str], at: int, before: int) -> tuple[_Part, int]:
    """Alternatives up to a closing bracket or the end. before: what the text in front may end with."""
    sources: list[str] = []
    last, empty = 0, False
    while True:
        part, at = _sequence(tokens, at, before)
        sources.append(part.source)
        last, empty = last | part.last, empty | part.empty
        if tokens[at : at + 1] != ["|"]:
            return _Part("|".join(sources), last, empty), at
        at += 1


def _sequence(tokens: list[str], at: int, before: int) -> tuple[_Part, int]:
    sources: list[str] = []
    last, empty, previous = before, True, ""
    while at < len(tokens) and tokens[at] not in ("|", ")"):
        part, at = _piece(tokens, at, last)
        run = part.source.rstrip("?")
        if run not in ("0", " ") or run != previous:
            sources.append(part.source)  # else the run that it would match is one character, and taken
            previous = run
        last, empty = part.last | (last if part.empty else 0), empty & part.empty
    return _Part("".join(sources), last, empty), at


def _piece(tokens: list[str], at: int, before: int) -> tuple[_Part, int]:
    """An atom or a group with its quantifier."""
    text = tokens[at]
    if text in _LOOKS:
        part, end = _choice(tokens, at + 1, before)
        return _Part(f"{text}{part.source})", before, True), end + 1
    if text == "^":  # the gap behind a prefix may be gone with it
        return _Part(text, before | _BLANK, True), at + 1
    if _is_widthless(text):
        return _Part(text, before, True), at + 1
    if text[0] == "(":
        return _group(tokens, at, before)
    source, kind = _atom(text)
    least, most, at = _count(tokens, at + 1)
    if kind in (_DIGIT, _BLANK):
        optional = least == 0 or bool(kind & before)
        return _Part(source + "?" * optional, kind, optional), at
    if kind == _OTHER:
        return _Part(source + _times(least, most), kind, least == 0), at
    least = 0 if kind & before & ~_OTHER else min(least, 1)
    return _Part(source + _times(least, most), kind, least == 0), at


@lru_cache(maxsize=1024)
def _is_widthless(text: str) -> bool:
    """Whether a token is the end of the line, a border of a word, or sets flags."""
    if text[0] == "\\":
        return text[1] in _WIDTHLESS
    return re.fullmatch(r"\$|\(\?[imsU-]+\)", text) is not None


def _group(tokens: list[str], at: int, before: int) -> tuple[_Part, int]:
    head = tokens[at] if tokens[at].endswith(":") else "(?:"
    part, end = _choice(tokens, at + 1, before)
    if end >= len(tokens):
        raise ValueError("missing ')'")
    least, most, after = _count(tokens, end + 1)
    if most != 1:  # what it ends with stands before its next round
        part, _ = _choice(tokens, at + 1, before | part.last)
    empty = part.empty or least == 0
    return _Part(f"{head}{part.source}){_times(least, most)}", part.last, empty), after


_QUANTIFIERS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def _count(tokens: list[str], at: int) -> tuple[int, int | None, int]:
    """(at least, at most or None, next) of the quantifier at ``at``, if there is one."""
    text = "".join(tokens[at : at + 1])
    if text[:1] in _QUANTIFIERS:
        return *_QUANTIFIERS[text[0]], at + 1
    if text.startswith("{") and text != "{":
        low, comma, high = text.rstrip("?+")[1:-1].partition(",")
        if not comma:
            return int(low), int(low), at + 1
        return int(low), int(high) if high else None, at + 1
    return 1, 1, at


@lru_cache(maxsize=1024)
def _times(least: int, most: int | None) -> str:
    signs = {(1, 1): "", (0, 1): "?", (0, None): "*", (1, None): "+"}
    return signs.get((least, most), f"{{{least},{'' if most is None else most}}}")


@lru_cache(maxsize=1024)
def _atom(text: str) -> tuple[str, int]:
    """(blurred source, what it may match)."""
    if text == ".":
        return text, _ANY
    if _is_class(text):
        return _class(text)
    if text[:2] in (r"\p", r"\P", r"\C"):
        return ".", _ANY
    if _is_escape(text):
        return _ESCAPES[text[1]]
    if text[0] > "\x7f" and set(GAP_BYTES) & set(text.encode()):
        return _WIDE, _BLANK | _OTHER
    kind = _kind(_char(text))
    return _BLURS.get(kind, text), kind


def _is_escape(text: str) -> bool:
    """Whether a token stands for a class of characters."""
    if text[0] != "\\":
        return False
    return text[1] in _ESCAPES


def _is_class(text: str) -> bool:
    return text.startswith("[") and text != "["


def _class(text: str) -> tuple[str, int]:
    """A class that may match a digit also matches the 0, one that may match a sign or a blank the blank."""
    negated = text.startswith("[^")
    inner = text[1:-1].removeprefix("^")
    chars = _chars_of(inner)
    matched = [char for char in map(chr, range(128)) if (char in chars) is not negated]
    kind = sum(set(map(_kind, matched)))  # each kind is a bit
    if negated or _BEYOND_ASCII.search(inner):
        kind |= _OTHER
    if kind in _BLURS:
        return _BLURS[kind], kind
    missing = "".join(char for bit, char in _BLURS.items() if kind & bit and char not in matched)
    if not missing:
        return text, kind
    if negated:
        return f"(?:{text}|[{missing}])", kind
    front = 2 if text[1] in "]-" else 1  # in front these two stand for themselves
    return f"{text[:front]}{missing}{text[front:]}", kind


@lru_cache(maxsize=1024)
def _chars_of(inner: str) -> frozenset[str]:
    """The ASCII characters that the members of a class match."""
    chars: set[str] = set()
    for match in _MEMBER.finditer(inner):
        member = match.group()
        if member.startswith("[:"):
            chars.update(map(chr, range(128)))
        elif match.group(1):
            chars.update(map(chr, range(ord(_char(match.group(1))), min(ord(_char(match.group(2))), 127) + 1)))
        elif _is_escape(member):
            chars.update(re.findall(member, "".join(map(chr, range(128))), re.ASCII))
        else:
            chars.add(_char(member))
    return frozenset(chars)


def _char(text: str) -> str:
    """The character of a literal or an escape."""
    if text.startswith(r"\x"):
        return chr(int(text[2:].strip("{}"), 16))
    if text[0] == "\\" and len(text) > 1:
        return {"n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}.get(text[1], text[1])
    return text


def _kind(char: str) -> int:
    if "0" <= char <= "9":
        return _DIGIT
    if char in _GAPS:
        return _BLANK
    return _OTHER
