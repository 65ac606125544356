"""RE2 expressions as sites, people and models write them: compiled without a word on stderr, and refused in RE2's own
words."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import re2

from diagnoser.model.errors import BadInput

T = TypeVar("T")

_ANCHOR_MEMORY = 64 << 20
"""Most bytes of the automaton of an index, which RE2 builds only as far as the texts need it."""


def quiet_options(max_mem: int = 0, *, ignore_case: bool = False) -> Any:
    """max_mem: bytes that RE2 may use for an expression or a set; 0: RE2's own limit."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    if max_mem:
        options.max_mem = max_mem
    return options


def compiled(pattern: str, options: Any = None) -> Any:
    """options: of ``quiet_options``. Raises BadInput."""
    try:
        return re2.compile(pattern, options or quiet_options())
    except re2.error as error:
        why = error.args[0] if error.args else "it is too large"
        words = why.decode("utf-8", "replace") if isinstance(why, bytes) else why
        raise BadInput(f"not an RE2 expression: {words}") from None


def fault(pattern: str, groups: Sequence[str]) -> str:
    """Why ``pattern`` cannot be used, or "". groups: names that its groups may have."""
    try:
        unknown = set(compiled(pattern).groupindex).difference(groups)
    except BadInput as error:
        return str(error)
    return f"unknown group '{min(unknown)}'; known: {', '.join(groups)}" if unknown else ""


def search_set(patterns: Iterable[str | bytes], options: Any = None) -> Any:
    """Compiled patterns for ``matching``. options: of ``quiet_options``."""
    pattern_set = re2.Set.SearchSet(options or quiet_options())
    for pattern in patterns:
        pattern_set.Add(pattern)
    pattern_set.Compile()
    return pattern_set


def matching(pattern_set: Any, text: str) -> list[int]:
    """The indices of the patterns of a set that occur in a text, ascending."""
    return sorted(pattern_set.Match(text) or ())


class AnchorIndex(Generic[T]):
    """Finds the rows of a table that may concern a text: those with a literal, their anchor, that the text contains.

    All anchors are looked for at once, so that only the expressions of these rows need be compiled and searched.
    """

    def __init__(self, rows: Iterable[tuple[T, Iterable[str]]]) -> None:
        """rows: each with its anchors; the anchor "" stands in every text."""
        self._rows: list[T] = []
        numbers: dict[str, list[int]] = {}
        for number, (row, anchors) in enumerate(rows):
            self._rows.append(row)
            for anchor in anchors:
                numbers.setdefault(anchor, []).append(number)
        self._numbers = list(numbers.values())
        self._set = search_set(map(re2.escape, numbers), quiet_options(_ANCHOR_MEMORY))

    def rows(self, text: str) -> list[T]:
        """The rows that may concern the text, in their order."""
        if not self._numbers:
            return []
        numbers = set(chain.from_iterable(self._numbers[anchor] for anchor in matching(self._set, text)))
        return [self._rows[number] for number in sorted(numbers)]
