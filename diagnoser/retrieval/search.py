"""Search in what is kept of one attempt, by words that need not be exact: the query engine of the paper.

A line scores by the share of the query's features that it has, rare ones weighing more, as in BM25 without its length
term: log lines are short, and a cut-off word must not push a line down.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diagnoser.model import Evidence, Stream
from diagnoser.retrieval import hashing

_LEAST = 0.15
"""Score below which a line has nothing to do with the query."""
_LINES = 20_000
_CHARS = 400
_LETTERS_WEIGH = 0.3


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A kept line, or a template of routine lines with its first occurrence. count: lines that it stands for."""

    stream: Stream
    line: int
    text: str
    score: float
    count: int = 1
    rank: int = -1
    is_template: bool = False


def find(evidence: Evidence, query: str, limit: int) -> list[SearchResult]:
    """The best lines and templates for a query, the best first, then in order of the log."""
    wanted = hashing.features(query)
    texts = list(_texts(evidence))[:_LINES]
    held = [wanted.keys() & hashing.features(found.text[:_CHARS]).keys() for found in texts]
    weights = _weights(wanted, held)
    total = sum(weights.values()) or 1.0
    scored = [
        (round(sum(weights[one] for one in has) / total, 4), found) for found, has in zip(texts, held, strict=True)
    ]
    best = sorted((pair for pair in scored if pair[0] >= _LEAST), key=lambda pair: -pair[0])[:limit]
    return [_scored(found, score) for score, found in best]


def _weights(wanted: Counter[str], held: Sequence[Iterable[str]]) -> dict[str, float]:
    often = Counter(feature for has in held for feature in has)
    return {one: math.log(1 + len(held) / (1 + often[one])) * _part(one) for one in wanted}


def _part(feature: str) -> float:
    return _LETTERS_WEIGH if feature.startswith("^") else 1.0


def _texts(evidence: Evidence) -> Iterable[SearchResult]:
    seen: set[str] = set()
    for line in evidence.lines:
        if line.body in seen:  # a thousand ranks print the same
            continue
        seen.add(line.body)
        yield SearchResult(line.stream, line.number, line.text, 0.0, rank=line.rank)
    for one in evidence.templates:
        yield SearchResult(one.first[0], one.first[1], one.text, 0.0, one.count, is_template=True)


def _scored(found: SearchResult, score: float) -> SearchResult:
    return SearchResult(found.stream, found.line, found.text, score, found.count, found.rank, found.is_template)
