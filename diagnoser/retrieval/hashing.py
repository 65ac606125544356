"""Text to a vector of fixed length without a model: words, pairs of words and letter groups, hashed.

The hashing trick of Weinberger et al. (2009) with a sign bit, so that collisions cancel out in the mean; counts enter
by their logarithm (sublinear tf). Pure: the same text gives the same vector in every process and version.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 256
"""Two texts without a common feature are 0 +- 1/16 alike; equal texts are exactly 1."""
NAME = f"hashing-{DIMENSIONS}"
_LETTERS = 4
_LONG = 24
"""Letters of a word that are cut into groups: generated names can be endless."""

Vector = NDArray[np.float32]

# What differs between two runs of one failure. Order matters: a path holds numbers, an address holds both.
_MASKS = tuple(
    (re.compile(pattern), mark)
    for pattern, mark in (
        (r"\x1b\[[0-9;]*[A-Za-z]", ""),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", " "),
        (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", " "),
        (r"\b[a-z][a-z0-9+.-]*://[^\s'\"]+", " <url> "),
        (r"(?:/[\w.@+=~-]+){2,}/?", " <path> "),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", " <host> "),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", " <id> "),
        (r"\b0x[0-9a-f]+\b|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b", " <id> "),
        (r"\b[a-z]+(?:[-.][a-z0-9]+)*-\d+[a-z0-9.-]*\b", " <host> "),
        (r"\d+(?:\.\d+)?", "#"),
    )
)
_PLACES = frozenset({" <url> ", " <path> "})
_WORD = re.compile(r"<\w+>|[\w#]+")


def normalised(text: str, names: Sequence[str] = (), *, places: bool = False) -> str:
    """``text`` in small letters without numbers, paths, addresses and ``names`` (nodes of the job).

    places: paths and URLs stay, but for their numbers.
    """
    text = text.casefold()
    for name in sorted(map(str.casefold, names), key=len, reverse=True):
        text = text.replace(name, " <host> ")
    for pattern, mark in _MASKS:
        if not (places and mark in _PLACES):
            text = pattern.sub(mark, text)
    return " ".join(text.split())


def words(text: str) -> list[str]:
    """The words of a text in small letters, without punctuation."""
    return _WORD.findall(text.casefold())


def features(text: str) -> Counter[str]:
    """Words, pairs of neighbours and letter groups of a text -> how often."""
    tokens = words(text)
    counted = Counter(tokens)
    counted.update(map(" ".join, pairwise(tokens)))
    counted.update(chain.from_iterable(map(groups, tokens)))
    return counted


def vector(parts: Mapping[str, tuple[str, float]]) -> Vector:
    """(DIMENSIONS,), length 1, or zeros for nothing. parts: name -> (text, weight); equal words of two parts differ.

    Each part is brought to length 1 before it is weighed, so that a long part does not drown a short one.
    """
    total = np.zeros(DIMENSIONS, np.float32)
    for name, (text, weight) in parts.items():
        part = np.zeros(DIMENSIONS, np.float32)
        for feature, count in features(text).items():
            place, sign = _place(f"{name}:{feature}")
            part[place] += sign * (1.0 + math.log(count)) * (0.5 if feature.startswith("^") else 1.0)
        total += weight * unit(part)
    return unit(total)


def unit(values: Vector) -> Vector:
    """The same direction at length 1; zeros stay zeros."""
    length = float(np.linalg.norm(values))
    if length == 0:
        return values
    return values / np.float32(length)


def packed(values: Vector | Sequence[float]) -> bytes:
    return np.asarray(values, "<f4").tobytes()


def unpacked(data: bytes) -> Vector:
    return np.frombuffer(data, "<f4").astype(np.float32)


@lru_cache(maxsize=1 << 16)
def _place(feature: str) -> tuple[int, float]:
    value = crc32(feature.encode())
    return (value >> 1) % DIMENSIONS, 1.0 if value & 1 else -1.0


def groups(word: str) -> Iterator[str]:
    """Letter groups match slightly different spellings, and compound names."""
    marked = f"^{word[:_LONG]}$"
    if len(marked) > _LETTERS + 2:
        yield from ("^" + marked[start : start + _LETTERS] for start in range(len(marked) - _LETTERS + 1))
