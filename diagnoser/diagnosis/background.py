"""What a model is told beside the view of the log, and which lines its view must hold. Pure."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from diagnoser.diagnosis import node_logs
from diagnoser.diagnosis.tool_evidence import last_word
from diagnoser.llm.question import Background, Section
from diagnoser.localize import exit_reports, ranks
from diagnoser.model import Diagnosis, Evidence, EvidenceLine, Facts, Line, Mark, Rejected, RootCause, Stream
from diagnoser.model.number_runs import spans
from diagnoser.rules.candidate_set import RejectionReason

_NOISE = frozenset({RejectionReason.BENIGN, RejectionReason.TEARDOWN, RejectionReason.REPEATED})
"""Rejected candidates that tell a model nothing."""
_LAST = 15
"""Last kept lines that are pinned: who speaks last often tells how it ended."""
_AROUND = 2
"""Lines before and after the root that are pinned with it."""
_ONCE = 40
"""Most lines shown of those that were not kept and are like no other, such as the message below "panicked at"."""
_FEW = 8
"""Most ranks whose silence is worth a line: where more are silent, silence tells nothing."""
_NODE_LINES = 12


def background(diagnosis: Diagnosis, evidence: Evidence, facts: Facts) -> Background:
    sections = (
        Section("The scheduler's last word", last_word(facts) or ("nothing was reported",)),
        Section("Where the ranks run", tuple(_placements(evidence, facts))),
        Section("Silence", tuple(_silence(evidence, facts))),
        Section("What launchers report about ended processes", tuple(_exits(evidence, facts))),
        Section("From the logs of the job's nodes", tuple(_node_lines(evidence, facts))),
        Section("Notes of the rules", diagnosis.notes),
    )
    return Background(weighed(diagnosis), tuple(filter(attrgetter("lines"), sections)))


def weighed(diagnosis: Diagnosis) -> tuple[Rejected, ...]:
    """The rules' candidates beside the root, without noise."""
    return tuple(rejected for rejected in diagnosis.rejected if rejected.why not in _NOISE)


def pinned(diagnosis: Diagnosis, lines: Sequence[Line]) -> tuple[tuple[int, Stream], ...]:
    """Number and stream of the lines that the view holds before all others, the most telling first: the rules'
    candidates and what they cite, then the last lines, then what surrounds the root."""
    # A rejected candidate does not say its stream: number and text tell it well enough.
    places: dict[tuple[int, str], int] = {}
    for index, line in enumerate(lines):
        places.setdefault((line.number, line.text), index)
    root = diagnosis.root_cause
    claims: list[RootCause | Rejected | EvidenceLine | None] = [root, *weighed(diagnosis), *diagnosis.evidence]
    chosen = [places.get((claim.line, claim.text), -1) for claim in claims if claim]
    first = chosen[0] if root else -1
    chosen += range(len(lines) - 1, max(-1, len(lines) - 1 - _LAST), -1)
    if first >= 0:
        chosen += range(max(0, first - _AROUND), min(len(lines), first + _AROUND + 1))
    positions = dict.fromkeys(chosen)
    positions.pop(-1, None)
    return tuple((lines[index].number, lines[index].stream) for index in positions)


def beside_root(diagnosis: Diagnosis, once: Sequence[Line]) -> list[Line]:
    """The lines that stand nearest to the root, the nearest first; where there is no root, the last ones.

    once: lines that were not kept and are like no other.
    """
    root = diagnosis.root_cause
    if root is None:
        return sorted(once, key=attrgetter("number"), reverse=True)[:_ONCE]
    return sorted(once, key=lambda line: abs(line.number - root.line))[:_ONCE]


def _placements(evidence: Evidence, facts: Facts) -> Iterator[str]:
    by_node: dict[str, list[int]] = {}
    for rank, node in sorted({**facts.job.rank_nodes, **evidence.rank_nodes}.items()):
        by_node.setdefault(node, []).append(rank)
    for node, placed in by_node.items():
        word = "ranks" if len(placed) > 1 else "rank"
        yield f"{node}: {word} {spans(placed)}"


def _silence(evidence: Evidence, facts: Facts) -> Iterator[str]:
    """Ranks that are known and never printed, and the few that report nothing where others do."""
    silent = {*facts.job.rank_nodes, *evidence.rank_nodes} - evidence.ranks
    if evidence.ranks and silent:
        yield f"never printed a line: ranks {spans(silent)}"
    complaining = {line.rank for line in evidence.lines if line.mark >= Mark.TRACEBACK} - {-1}
    calm = evidence.ranks - complaining
    if len(complaining) < 2:
        return
    if 0 < len(calm) <= _FEW:
        yield f"printed no error while {len(complaining)} other ranks did: ranks {spans(calm)}"


def _exits(evidence: Evidence, facts: Facts) -> Iterator[str]:
    launch = ranks.read(evidence, facts)
    for failure in exit_reports.failures(evidence):
        text = f"rank {failure.rank} on {failure.host}: exit code {failure.exitcode}"
        yield f"{text}, the first that its agent observed" if failure.first else text
    yield from dict.fromkeys(evidence.lines[report.line].body for report in launch.exits)


def _node_lines(evidence: Evidence, facts: Facts) -> Iterator[str]:
    lines = []
    for line, reason in node_logs.weighed_faults(evidence, facts):
        if reason is None:
            lines.append(f"{line.stream.node} {line.stream.source}: {line.text}")
    yield from lines[-_NODE_LINES:]
