"""Words of a text, and which diagnoses have them. Both databases find the same.

A search is any text: what is not a letter or a digit only separates its words. All of them must be in the diagnosis, in
any order; a word of three characters or more also stands for longer ones that begin so.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from sqlalchemy import ColumnElement, ScalarSelect, and_, literal, text

PREFIX_LENGTH = 3
WORD_LENGTH = 64
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
_HUMPS = 6
_ASKED = 12
"""Words of a search that count."""

_FULL_TEXT = {
    "sqlite": "number IN (SELECT rowid FROM diagnosis_words_index WHERE diagnosis_words_index MATCH :query)",
    "postgresql": "array_to_tsvector(string_to_array(words, ' ')) @@ CAST(:query AS tsquery)",
}

_SYNTAX = {"sqlite": ('"', " *", " AND "), "postgresql": ("'", ":*", " & ")}
"""How a query of the full-text index quotes a word, marks a beginning, and asks for several."""


def words_of(text: str) -> str:
    """Each word once, in order. A name such as ``ModuleNotFoundError`` is found by its later parts as well."""
    return " ".join(dict.fromkeys(_with_parts(text)))


def asked_words(search: str) -> list[str]:
    return list(dict.fromkeys(word.casefold()[:WORD_LENGTH] for word in _WORD.findall(search)))[:_ASKED]


def has_words(words: ColumnElement[str] | ScalarSelect[str], asked: Sequence[str]) -> ColumnElement[bool]:
    """Looks at the words of each row: for few rows. A database that plans this as a join may begin with all words."""
    padded = literal(" ") + words + " "
    conditions = []
    for word in asked:
        end = "" if _is_prefix(word) else " "
        conditions.append(padded.like(f"% {word}{end}%"))
    return and_(*conditions)


def found_by_index(asked: Sequence[str], dialect: str) -> ColumnElement[bool]:
    """The same, from the full-text index. The words hold nothing that the syntax of a query knows."""
    quote, star, also = _SYNTAX[dialect]
    terms = []
    for word in asked:
        term = f"{quote}{word}{quote}"
        terms.append(term + star if _is_prefix(word) else term)
    return text(_FULL_TEXT[dialect]).bindparams(query=also.join(terms))  # type: ignore[return-value]


def _is_prefix(word: str) -> bool:
    return len(word) >= PREFIX_LENGTH


def _with_parts(text: str) -> Iterator[str]:
    for word in _WORD.findall(text):
        yield word.casefold()[:WORD_LENGTH]
        for hump in islice(_HUMP.finditer(word[:WORD_LENGTH]), _HUMPS):
            yield word[hump.start() :].casefold()[:WORD_LENGTH]
