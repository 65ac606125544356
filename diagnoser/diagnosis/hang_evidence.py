"""What dumps of the ranks add to a verdict: that the run hangs, and which rank holds up the others. Pure.

A rank that is waited for may be a victim of its own code as well as of its machine, so that nothing here proves that a
node is at fault: suspects lead to the node check, or to a person.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from diagnoser.localize.hang_detection import Silence
from diagnoser.model import (
    MISMATCHED_COLLECTIVES,
    WAITING_RANKS,
    Diagnosis,
    Evidence,
    EvidenceKind,
    EvidenceLine,
    Facts,
    HangFindings,
    HangLook,
    HangSuspect,
    Provenance,
    RootCause,
    RuntimeFile,
    Suspect,
    SuspectKind,
)
from diagnoser.model.taxonomy import FailureType, Outcome, category_of

if TYPE_CHECKING:
    from diagnoser.hang.report import HangReport

_T = FailureType
UNDECIDED = frozenset({_T.UNKNOWN, _T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR})
"""Types that ranks report because another one did not come: the dumps know more than they."""
_SURE = 0.6
"""Least score of a suspect for a silence to count as a hang."""
_NAMED = 4
"""Most suspects, and most ranks without a dump, that a diagnosis lists."""
_ABSENT_LISTED = 64
_OWN_CODE = frozenset({SuspectKind.MISMATCH, SuspectKind.DEADLOCK})
"""Kinds that are bugs of the script: no machine is at fault."""
_NO_WORK = _OWN_CODE | {SuspectKind.DEAD, SuspectKind.STALLED}
"""Kinds that are no picture of a rank which works while the others wait for it."""
_SOURCES = {SuspectKind.DEAD: "nccl_ras", SuspectKind.STACK: "stack_dump", SuspectKind.AT_WORK: "stack_dump"}
_CLOCKS = 10.0
"""Seconds by which the clocks of the service and of the ranks may differ."""
_ZONE = 900.0
"""Time zones differ by multiples of this."""
_FIX_SCRIPT = "Fix the order of the collectives in the training script: some ranks call different ones than the rest."
_FIX_WAIT = "One rank worked alone for longer than the others wait: let all ranks do it, or raise the timeout."
_CHECK_NODE = "Look at the stack of the named rank and check its node before you resubmit the job."


def fresh(evidence: Evidence, facts: Facts, advanced: float | None = None) -> list[RuntimeFile]:
    """The dumps that were taken since the run stands still; earlier ones show a silence that is over.

    advanced: when the run last did, by the service's clock; None for its last step. Files that nobody received, but a
    person named, are taken as they are.
    """
    if not facts.runtime:
        return []
    since = (_last_step(evidence, facts) if advanced is None else advanced) - _CLOCKS
    return vouched_first(file for file in facts.runtime if not 0 < file.received < since)


def _last_step(evidence: Evidence, facts: Facts) -> float:
    """By the service's clock: its newest line was printed when it was received, in whatever time zone."""
    newest = evidence.newest_time
    received = facts.last_line or facts.failed[1]
    last = max(map(attrgetter("time"), evidence.progress), default=0.0)
    if not received:
        return last
    if not newest:
        return last
    return last + _ZONE * round((received - newest) / _ZONE)


def vouched_first(files: Iterable[RuntimeFile]) -> list[RuntimeFile]:
    """Without those of the job's own credential where an agent took the same of that rank; the agents' come last, and
    outweigh what a file before them says of their ranks. Of a rank's dumps the newest counts, wherever it was taken: an
    elastic restart may have moved the rank, and the dump of the launch before may say more."""
    every = sorted(files, key=attrgetter("received"))
    taken = set(map(_kind_and_rank, filter(_is_vouched, every)))
    chosen = [file for file in every if _is_vouched(file) or _kind_and_rank(file) not in taken]
    newest = {_kind_and_rank(file): file for file in chosen}
    chosen = [file for file in chosen if file.rank < 0 or newest[_kind_and_rank(file)] is file]
    return sorted(chosen, key=_is_vouched)


