"""Classifies a line that no rule knows by its keywords: the last resort before ``unknown``. The words are data,
``rules/keywords.yaml``.

A word list names the right type far less often than ordered rules do (GPUAlert: 70.8 % against 95.8 %), so it is
asked only about exceptions whose class says nothing and about logs in which nothing else was found; its verdicts have
their own, lower confidence. It needs no anchors: it only reads lines that are kept anyway.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from diagnoser.model import expressions
from diagnoser.model.errors import Fault
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import Mistake, PatternRow, PatternText, example_mistakes, load_table, row_mistakes
from diagnoser.rules.statements import without_advice

_LONGEST = 2048
"""Characters of a line that are read."""
_OPTIONS = expressions.quiet_options(64 << 20, ignore_case=True)
_URL_PATH = re.compile(r"(https?://[^\s/]{1,255})/\S*")
"""The page that a message refers to; its words are not the message's."""


class _KeywordEntry(PatternRow):
    type: FailureType


class KeywordRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    trouble: PatternText
    calm: PatternRow
    keywords: Annotated[tuple[_KeywordEntry, ...], Field(min_length=1)]

    def expanded(self, row: PatternRow) -> Iterator[str]:
        return (text.replace("{trouble}", self.trouble) for text in row.patterns)


class KeywordClassifier:
    """A compiled table. It keeps no state between lines and may be shared by threads."""

    def __init__(self, table: KeywordRows) -> None:
        self._table = table

    def says(self, text: str) -> FailureType | None:
        """The type that the words of a failing exception's message name first in the table; None without any."""
        entries = self._entries(text)
        return self._table.keywords[min(entries)].type if entries else None

    def complains(self, text: str) -> FailureType | None:
        """Like ``says``, for a line that need not be about a failure: calm words clear it."""
        if self._is_calm(text):
            return None
        return self.says(text)

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        messages = []
        for name, text in example_mistakes(self._table.calm.examples, self._is_calm):
            is_not = {"match": "is not", "no_match": "is"}[name]
            messages.append(f"calm.{name}: {text!r} {is_not} cleared")
        for number, entry in enumerate(self._table.keywords):
            where = f"keywords.{number} ({entry.type})"
            for text in entry.examples.match:
                if self._is_calm(text) or min(self._entries(text), default=-1) != number:
                    messages.append(f"{where}: {text!r} is not named by it")
            for text in entry.examples.no_match:
                if number in self._entries(text):
                    messages.append(f"{where}: {text!r} hits")
        return [Fault(path, 0, what) for what in messages]

    def _entries(self, text: str) -> set[int]:
        """Numbers of the entries that match."""
        patterns, owners = self._keywords
        stated = _URL_PATH.sub(r"\1", without_advice(text[:_LONGEST]))
        return {owners[number] for number in expressions.matching(patterns, stated)}

    def _is_calm(self, text: str) -> bool:
        return bool(self._calm.Match(text[:_LONGEST]))

    @cached_property
    def _keywords(self) -> tuple[Any, list[int]]:
        """All patterns as one set, and the entry that each belongs to."""
        patterns, owners = list[str](), list[int]()
        for number, entry in enumerate(self._table.keywords):
            patterns += self._table.expanded(entry)
            owners += [number] * len(entry.patterns)
        return expressions.search_set(patterns, _OPTIONS), owners

    @cached_property
    def _calm(self) -> Any:
        return expressions.search_set(self._table.calm.patterns, _OPTIONS)


def load(path: str, text: str, *, tested: bool = False) -> KeywordClassifier:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    return KeywordClassifier(load_table(path, text, KeywordRows, _mistakes, tested=tested))


def _mistakes(table: KeywordRows) -> Iterator[Mistake]:
    """The patterns that cannot be used, each with the row that it stands in."""
    yield from row_mistakes(("calm",), table.expanded(table.calm))
    for number, entry in enumerate(table.keywords):
        yield from row_mistakes(("keywords", number), table.expanded(entry))
