"""rich's layout: a time, a level and a file in columns beside the message, whose further lines are indented; and the
boxes that it draws around tracebacks.
"""

import re

_HEAD = re.compile(r"(?:\[[^\]\n]{4,40}\] | {6,42})(?:DEBUG   |INFO    |WARNING |ERROR   |CRITICAL) (?=\S)")
_FILE = re.compile(r"\s{1,400}[\w.<>-]{1,80}:\d{1,6}\s{0,8}$")
_TITLE = re.compile(r"\s*╭─{1,200} Traceback \(most recent call last\) ─{1,200}╮")
_FRAME = re.compile(r"\s*│ (?P<file>[^│\n]{1,400}):(?P<line>\d{1,7}) in (?P<name>[\w.<>]{1,120}) {1,400}│")
_CODE = re.compile(r"\s*│ ❱ {0,8}\d{1,7} [│ ]{0,80}(?P<code>[^│\n]{1,400}?) {1,400}│")
_SIDE = re.compile(r"\s*[│╭╰]")
_END = re.compile(r"\s*╰─{1,400}╯")
_STARTS = re.compile(
    r"(?:[A-Za-z_][\w.]{0,120}(?:Error|Exception|Warning|Interrupt|Exit)\b|Traceback |During |The above )"
)


def column_of(text: str) -> int:
    """Where the message begins; 0 where the line is none of rich's."""
    head = _HEAD.match(text)
    return head.end() if head else 0


def message_of(text: str, column: int) -> tuple[str, int]:
    """(the message in the line, the width of its column); the width is 0 where no file stands beside it."""
    file = _FILE.search(text, column)
    if file is None:
        return text[column:].rstrip(), 0
    place = len(file[0]) - len(file[0].lstrip())
    return text[column : file.start()].rstrip(), file.start() + place - 1 - column


def below(text: str, column: int) -> str | None:
    """A line below the message of a record, from its column on; None where it begins before."""
    if text[:column].strip():
        return None
    return text[column:].rstrip() if column else text


def wraps(before: str, text: str, width: int) -> bool:
    """Whether ``text`` is the rest of the line before it: its first word had no room there."""
    if not width:
        return False
    if not before.strip():
        return False
    if not text[:1].strip():
        return False  # nothing, or indented
    if _STARTS.match(text):
        return False
    return len(before) + 1 + len(text.split(maxsplit=1)[0]) > width


def begins_box(text: str) -> bool:
    return _TITLE.match(text) is not None


def in_box(text: str) -> bool:
    return _SIDE.match(text) is not None


def ends_box(text: str) -> bool:
    return _END.match(text) is not None


def unboxed(text: str) -> str:
    """A line of the box around a traceback as Python prints it; "" for one that Python does not print."""
    if begins_box(text):
        return "Traceback (most recent call last):"
    if frame := _FRAME.match(text):
        return f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}'
    if code := _CODE.match(text):
        return f"    {code['code']}"
    return ""
