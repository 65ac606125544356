"""What dumps of the ranks add to a verdict: that the run hangs, and which rank holds up the others. Pure.

A rank that is waited for may be a victim of its own code as well as of its machine, so that nothing here proves that a
node is at fault: suspects lead to the node check, or to a person.
"""

from collections.abc import Sequence
from dataclasses import replace

from diagnoser.hang import report
from diagnoser.hang.report import HangReport
from diagnoser.localize.hang_detection import Silence
from diagnoser.model import (
    Diagnosis,
    Evidence,
    EvidenceLine,
    Facts,
    HangFindings,
    HangSuspect,
    Provenance,
    RootCause,
    RuntimeFile,
    Suspect,
    SuspectKind,
)
from diagnoser.model.taxonomy import FailureType, Outcome, category_of

_T = FailureType
_UNDECIDED = frozenset({_T.UNKNOWN, _T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR})
"""Types that ranks report because another one did not come: the dumps know more than they."""
_SURE = 0.6
"""Least score of a suspect for a silence to count as a hang."""
_NAMED = 4
"""Most suspects, and most ranks without a dump, that a diagnosis lists."""
_ABSENT_LISTED = 64
_OWN_CODE = frozenset({SuspectKind.MISMATCH, SuspectKind.DEADLOCK})
"""Kinds that are bugs of the script: no machine is at fault."""
_SOURCES = {SuspectKind.DEAD: "nccl_ras", SuspectKind.STACK: "stack_dump"}
_CLOCKS = 60.0
"""Seconds by which the clocks of the service and of the ranks may differ."""
_MITIGATION = {
    True: "Mend the order of the collectives in the training script: some ranks call others than the rest.",
    False: "Look at the stack of the named rank, and check its node, before the job is submitted again.",
}


def analyze(evidence: Evidence, facts: Facts, *, running: bool) -> HangReport | None:
    """Suspects by the dumps that were taken since the run stood still; None where there are none.

    running: the attempt is still open, so that dumps from before its newest line show an earlier silence.
    """
    steps = (point.time for point in evidence.progress if point.time > 0)
    since = facts.failed[1] if running else max(steps, default=0.0) - _CLOCKS
    files = [file for file in facts.runtime if file.received >= since or not file.received]
    if not files:
        return None
    nodes = {**evidence.rank_nodes, **facts.job.rank_nodes}
    return report.analyze(report.read_files(files), nodes, len(nodes))


def confirmed(quiet: Silence | None, hang: HangReport | None) -> Silence | None:
    """A silence in which the dumps show who is waited for is a hang, however short it is."""
    sure = hang is not None and bool(hang.suspects) and hang.suspects[0].score >= _SURE
    return replace(quiet, confirmed=True) if quiet and sure else quiet


def apply(diagnosis: Diagnosis, hang: HangReport, files: Sequence[RuntimeFile]) -> Diagnosis:
    """The verdict with the rank that holds up the others, where the log itself shows no deeper cause."""
    not_seen = hang.graph.not_seen[:_ABSENT_LISTED]
    findings = HangFindings(hang.suspects[:_NAMED], hang.notes, len(files) - len(hang.rejected), not_seen)
    diagnosis = replace(diagnosis, hang=findings)
    stands_still = diagnosis.outcome is Outcome.HUNG or diagnosis.type is not _T.UNKNOWN
    if not hang.suspects or diagnosis.type not in _UNDECIDED or not stands_still:
        return diagnosis
    vouched = all(file.provenance is Provenance.RUNTIME for file in files)
    provenance = Provenance.RUNTIME if vouched else Provenance.JOB
    first = hang.suspects[0]
    located = replace(
        diagnosis,
        root_cause=_root_cause(diagnosis.root_cause, first, provenance),
        evidence=(*diagnosis.evidence, *(_cited(suspect, provenance) for suspect in findings.suspects)),
        nodes=() if first.kind in _OWN_CODE else _suspect_nodes(hang.suspects, diagnosis.nodes),
        mitigation=_MITIGATION[first.kind in _OWN_CODE],
    )
    if first.kind in _OWN_CODE:
        return _decided(located, _T.RUNTIME_ERROR, "heuristic:mismatched_collectives", first)
    if diagnosis.type is _T.UNKNOWN:
        return _decided(located, _T.NCCL_TIMEOUT_ERROR, "heuristic:waiting_ranks", first)
    return located


def _decided(diagnosis: Diagnosis, failure: FailureType, decider: str, first: HangSuspect) -> Diagnosis:
    category = category_of(failure)
    return replace(diagnosis, type=failure, category=category, decided_by=decider, confidence=first.score, doubts=())


def _root_cause(root: RootCause | None, first: HangSuspect, provenance: Provenance) -> RootCause:
    """The line that reports the timeout, if there is one: printed by a rank that waited, it now names the other."""
    node = first.node or None
    if root is not None:
        return replace(root, rank=first.rank, node=node)
    return RootCause(0, _sentence(first), first.rank, node, source=_source(first), provenance=provenance)


def _cited(suspect: HangSuspect, provenance: Provenance) -> EvidenceLine:
    return EvidenceLine(0, _sentence(suspect), str(suspect.kind), suspect.rank, _source(suspect), provenance)


def _sentence(suspect: HangSuspect) -> str:
    return f"rank {suspect.rank}{f' on {suspect.node}' if suspect.node else ''}: {suspect.why}"


def _source(suspect: HangSuspect) -> str:
    return _SOURCES.get(suspect.kind, "flight_recorder")


def _suspect_nodes(suspects: Sequence[HangSuspect], others: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """Nodes of the suspected ranks, then those that the log suspects. Of several ranks of a node the surest counts."""
    by_node: dict[str, Suspect] = {}
    for suspect in suspects:
        if suspect.node:
            by_node.setdefault(suspect.node, Suspect(suspect.node, suspect.score, f"rank {suspect.rank} {suspect.why}"))
    if not by_node:
        return tuple(others)
    return (*by_node.values(), *(other for other in others if other.node not in by_node))
