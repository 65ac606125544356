"""What lines state: their text without the advice in it, and the lines without those that only repeat others late.

Advice tells what may lead to such a failure ("common causes include: (1) SIGKILL by the OOM killer, (2) ..."). What it
lists happened elsewhere, if at all: none of it may be taken for the cause.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import methodcaller
from typing import Any

from diagnoser.dialects.runtimes import repetition
from diagnoser.model import Evidence, Line
from diagnoser.model.evidence import selected
from diagnoser.rules.quotations import without_quotations

_ADVICE = re.compile(
    r"(?i)(?<![\w-])(?:"
    r"(?:(?:some|the|other|most|several|there are) ){0,3}(?:common|possible|likely|typical|potential|probable|usual)"
    r"(?: \w{1,20}){0,2} (?:causes?|reasons?|explanations?)\b"
    r"|(?:causes?|reasons?) (?:this )?(?:may|might|can|could) (?:be|include|occur|happen)\b"
    r"|(?:this|that|it|which|these)(?: \w{1,20}){0,2} (?:can|may|might|could)(?: (?:also|sometimes|often)){0,2}"
    r" (?:also )?(?:happen|occur|be (?:also )?(?:caused|due|because|the result|a result)|arise|result from|indicate)\b"
    r"|it(?: i|')s (?:also )?possible that\b"
    r")"
)
_ITEM = re.compile(r"\s*(?:[-*•–·+]|\(?(?:\d{1,2}|[a-zA-Z])[.):])\s")
_ITEMS = 16
"""Most lines of a list that a line of advice introduces."""


def advice_at(text: str) -> int:
    """Where ``text`` goes on with what may have led to it; its length where it does not. What begins behind that place
    is no statement; a message that a rule knows may well reach into it."""
    match = _ADVICE.search(text)
    return match.start() if match else len(text)


def stated_matches(patterns: Iterable[Any], text: str) -> list[Any]:
    """The first match of each RE2 pattern in ``text``; what only advice lists is no match."""
    matches = list(filter(None, map(methodcaller("search", text), patterns)))
    if not matches:
        return []  # most often: the advice need not be looked for
    advice = advice_at(text)
    return [match for match in matches if match.start() < advice]


def without_advice(text: str) -> str:
    """``text`` without what may have led to it."""
    return text[: advice_at(text)]


def stated_lines(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines, their bodies without advice."""
    return tuple(map(_stated_line, lines))


def _stated_line(line: Line) -> Line:
    body = without_advice(line.body)
    if body == line.body:
        return line
    return replace(line, body=body)


def stated(evidence: Evidence) -> Evidence:
    """The evidence with empty bodies for the items of lists of advice, and without two kinds of lines: those that quote
    an earlier diagnosis, and those that a collector held back and printed after what came of them, where the line that
    each repeats is there. Steps that only such lines tell at the end were made before it."""
    evidence = without_quotations(evidence)
    lines = list(evidence.lines)
    for index in _items_of_advice(evidence.lines):
        lines[index] = replace(lines[index], body="")
    return _without_repetitions(replace(evidence, lines=tuple(lines)))


def _items_of_advice(lines: Sequence[Line]) -> Iterator[int]:
    left = 0
    for index, (before, line) in enumerate(pairwise(lines), 1):
        if before.body.rstrip().endswith(":") and advice_at(before.body) < len(before.body):
            left = _ITEMS
        if line.speaker != before.speaker:
            left = 0
        if left and _may_be_item(line.body):
            left -= 1
            yield index
        else:
            left = 0


def _may_be_item(body: str) -> bool:
    if not body.strip():
        return True
    return bool(_ITEM.match(body))


def _without_repetitions(evidence: Evidence) -> Evidence:
    repeated: dict[int, str] = {}
    for index, line in enumerate(evidence.lines):
        text = repetition(line.body)
        if text:
            repeated[index] = _shape(text)
    if not repeated:
        return evidence
    printed = {_shape(line.body) for index, line in enumerate(evidence.lines) if index not in repeated}
    rest, numbers = list[int](), set[int]()
    for index, line in enumerate(evidence.lines):
        if repeated.get(index) in printed:
            numbers.add(line.number)
        else:
            rest.append(index)
    last = max((point.line for point in evidence.progress if point.line not in numbers), default=0)
    progress = tuple(point for point in evidence.progress if point.line < last or point.line not in numbers)
    return selected(replace(evidence, progress=progress), rest)


def _shape(text: str) -> str:
    return re.sub(r"\d+", "0", text.strip())
