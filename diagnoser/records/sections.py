"""Lines of their own that name a stream, for all lines below them up to the next one: a prefix that is written once.

``tail`` shows several files so, and tools that run a command on many machines show the output of each.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnoser.records import stream_names

END = "\x1f"
"""Between the name of its section and a line, as a ``LearnedPrefix`` reads it."""
_RULE = r"[=*#~+-]{2,80}"
_SUFFIX = r"(?:[/._-](?:std)?(?:out|err))?(?:\.(?:log|out|err|txt))?"
_STATUS = re.compile(r"(?P<name>[\w.-]{1,80})(?: \| [\w=!]{1,20}){1,3} >>$")
"""Nothing else ends so: a single one names its section, too."""
_HEADINGS = (
    re.compile(rf"{_RULE}[> ]{{0,3}}(?P<name>[\w/(\[][^\n]{{0,120}}?){_SUFFIX}[:]?[< ]{{0,3}}{_RULE}$"),
    re.compile(rf"[>=*#~-]{{2,80}} {{1,3}}(?P<name>[\w./-]{{1,120}}?){_SUFFIX}$"),
    _STATUS,
    re.compile(r"(?P<name>\w[^:()\n]{0,60}):$"),
)
_BETWEEN = re.compile(r"(?P<name>[\w.-]{1,80}(?:\[[\d,-]{1,40}\])?)$")
"""A name alone, between two rules."""
_IS_RULE = re.compile(r"[=*#~-]{4,200}$")
_VERDICT = re.compile(rb'(?<=\S)non-zero return code(?=["\s]|$)')
"""What Ansible writes right behind the last line that a command printed."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of a stream. numbers: of the headings, ascending, each with the name that it tells."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def labelled(self, number: int, line: bytes) -> bytes:
        """The line behind the name of its section, if it is in one."""
        place = bisect_right(self.numbers, number) - 1
        if place < 0 or self.numbers[place] == number:
            return line
        return f"{self.names[place]}{END}".encode() + _VERDICT.sub(b"", line)


def find_sections(lines: Sequence[tuple[int, str]], counted: Sequence[tuple[str, int]]) -> Sections:
    """The sections of a stream; none where a heading may be missing.

    lines: those that are kept, with their numbers.
    counted: a line of each shape of the stream, and how many lines have that shape.
    """
    for headings in sorted(_headings(lines), key=len, reverse=True):
        texts = [line for number, line in lines if number in headings]
        if len(set(headings.values())) < 2 and not all(map(_STATUS.match, texts)):
            continue
        shapes = set(map(stream_names.skeleton, texts))
        if sum(count for line, count in counted if stream_names.skeleton(line) in shapes) <= len(headings):
            return Sections(tuple(headings), tuple(headings.values()))
    return Sections()


def _headings(lines: Sequence[tuple[int, str]]) -> Iterable[dict[int, str]]:
    """Number -> name of the lines that have the form of a heading, those whose names are alike together."""
    groups = dict[tuple[re.Pattern[str], str], dict[int, str]]()
    for place, (number, line) in enumerate(lines):
        match = next(filter(None, (form.match(line) for form in _HEADINGS)), None) or _between_rules(lines, place)
        if match and _may_be_name(match["name"]):
            groups.setdefault((match.re, _kind(match["name"])), {})[number] = match["name"]
    return groups.values()


def _between_rules(lines: Sequence[tuple[int, str]], place: int) -> re.Match[str] | None:
    if not 0 < place < len(lines) - 1:
        return None
    if not all(_IS_RULE.match(lines[beside][1]) for beside in (place - 1, place + 1)):
        return None
    return _BETWEEN.match(lines[place][1])


def _may_be_name(name: str) -> bool:
    """Whether it is a word with a number, or several that say which process they are of; and no counter."""
    if stream_names.is_none(name):
        return False
    return stream_names.is_called_stream(name) or (" " not in name and stream_names.is_numbered(name))


def _kind(name: str) -> str:
    """What the names of a set of streams have in common: that they say what they are, else all but their numbers."""
    return "" if stream_names.is_called_stream(name) else stream_names.skeleton(name)
