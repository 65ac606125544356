"""Attempts as columns: hundreds of thousands are counted by array, and few of them exist as objects at a time."""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnoser.model import AttemptOutcome
from diagnoser.recovery.failed_runs import Bools, Floats, floats

K = TypeVar("K", bound=Hashable)
Codes = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Categorical(Generic[K]):
    """A column in which values come again and again, or the group of each attempt.

    codes: of each attempt, the place of its value in ``values``.
    """

    codes: Codes
    values: Sequence[K]

    def is_any(self, wanted: Collection[K]) -> Bools:
        return np.array([value in wanted for value in self.values], bool)[self.codes]

    def __getitem__(self, condition: Bools) -> "Categorical[K]":
        """As an array does."""
        return Categorical(self.codes[condition], self.values)

    def paired(self, other: "Categorical[K]") -> "Categorical[tuple[K, K]]":
        pairs, codes = np.unique(self.codes * len(other.values) + other.codes, return_inverse=True)
        values = [divmod(pair, len(other.values)) for pair in pairs.tolist()]
        return Categorical(codes, [(self.values[mine], other.values[its]) for mine, its in values])

    def counts(self, condition: Bools | slice = slice(None)) -> list[int]:
        """Count the attempts of each value that the condition holds for."""
        counts: list[int] = np.bincount(self.codes[condition], minlength=len(self.values)).tolist()
        return counts

    def sums(self, numbers: Floats) -> list[float]:
        """Sum up the numbers of each value exactly: in whichever order they stand."""
        by_value = numbers[np.argsort(self.codes, kind="stable")].tolist()
        ends = accumulate(self.counts(), initial=0)
        return [math.fsum(by_value[start:end]) for start, end in pairwise(ends)]


Texts = Categorical[str | None]


@dataclass(frozen=True, slots=True)
class Attempts:
    """A column for each field of ``AttemptOutcome``, ordered by job and number. NaN in place of None."""

    job: Texts
    number: Floats
    opened: Floats
    ended: Floats
    last_line: Floats
    fatal: Floats
    saved: Floats
    waited: Floats
    startup: Floats
    cluster: Texts
    user: Texts
    gpus: Texts
    outcome: Texts
    category: Texts
    type: Texts
    diagnosed: Floats
    state: Texts
    planned: Floats
    mode: Texts
    reason: Texts
    has_waited: Floats
    is_vouched: Floats
    incident: Texts
    node: Texts

    @classmethod
    def of(cls, parts: Iterable[Sequence[Sequence[Any]]]) -> Self:
        """Read rows in the order of the fields. parts: a thousand rows or so each, which the processor's cache holds
        while they become columns."""
        readers = [_READERS[field.type]() for field in fields(cls)]
        for rows in parts:
            for reader, values in zip(readers, zip(*rows, strict=True), strict=True):
                reader.add(values)
        columns: list[Any] = [reader.column() for reader in readers]
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.opened)

    def where(self, condition: Bools) -> "Attempts":
        return Attempts(*[column[condition] for column in self._columns()])

    def at(self, place: int) -> AttemptOutcome:
        return AttemptOutcome(*[_value(column, place) for column in self._columns()])

    def _columns(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]

    def of_next(self, column: Floats) -> Floats:
        """What the next launch of the same job has; NaN where there is none."""
        following = np.full(len(self), np.nan)
        is_followed = self.job.codes[1:] == self.job.codes[:-1]
        following[:-1] = np.where(is_followed, column[1:], np.nan)
        return following


def _value(column: Texts | Floats, place: int) -> Any:
    if isinstance(column, Categorical):
        return column.values[column.codes[place]]
    number = float(column[place])
    return None if math.isnan(number) else number


class _NumberReader:
    def __init__(self) -> None:
        self._parts = list[Floats]()

    def add(self, values: Sequence[float | None]) -> None:
        self._parts.append(floats(values))

    def column(self) -> Floats:
        return np.concatenate([floats([]), *self._parts])


class _TextReader:
    def __init__(self) -> None:
        self._parts = list[Codes]()
        self._codes = defaultdict[str | None, int]()
        self._codes.default_factory = self._codes.__len__  # each new text gets the next code

    def add(self, values: Sequence[str | None]) -> None:
        self._parts.append(np.fromiter(map(self._codes.__getitem__, values), np.intp))

    def column(self) -> Texts:
        return Categorical(np.concatenate([np.array([], np.intp), *self._parts]), list(self._codes))


_READERS: Mapping[Any, type[_NumberReader] | type[_TextReader]] = {Floats: _NumberReader, Texts: _TextReader}
"""By the type of a column."""