_kind_and_rank, _rank = attrgetter("kind", "rank"), attrgetter("rank")


def _is_vouched(file: RuntimeFile) -> bool:
    """Whether an agent took the dump."""
    return file.provenance is Provenance.RUNTIME


def analyze(evidence: Evidence, facts: Facts, files: Sequence[RuntimeFile]) -> "HangReport | None":
    """Who waits for whom; None without dumps. Where a rank runs is known by its registration, else by the agent that
    took its dump there, else by what the log says, else by what the job's own credential says of its dumps."""
    if not files:
        return None
    from diagnoser.hang import report  # few logs come with dumps, and their readers take a while to load

    by_job, by_agent = (_taken_on(files, vouched=vouched) for vouched in (False, True))
    nodes = {**by_job, **evidence.rank_nodes, **by_agent, **facts.job.rank_nodes}
    return report.analyze(report.read_files(files), nodes, len(nodes))


def _taken_on(files: Iterable[RuntimeFile], *, vouched: bool) -> dict[int, str]:
    nodes = {file.rank: file.node for file in files if file.node and _is_vouched(file) is vouched}
    nodes.pop(-1, None)
    return nodes


def confirmed(quiet: Silence | None, hang: "HangReport | None") -> Silence | None:
    """A silence in which the dumps show who is waited for is a hang, however short it is. A rank that was seen at work
    explains a long one. In a stage whose length nobody knows that rank may evaluate, save or build an index alone:
    there only what no work explains shortens it."""
    if quiet is None:
        return quiet
    if hang is None or not hang.suspects:
        return quiet
    first = hang.suspects[0]
    if first.kind is SuspectKind.AT_WORK:
        return replace(quiet, confirmed=quiet.seconds >= first.work_seconds)
    if not _is_sure(hang):
        return quiet
    if quiet.known:
        return replace(quiet, confirmed=True)
    if first.kind in _NO_WORK:
        return replace(quiet, confirmed=True)
    return quiet


def _is_sure(hang: "HangReport") -> bool:
    return hang.suspects[0].score >= _SURE


def apply(
    diagnosis: Diagnosis,
    hang: "HangReport",
    files: Sequence[RuntimeFile],
    *,
    running: bool,
    seen: HangLook | None = None,
) -> Diagnosis:
    """The verdict with the rank that holds up the others, where the log itself shows no deeper cause.

    running: the attempt is open, so that ranks may wait because they work. A log that just stops is taken for a hang
    where the dumps leave no doubt. seen: of the suspects, by agents.
    """
    diagnosis = replace(diagnosis, hang=replace(findings(hang, len(files)), look=seen))
    if not hang.suspects:
        return diagnosis
    if not running:
        diagnosis = _hung_in_silence(diagnosis, hang)
    if diagnosis.type not in UNDECIDED:
        return diagnosis
    if diagnosis.type is _T.UNKNOWN and diagnosis.outcome is not Outcome.HUNG:
        return diagnosis  # it need not stand still
    provenance, first = _provenance(files), hang.suspects[0]
    located = replace(
        diagnosis,
        root_cause=_root_cause(diagnosis.root_cause, first, provenance),
        evidence=(*diagnosis.evidence, *(_cited(suspect, provenance) for suspect in hang.suspects[:_NAMED])),
    )
    if first.kind in _OWN_CODE:
        blamed = replace(located, nodes=(), mitigation=_FIX_SCRIPT)
        return _decided(blamed, _T.RUNTIME_ERROR, MISMATCHED_COLLECTIVES, first)
    if first.kind is SuspectKind.AT_WORK:
        return replace(located, nodes=(), mitigation=_FIX_WAIT)
    blamed = replace(located, nodes=_suspect_nodes(hang.suspects, diagnosis.nodes), mitigation=_CHECK_NODE)
    if diagnosis.type is _T.UNKNOWN:
        return _decided(blamed, _T.NCCL_TIMEOUT_ERROR, WAITING_RANKS, first)
    return blamed


