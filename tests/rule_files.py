"""Small rule sets and logs for tests of the rules ring."""

import io
from collections.abc import Sequence

import yaml

from diagnoser.dialects import mentions
from diagnoser.model import Diagnosis, Evidence, Facts, Line, Stream, Traceback
from diagnoser.model.evidence import Placement, rank_nodes
from diagnoser.model.taxonomy import FailureType, category_of
from diagnoser.rules import candidates, schema
from diagnoser.rules.candidate import Candidate, LossDivergence
from diagnoser.rules.engine import Engine, Hit
from tests import accuracy_bars

ANALYZER = accuracy_bars.load()
HEURISTICS, EXITS = ANALYZER.knowledge.heuristics, ANALYZER.knowledge.exits


def verdict(*lines: str) -> Diagnosis:
    """What the shipped rules say of a log."""
    log = ANALYZER.read(io.BytesIO("\n".join(lines).encode()), lambda _: None)
    return ANALYZER.analyze(log, Facts())


def rule(id: str, type: str = "ecc_error", **fields: object) -> tuple[str, str]:
    """Path and text of a rule file that is right unless ``fields`` make it wrong."""
    document: dict[str, object] = {
        "id": id,
        "title": f"Title of {id}",
        "type": type,
        "role": "root",
        "maturity": "stable",
        "anchors": ["marker"],
        "patterns": ["marker"],
        "specificity": "family",
        "mitigation": "Mend it.",
        "examples": {"match": ["a marker here"], "no_match": ["nothing here"]},
    }
    kind = FailureType(type) if type in set(FailureType) else FailureType.UNKNOWN
    return f"{category_of(kind)}/{id}.yaml", yaml.safe_dump(document | fields)


def engine(*files: tuple[str, str]) -> Engine:
    return Engine(schema.load(dict(files)))


def collect(evidence: Evidence, hits: Sequence[Hit] = (), loss: LossDivergence | None = None) -> tuple[Candidate, ...]:
    """Candidates by the shipped tables of exceptions and keywords."""
    return candidates.collect(evidence, hits, HEURISTICS, loss)


def log(*bodies: str, ranks: dict[int, int] | None = None, tracebacks: tuple[Traceback, ...] = ()) -> Evidence:
    """Lines of one stream, all kept, with the exit reports among them. ranks: index -> rank."""
    ranks = ranks or {}
    lines = tuple(Line(Stream(), index + 1, body, body, ranks.get(index, -1)) for index, body in enumerate(bodies))
    placed = [(reading, line) for line in lines if (reading := mentions.placed(line.text))]
    placements = tuple(Placement(rank, node, weight, line.stream, line.number) for (rank, weight, node), line in placed)
    return Evidence(
        lines,
        tracebacks,
        ranks=frozenset(ranks.values()),
        rank_nodes=rank_nodes(lines, placements),
        placements=placements,
        exits=EXITS.read(lines),
    )


def trace(
    raised: int, exception: str, message: str = "", rank: int = -1, cause: int = -1, start: int = -1
) -> Traceback:
    """A traceback from line ``start`` (default: two before) to ``raised``."""
    first = start if start >= 0 else max(0, raised - 2)
    return Traceback(
        rank, tuple(range(first, raised + 1)), ('File "a.py", line 1, in f',), exception, message, raised, cause
    )
