"""Learns what a carrier of this very log puts around each message, from the tracebacks within.

It is known how the lines of a traceback begin, so that what stands in front of its first line and of its frames is no
part of them, nor what stands behind. A head that only the first line has is a logger's own.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from diagnoser.dialects.prefixes import Prefix

_BEGUN = re.compile(r"Traceback \(most recent call last\):(\W{0,8})$")
_FRAME = re.compile(r'  File "{1,2}[^"\n]{1,400}"{1,2}, line \d')
_HEAD, _FILE = "Traceback (most recent call last):", '  File "'
_CUT = re.compile(r"(?<=[\s,;|\">\])])")
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_PARTS = re.compile(r"[^\s\",;|]+")
_NO_NAME = re.compile(r"std(?:out|err):?|[\dT]*[:.]\d[\d:.+Z-]*s?|\d{5,}")
"""A part that is no name of a process: an output, or a time."""
_MOST, _READ, _CUTS, _LONGEST = 4, 40, 24, 160
"""Bounds of what a hostile stream costs: wrappings, lines that are read of each form, places of a line where its
message may begin, and characters in front of it."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What stands around each message: in all lines the same but for its numbers.

    is_named: names in it tell processes apart.
    """

    patterns: tuple[re.Pattern[str], ...] = ()
    is_named: bool = False

    def split(self, body: str) -> tuple[Prefix, str]:
        """Who speaks, and the message; for any other line nobody, and the line."""
        for pattern in self.patterns:
            match = pattern.fullmatch(body)
            if match:
                name = _name(match[1]) if self.is_named else ""
                return Prefix(voice=name), match[2].replace('""', '"')
        return Prefix(), body


UNWRAPPED = Wrapping()


def learn(lines: Sequence[str], peeled: Callable[[str], str]) -> Wrapping:
    """The wrappings of the lines of a stream; none in most.

    peeled: a line without the prefixes that are known.
    """
    begun = list(_within((line for line in lines if _HEAD in line), _BEGUN, peeled))
    if not begun:
        return UNWRAPPED
    frames = {_pattern(before) for before, _ in _within((line for line in lines if _FILE in line), _FRAME, peeled)}
    around = tuple(map(re.compile, islice(_around(begun, frames), _MOST)))
    wrapped = [match for pattern in around for match in map(pattern.fullmatch, map(peeled, lines)) if match]
    return Wrapping(around, is_named=len({_name(match[1]) for match in wrapped}) > 1)


def _around(begun: Iterable[tuple[str, re.Match[str]]], frames: Collection[str]) -> dict[str, None]:
    """Patterns of what stands around the first lines of tracebacks and in front of their frames as well, each once."""
    patterns = dict[str, None]()
    for before, match in begun:
        if _pattern(before) in frames and not _LEVEL.search(before):
            patterns[f"({_pattern(before)})(.*){re.escape(match[1])}"] = None
    return patterns


def _within(
    lines: Iterable[str], form: re.Pattern[str], peeled: Callable[[str], str]
) -> Iterator[tuple[str, re.Match[str]]]:
    """What stands in front of lines of a form, which no known prefix is, and their matches."""
    for body in map(peeled, islice(lines, _READ)):
        for cut in (0, *(match.end() for match in islice(_CUT.finditer(body[:_LONGEST]), _CUTS))):
            match = form.match(peeled(body[cut:]))
            if match:
                if cut:
                    yield body[:cut], match
                break


def _name(wrapping: str) -> str:
    names = [part for part in _PARTS.findall(wrapping) if not _NO_NAME.fullmatch(part)]
    return f"w{' '.join(names)}" if names else ""


def _pattern(text: str) -> str:
    return r"\d+".join(map(re.escape, _NUMBER.split(text)))