def _hung_in_silence(diagnosis: Diagnosis, hang: "HangReport") -> Diagnosis:
    """A log that just stops is one of a hang where the dumps are sure of who is waited for."""
    is_unknown = (diagnosis.type, diagnosis.outcome) == (_T.UNKNOWN, Outcome.UNKNOWN)
    if not is_unknown or not _is_sure(hang):
        return diagnosis
    return replace(diagnosis, outcome=Outcome.HUNG)


def look(evidence: Evidence, facts: Facts, hang: "HangReport", files: Sequence[RuntimeFile]) -> HangLook | None:
    """What agents alone saw of the suspects in a running attempt; None where not each of them was seen stuck, on a node
    of the attempt, or where they are suspects only with what the job sent."""
    vouched = list(filter(_is_vouched, files))
    seen = hang if len(vouched) == len(files) else analyze(evidence, facts, vouched)
    if seen is None or not seen.suspects:
        return None
    stuck = {suspect.rank: suspect for suspect in seen.suspects if suspect.stuck_in and suspect.node in facts.nodes}
    if not stuck.keys() == set(map(_rank, seen.suspects)) == set(map(_rank, hang.suspects)):
        return None
    nodes = set(map(attrgetter("node"), stuck.values()))
    times = [file.received for file in vouched if _shows(file, stuck.keys(), nodes)]
    return HangLook(facts.last_line, min(times), tuple((rank, stuck[rank].stuck_in) for rank in sorted(stuck)))


def _shows(file: RuntimeFile, ranks: Collection[int], nodes: Collection[str]) -> bool:
    """Whether it shows what one of these ranks did when it was taken: dumps of a watchdog show an earlier time."""
    if file.kind is EvidenceKind.ACTIVITY:
        return file.node in nodes
    return file.kind is EvidenceKind.STACKS and file.rank in ranks


def _provenance(files: Iterable[RuntimeFile]) -> Provenance:
    """The job's where it took any of the dumps itself."""
    if all(map(_is_vouched, files)):
        return Provenance.RUNTIME
    return Provenance.JOB


def findings(hang: "HangReport", files: int) -> HangFindings:
    """What a diagnosis says of it. files: number of dumps, those that could not be read included."""
    suspects = hang.suspects[:_NAMED]
    waiting = hang.graph.waits.keys() - set(map(attrgetter("rank"), suspects))
    not_seen = hang.graph.not_seen[:_ABSENT_LISTED]
    return HangFindings(suspects, hang.notes, files - len(hang.rejected), not_seen, len(waiting))


def _decided(diagnosis: Diagnosis, failure: FailureType, decider: str, first: HangSuspect) -> Diagnosis:
    category = category_of(failure)
    return replace(
        diagnosis,
        type=failure,
        category=category,
        decided_by=decider,
        confidence=first.score,
        doubts=(),
        rivals=(),
    )


def _root_cause(root: RootCause | None, first: HangSuspect, provenance: Provenance) -> RootCause:
    """The line that reports the timeout, if there is one: printed by a rank that waited, it now names the other."""
    if root is None:
        root = RootCause(0, _sentence(first), source=_source(first), provenance=provenance)
    return replace(root, rank=first.rank, node=first.node or None, gpu=None)


def _cited(suspect: HangSuspect, provenance: Provenance) -> EvidenceLine:
    return EvidenceLine(0, _sentence(suspect), str(suspect.kind), suspect.rank, _source(suspect), provenance)


def _sentence(suspect: HangSuspect) -> str:
    where = f" on {suspect.node}" if suspect.node else ""
    return f"rank {suspect.rank}{where}: {suspect.why}"


def _source(suspect: HangSuspect) -> str:
    return _SOURCES.get(suspect.kind, "flight_recorder")


def _suspect_nodes(suspects: Sequence[HangSuspect], others: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """Nodes of the suspected ranks, then those that the log suspects. Of several ranks of a node the surest counts."""
    by_node: dict[str, Suspect] = {}
    for suspect in suspects:
        if suspect.node:
            by_node.setdefault(suspect.node, Suspect(suspect.node, suspect.score, f"rank {suspect.rank} {suspect.why}"))
    for other in others:
        by_node.setdefault(other.node, other)
    return tuple(by_node.values())
