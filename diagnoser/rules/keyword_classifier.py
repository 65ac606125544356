"""Classifies a line that no rule knows by its keywords: the last resort before ``unknown``. The words are data,
``rules/keywords.yaml``.

A word list names the right type far less often than ordered rules do (GPUAlert: 70.8 % against 95.8 %), so it is
asked only about exceptions whose class says nothing and about logs in which nothing else was found; its verdicts have
their own, lower confidence. It needs no anchors: it only reads lines that are kept anyway.
"""

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from diagnoser.model import expressions, yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import PatternText, not_re2
from diagnoser.rules.statements import without_advice

_LONGEST = 2048
"""Characters of a line that are read."""
_OPTIONS = expressions.quiet_options(64 << 20, ignore_case=True)
_URL_PATH = re.compile(r"(https?://[^\s/]{1,255})/\S*")
"""The page that a message refers to; its words are not the message's."""


class _Examples(StrictModel):
    match: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    no_match: Annotated[tuple[PatternText, ...], Field(min_length=1)]


class _Calm(StrictModel):
    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    examples: _Examples


class _KeywordEntry(_Calm):
    type: FailureType


class KeywordRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    trouble: PatternText
    calm: _Calm
    keywords: Annotated[tuple[_KeywordEntry, ...], Field(min_length=1)]


class KeywordClassifier:
    """A compiled table. It keeps no state between lines and may be shared by threads."""

    def __init__(self, table: KeywordRows) -> None:
        self._table = table

    def says(self, text: str) -> FailureType | None:
        """The type that the words of a failing exception's message name first in the table; None without any."""
        entry = self._first(text)
        return None if entry is None else self._table.keywords[entry].type

    def complains(self, text: str) -> FailureType | None:
        """Like ``says``, for a line that need not be about a failure: calm words clear it."""
        return None if self._is_calm(text) else self.says(text)

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        calm = self._table.calm.examples
        messages = [f"calm.match: {text!r} is not cleared" for text in calm.match if not self._is_calm(text)]
        messages += [f"calm.no_match: {text!r} is cleared" for text in calm.no_match if self._is_calm(text)]
        for number, entry in enumerate(self._table.keywords):
            where = f"keywords.{number} ({entry.type})"
            missed = [text for text in entry.examples.match if self._is_calm(text) or self._first(text) != number]
            messages += [f"{where}: {text!r} is not named by it" for text in missed]
            messages += [f"{where}: {text!r} hits" for text in entry.examples.no_match if number in self._entries(text)]
        return [Fault(path, 0, what) for what in messages]

    def _first(self, text: str) -> int | None:
        return min(self._entries(text), default=None)

    def _entries(self, text: str) -> set[int]:
        """Numbers of the entries that match."""
        patterns, owners = self._keywords
        return {
            owners[number] for number in patterns.Match(_URL_PATH.sub(r"\1", without_advice(text[:_LONGEST]))) or ()
        }

    def _is_calm(self, text: str) -> bool:
        return bool(self._calm.Match(text[:_LONGEST]))

    @cached_property
    def _keywords(self) -> tuple[Any, list[int]]:
        """All patterns as one set, and the entry that each belongs to."""
        owned = [(number, text) for number, entry in enumerate(self._table.keywords) for text in entry.patterns]
        patterns = (_pattern(self._table, text) for _, text in owned)
        return expressions.search_set(patterns, _OPTIONS), [number for number, _ in owned]

    @cached_property
    def _calm(self) -> Any:
        return expressions.search_set(self._table.calm.patterns, _OPTIONS)


def load(path: str, text: str, *, tested: bool = False) -> KeywordClassifier:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    table, faults = yaml_loader.read(path, text, KeywordRows)
    if table is not None and not tested:
        for name, entry in (("calm", table.calm), *enumerate(table.keywords)):
            line = yaml_loader.locate(text, *(("calm",) if name == "calm" else ("keywords", name)))
            faults += [Fault(path, line, why) for regex in entry.patterns if (why := not_re2(_pattern(table, regex)))]
    if table is None or faults:
        raise RuleFaults(faults)
    return KeywordClassifier(table)


def _pattern(table: KeywordRows, text: str) -> str:
    return text.replace("{trouble}", table.trouble)
