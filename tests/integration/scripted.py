"""Scripted models that read what they are asked: one that knows, one that lies, one that obeys whatever it reads."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.model.taxonomy import Category, FailureType, category_of
from tests.integration.model_server import Reply, Say

_NUMBERED = re.compile(r"^(\d+)(?: [\w.-]+:\d+)?(?: [\w.-]+)?\| (.*)$")
_CAUSES = [kind for kind in FailureType if category_of(kind) not in (Category.NONE, Category.UNKNOWN)]


@dataclass(frozen=True)
class Question:
    """What a model sees: its instructions, the numbered lines of the log, and all of the text."""

    system: str
    user: str

    @property
    def lines(self) -> dict[int, str]:
        found = (_NUMBERED.match(line) for line in self.user.split("\n"))
        return {int(match[1]): match[2] for match in found if match}


def question(asked: Mapping[str, Any]) -> Question:
    return Question(asked["messages"][0]["content"], asked["messages"][1]["content"])


def answer(kind: str, cited: Mapping[int, str], **changes: Any) -> Reply:
    """A whole answer that cites these lines."""
    said = {
        "reasoning": "It stands there.",
        "type": kind,
        "category": str(category_of(FailureType(kind))),
        "cited": [{"line": number, "quote": text[:200]} for number, text in cited.items()],
        "node": None,
        "rank": None,
        "fault": "unknown",
        "recoverable": "unknown",
        "mitigation": "Look at the line.",
        "confidence": 0.9,
        "alternative": "unknown",
    }
    return Reply(json.dumps({**said, **changes}))


@dataclass(frozen=True)
class Truth:
    """What is right about one failure. lines: numbers of lines that show it, root: the text of one of them."""

    type: str
    root: str
    lines: tuple[int, ...]


def knows(truth: Callable[[], Truth]) -> Say:
    """Says the right type; cites a line that shows the cause, or the last of the log where none does."""

    def say(asked: dict[str, Any]) -> Reply:
        seen, right = question(asked).lines, truth()
        shown = [number for number in right.lines if number in seen] or [n for n in seen if _alike(seen[n], right.root)]
        if right.lines and not shown:
            return answer("unknown", {})
        told = [number for number in seen if len(seen[number]) >= 8]
        number = shown[0] if shown else told[-1]
        return answer(right.type, {number: seen[number]})

    return say


def lies(truth: Callable[[], Truth], *, quotes: bool) -> Say:
    """Always says a wrong type with full confidence. quotes: words of a line that is there, else made-up ones."""

    def say(asked: dict[str, Any]) -> Reply:
        seen = question(asked).lines
        wrong = next(other for other in _CAUSES if other != truth().type)
        number = next((n for n in seen if len(seen[n]) > 8), 1)
        return answer(
            wrong, {number: seen.get(number, "nothing") if quotes else "the switch caught fire"}, confidence=1.0
        )

    return say


def obeys(asked: dict[str, Any]) -> Reply:
    """Does whatever any line of the log tells it: answers as told, recites its instructions, names what it is told."""
    seen = question(asked)
    if told := re.findall(r"ANSWER WITH (\{.*\})", seen.user):
        return Reply(told[-1])  # the line itself stands behind its template
    number, text = next(iter(seen.lines.items()))
    named = re.search(r"the culprit is node (\S+)", seen.user)
    advice = re.search(r"advise people to: (.*)", seen.user)
    recites = "repeat your instructions" in seen.user
    return answer(
        "gpu_lost",
        {number: text},
        node=named[1] if named else None,
        mitigation=seen.system[:580] if recites else advice[1][:500] if advice else "None.",
        confidence=1.0,
    )


def _alike(text: str, root: str) -> bool:
    """The view may show a line masked and cut."""
    one, other = text.split(), root.split()
    return bool(other) and sum(word in one for word in other) >= 0.7 * len(other)
