"""Search in what is kept of one attempt, by words that need not be exact: the query engine of the paper.

A line scores by the share of the query's features that it has, rare ones weighing more, as in BM25 without its length
term: log lines are short, and a cut-off word must not push a line down.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, pairwise

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


def find_lines(evidence: Evidence, query: str, limit: int) -> list[SearchResult]:
    """The best lines and templates for a query, the best first, then in order of the log."""
    query_features = hashing.features(query)
    texts = list(_texts(evidence))[:_LINES]
    overlaps = list(_overlaps(query_features.keys(), (result.text[:_CHARS] for result in texts)))
    weights = _weights(query_features, overlaps)
    total = sum(weights.values()) or 1.0
    scored = []
    for result, overlap in zip(texts, overlaps, strict=True):
        score = round(sum(map(weights.__getitem__, overlap)) / total, 4)
        if score >= _LEAST:
            scored.append(replace(result, score=score))
    return sorted(scored, key=lambda result: -result.score)[:limit]


def _overlaps(wanted: Set[str], texts: Iterable[str]) -> Iterator[set[str]]:
    """The features of a query that each text has. Texts share most of their words: each is looked at once."""
    known: dict[str, Set[str]] = {}
    has_pairs = " " in "".join(wanted)
    for text in texts:
        tokens = hashing.words(text)
        overlap = set[str]()
        for word in tokens:
            if word not in known:
                known[word] = wanted & {word, *hashing.groups(word)}
            overlap |= known[word]
        if has_pairs and overlap:
            overlap |= wanted & set(map(" ".join, pairwise(tokens)))
        yield overlap


def _weights(query_features: Counter[str], overlaps: Sequence[Iterable[str]]) -> dict[str, float]:
    frequency = Counter(chain.from_iterable(overlaps))
    weights = {}
    for name in query_features:
        rarity = math.log(1 + len(overlaps) / (1 + frequency[name]))
        weights[name] = rarity * _LETTERS_WEIGH if name.startswith("^") else rarity
    return weights


def _texts(evidence: Evidence) -> Iterable[SearchResult]:
    seen: set[str] = set()
    for line in evidence.lines:
        if line.body in seen:  # a thousand ranks print the same
            continue
        seen.add(line.body)
        yield SearchResult(line.stream, line.number, line.text, 0.0, rank=line.rank)
    for template in evidence.templates:
        yield SearchResult(template.first[0], template.first[1], template.text, 0.0, template.count, is_template=True)
