"""Reads the record of one line."""

from functools import lru_cache
from typing import Any

from diagnoser.model import Severity, expressions
from diagnoser.records import forms

_HEAD = 320
"""Characters in which the head of a record must end."""
_HEADS = tuple(expressions.compiled(form.pattern) for form in forms.HEADS)
_ANY_HEAD = expressions.search_set(form.pattern for form in forms.HEADS)


def severity_of(message: str) -> Severity | None:
    """The level that the head of a line's message states; None where it has no head."""
    return _severity_of(message[:_HEAD])


@lru_cache(maxsize=4096)
def _severity_of(head: str) -> Severity | None:
    for number in sorted(_ANY_HEAD.Match(head) or ()):
        return _level(_HEADS[number].search(head))
    return None


def _level(match: Any) -> Severity | None:
    name = next(filter(None, match.groups()))
    return forms.LEVELS.get(name.lower())
