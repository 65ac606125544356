"""Names the type of an exception whose class says little, by what its words are about.

The message, the name of the class split into words, its package and the functions that raised it are read for
*subjects* (``rules/exception_subjects.yaml``: a checkpoint, damage, settings, shapes, a connection). A linear model
weighs subjects and pairs of them: damage in a checkpoint is another failure than damage in a data file. Its table,
``rules/exception_weights.yaml``, is made by ``python -m tools.exception_words`` and read here without any library.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Annotated, Any, Literal

import re2
from pydantic import Field, StringConstraints

from diagnoser.model import expressions, yaml_loader
from diagnoser.model.errors import Fault
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.statements import without_advice

FILES = "exception_subjects.yaml", "exception_weights.yaml"
_LONGEST, _DEPTH = 512, 3
"""Characters of a message, and innermost frames of a traceback, that are read."""
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+[a-z]*|=")
_CHOICES = re.compile(r"\b[\w'\"]{1,30}(?:, [\w'\"]{1,30}){3,99}")
"""A list of what is possible or known: it is about none of that."""
_SEPARATOR = re.compile(r"\.|::")
_FUNCTION = re.compile(r", in (.{1,200})$")
_WHOLE_WORD = 3
"""Letters up to which a stem must be a whole word: ``inf`` is no part of ``information``."""

Subject = Annotated[str, StringConstraints(pattern=r"^[a-z_]+$")]
Stem = Annotated[str, StringConstraints(pattern=r"^[a-z0-9 =]+$")]


class _SubjectExample(StrictModel):
    text: str
    subjects: tuple[Subject, ...]


class SubjectRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    subjects: dict[Subject, Annotated[tuple[Stem, ...], Field(min_length=1)]] = Field(default_factory=dict)
    examples: tuple[_SubjectExample, ...] = ()


class WeightRows(StrictModel):
    """bias, weights: log-odds of each type, the latter by feature."""

    version: Literal[1]
    bias: dict[FailureType, float] = Field(default_factory=dict)
    weights: dict[FailureType, dict[str, float]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RaisedException:
    """An exception as printed.

    name: dotted class, "" where the language prints none.
    frames: of its traceback, outermost first.
    class_type: what the class says; None without one.
    is_generic: the class says next to nothing.
    is_stated: an errno, a status, the module or the place says the type: words add nothing.
    is_known: the table lists the class by its whole name.
    """

    name: str
    message: str
    frames: Sequence[str] = ()
    class_type: FailureType | None = None
    is_generic: bool = True
    is_stated: bool = False
    is_known: bool = False

    @property
    def type(self) -> FailureType:
        """What the class says; an error at run time where it says nothing."""
        return self.class_type or FailureType.RUNTIME_ERROR


@dataclass(frozen=True, slots=True)
class Classification:
    """probability: as the model sees it, which is not yet how often it is right."""

    type: FailureType
    probability: float
    features: frozenset[str] = frozenset()


class SubjectTable:
    """It keeps no state between texts and may be shared by threads."""

    def __init__(self, table: SubjectRows) -> None:
        self._table = table
        self._names = tuple(table.subjects)

    def read(self, text: str) -> frozenset[str]:
        """The subjects that the words of ``text`` are about."""
        words = f" {' '.join(_WORD.findall(text)).lower()} "
        return frozenset(map(self._names.__getitem__, expressions.matching(self._stems, words)))

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        faults = []
        for example in self._table.examples:
            subjects = self.read(example.text)
            if subjects != set(example.subjects):
                about = ", ".join(sorted(subjects)) or "nothing"
                faults.append(Fault(path, 0, f"examples: {example.text!r} is about {about}"))
        return faults

    @cached_property
    def _stems(self) -> Any:
        return expressions.search_set(map(_pattern, self._table.subjects.values()))


def _pattern(stems: Sequence[str]) -> str:
    return rf"(?:^|[^a-z0-9])(?:{'|'.join(map(_stem_pattern, stems))})"


def _stem_pattern(stem: str) -> str:
    escaped = re2.escape(stem)
    return rf"{escaped}(?:$|[^a-z0-9])" if len(stem) <= _WHOLE_WORD else escaped


class ExceptionClassifier:
    """It keeps no state between exceptions and may be shared by threads."""

    def __init__(self, subjects: SubjectTable, weights: WeightRows) -> None:
        self._subjects = subjects
        self._bias = weights.bias
        self._weights: dict[str, list[tuple[FailureType, float]]] = defaultdict(list)
        for kind, row in weights.weights.items():
            for feature, weight in row.items():
                self._weights[feature].append((kind, weight))

    @classmethod
    def empty(cls) -> "ExceptionClassifier":
        """A classifier that names nothing, for a site without the tables."""
        return cls(SubjectTable(SubjectRows(version=1)), WeightRows(version=1))

    def classify(self, raised: RaisedException) -> Classification | None:
        """The likeliest type; None where the table is empty or the words are about nothing it knows."""
        scores = dict(self._bias)
        features = self.features(raised)
        if all(feature.startswith("class:") for feature in features):
            return None
        for feature in features:
            for kind, weight in self._weights.get(feature, ()):
                scores[kind] = scores.get(kind, 0.0) + weight
        return _likeliest(scores, features)

    def features(self, raised: RaisedException) -> frozenset[str]:
        """What the model weighs: each subject with the place where it stands, pairs of subjects, and the class."""
        *package, name = _SEPARATOR.split(raised.name)
        message = self._subjects.read(_CHOICES.sub(" one of ", without_advice(raised.message[:_LONGEST])))
        named = self._subjects.read(name)
        called = self._subjects.read("\n".join(map(_function, raised.frames[-_DEPTH:])))
        places = {"message": message, "name": named, "call": called, "package": self._subjects.read(".".join(package))}
        features = {f"{place}:{subject}" for place, subjects in places.items() for subject in subjects}
        features |= {f"any:{subject}" for subject in message | named}
        features |= {f"{one}+{other}" for one, other in combinations(sorted(message | named | called), 2)}
        return frozenset((*features, _class_feature(raised)))

    def with_weights(self, weights: WeightRows) -> "ExceptionClassifier":
        """The same subjects, weighed otherwise."""
        return ExceptionClassifier(self._subjects, weights)

    def faults(self, path: str) -> list[Fault]:
        """Every example of the subjects that does not hold."""
        return self._subjects.faults(path)


def _class_feature(raised: RaisedException) -> str:
    if raised.class_type is None:
        return "class:none"
    return f"class:{raised.class_type}{':generic' if raised.is_generic else ''}"


def _function(frame: str) -> str:
    match = _FUNCTION.search(frame)
    return match[1] if match else ""


def _likeliest(scores: Mapping[FailureType, float], features: frozenset[str]) -> Classification | None:
    if not scores:
        return None
    kind = max(scores, key=scores.__getitem__)
    total = sum(math.exp(score - scores[kind]) for score in scores.values())
    return Classification(kind, 1 / total, features)


def load(subjects: tuple[str, str], weights: tuple[str, str]) -> ExceptionClassifier:
    """subjects, weights: path and text of each file of ``FILES``. Raises RuleFaults with every fault of a file."""
    rows, faults = yaml_loader.read(*subjects, SubjectRows)
    table = SubjectTable(yaml_loader.sound(rows, faults))
    weighed, faults = yaml_loader.read(*weights, WeightRows)
    return ExceptionClassifier(table, yaml_loader.sound(weighed, faults))
