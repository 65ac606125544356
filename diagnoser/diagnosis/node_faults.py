"""What the logs of an attempt's nodes say of its failure: the verdict, and what proves that a node is at fault. Pure.

A fault is blamed on the node whose log states it, and on no other: not on the node of the rank that failed, nor on a
host that the line names. The rules read each node's log by itself: nothing that a job prints can make or hide a fault.
They read it without what a process can choose in it, and what they find is a suspicion: a proof is a message of the
kernel's that the table of proofs knows (``recovery.node_proofs``).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from diagnoser.diagnosis import pipeline, verdict
from diagnoser.diagnosis.node_logs import SetAsideReason
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.dialects import mentions, system_log
from diagnoser.localize import suspect_nodes
from diagnoser.model import (
    Diagnosis,
    Event,
    Evidence,
    Facts,
    Line,
    NodeEvent,
    NodeEventKind,
    NodeProof,
    ProofKind,
    Provenance,
    Suspect,
    Symptom,
    node_log_id,
)
from diagnoser.model.choice import only
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.rules import candidate_sources, causality, xid
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.engine import Engine
from diagnoser.rules.node_faults import Failure
from diagnoser.rules.run_end import RunTimeline
from diagnoser.rules.schema import Blame, Maturity, Role

_PROOFS = 5
"""Most proofs kept for a node: one is enough."""
_CITED = 20
"""Most symptoms and rejected candidates listed."""
NODE_FAIL = "NODE_FAIL"
"""The reason of an end that schedulers' agents give where the node is gone."""
NOT_THE_CAUSE = "seen, and not taken for the cause"
"""How a note begins on a fault in a node's log that was weighed and does not decide."""
_TAKES_OUT = (None, Action.CORDON_AND_RESUBMIT)
"""What a rule may ask for whose fault proves that the node must go; None leaves it to the policy table."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A line that states a fault of a node, in that node's own log or from the scheduler, and how its rule sees it."""

    node: str
    line: Line
    candidate: Candidate

    @property
    def type(self) -> FailureType:
        return self.candidate.type


def apply_node_logs(
    alone: Diagnosis,
    weighed: Sequence[tuple[Line, SetAsideReason | None]],
    facts: Facts,
    knowledge: RuleKnowledge,
) -> Diagnosis:
    """The verdict on the job's log, or, where a node's fault explains that failure, the verdict on the node.

    alone: from the job's log. weighed: lines of the logs of ``facts.nodes``, from ``node_logs.weighed_lines``.
    """
    failure = _failure(alone, facts, knowledge.engine)
    if not facts.nodes:
        return _without_nodes(alone, failure, facts, knowledge)
    explaining, others = list[NodeFault](), list[NodeFault]()
    for fault in _faults_of(weighed, None, facts, knowledge):
        explains = knowledge.node_faults.explains(fault.type, fault.node, failure)
        (explaining if explains else others).append(fault)
    diagnosis, remark = alone, "joined"
    if _confirms(explaining, alone):
        remark = "confirmed by"
    elif explaining:
        diagnosis = _verdict(alone, explaining, facts, knowledge)
    if explaining:
        diagnosis = replace(diagnosis, doubts=())  # the machine itself says so
    notes = [*diagnosis.notes, *_notes(explaining, remark), *_notes(others, NOT_THE_CAUSE)]
    for reason in SetAsideReason:  # what was seen is said, newest first
        faults = _faults_of(weighed, reason, facts, knowledge)
        notes += _notes(faults[::-1], NOT_THE_CAUSE, f": {reason}")
    return replace(diagnosis, notes=tuple(notes), proofs=proofs(explaining, knowledge))


def _faults_of(
    weighed: Iterable[tuple[Line, SetAsideReason | None]],
    reason: SetAsideReason | None,
    facts: Facts,
    knowledge: RuleKnowledge,
) -> list[NodeFault]:
    """The faults in lines that are set aside for a reason; None: in those that may be of the failure."""
    return find_faults([line for line, why in weighed if why is reason], facts.nodes, knowledge)


def _confirms(explaining: Sequence[NodeFault], alone: Diagnosis) -> bool:
    """Whether the nodes' logs say just what the job's log says, of the same node: it also knows the rank."""
    if alone.type not in map(attrgetter("type"), explaining):
        return False
    if not alone.nodes:
        return False
    return all(_own_name(alone.nodes[0].node, (fault.node,)) for fault in explaining)


def _failure(alone: Diagnosis, facts: Facts, engine: Engine) -> Failure:
    """What the job's log shows, and on which node."""
    blame = Blame.NONE
    for rule in engine.ruleset.rules:
        if f"rule:{rule.id}" == alone.decided_by:
            blame = rule.blame
    named = alone.root_cause.node if alone.root_cause else None
    kind = FailureType.UNKNOWN if alone.is_undecided else alone.type
    return Failure(kind, alone.decided_by, blame, _place(named, facts))


def _place(named: str | None, facts: Facts) -> str | None:
    """The node of the failure, by the attempt's own name; None when not known. The service knows all nodes of a job, so
    that any other name is an alias or made up; of a job that is read from a file, a person may name only some."""
    if facts.job.id:
        return only(facts.nodes) or _own_name(named, facts.nodes)
    return _own_name(named, facts.nodes) or named


def _own_name(name: str | None, nodes: Iterable[str]) -> str | None:
    """The attempt's own name for a host, be it short or full; None when it is no node of the attempt."""
    if not name:
        return None
    return next((node for node in nodes if node_log_id("", node) == node_log_id("", name)), None)


def _without_nodes(alone: Diagnosis, failure: Failure, facts: Facts, knowledge: RuleKnowledge) -> Diagnosis:
    """A job known to the service, whose nodes nobody told: said only where their logs could have told more."""
    if not facts.job.id:
        return alone
    if not knowledge.node_faults.can_explain(failure):
        return alone
    why = "no node's own log was read: no agent reported which nodes the attempt ran on"
    return replace(alone, notes=(*alone.notes, why))


def find_faults(lines: Sequence[Line], nodes: Sequence[str], knowledge: RuleKnowledge) -> list[NodeFault]:
    """Faults that the nodes' own logs state, in order of time."""
    by_node: dict[str, list[Line]] = {node: [] for node in nodes}
    for line in sorted(lines, key=lambda line: (line.time, line.stream, line.number)):
        if line.stream.node in by_node:
            by_node[line.stream.node].append(replace(line, rank=-1))
    faults = []
    for node, own in by_node.items():
        evidence = Evidence(lines=tuple(_blanked(line, knowledge) for line in own))
        for candidate in _candidates(evidence, knowledge):
            line = own[candidate.line]
            if not _is_fault(candidate, knowledge):
                continue
            if not _is_of_another(candidate, line, node, nodes):
                faults.append(NodeFault(node, line, candidate))
    return sorted(faults, key=lambda fault: (fault.line.time, fault.line.stream, fault.line.number))


def _blanked(line: Line, knowledge: RuleKnowledge) -> Line:
    """The line as rules read it: without the names of processes, files and groups in a message of the kernel's."""
    blanked = knowledge.node_proofs.blanked(line.text)
    if line.text.endswith(line.body):
        blanked = blanked[len(blanked) - len(line.body) :]
    return replace(line, body=blanked)


def _candidates(evidence: Evidence, knowledge: RuleKnowledge) -> tuple[Candidate, ...]:
    """What the rules say of the lines of one node, one candidate for each line."""
    stated: dict[int, Candidate] = {}
    for hit in knowledge.engine.match(evidence):
        if hit.line not in stated:
            stated[hit.line] = candidate_sources.from_hit(hit, evidence)
    return xid.follow(list(stated.values()), evidence, knowledge.codes)


def _is_fault(candidate: Candidate, knowledge: RuleKnowledge) -> bool:
    if (candidate.role, candidate.blame) != (Role.ROOT, Blame.SELF):
        return False
    if category_of(candidate.type) is Category.INFRASTRUCTURE:
        return True
    return candidate.type in knowledge.node_faults.faults


def _is_of_another(candidate: Candidate, line: Line, node: str, nodes: Sequence[str]) -> bool:
    """Whether the line speaks of another host: one of the attempt, or any that the message names. (The host that syslog
    puts in front may be an alias of the node.)"""
    named = candidate.node
    if not named:
        return False
    if _own_name(named, (node,)):
        return False
    header = mentions.SYSLOG.match(line.text)
    if header is None:
        return True
    if header["host"] != named:
        return True
    return _own_name(named, nodes) is not None


def _verdict(alone: Diagnosis, explaining: Sequence[NodeFault], facts: Facts, knowledge: RuleKnowledge) -> Diagnosis:
    """The verdict on the nodes' faults; what the job's log showed of the failure becomes a symptom."""
    evidence = Evidence(lines=tuple(map(attrgetter("line"), explaining)))
    causal = _causes(evidence, explaining)
    if causal.root is None:
        return alone
    cause = explaining[causal.root.line]
    place = verdict.Localization(_rank_on(cause.node, facts), cause.node, _suspects(cause, explaining, knowledge))
    own = verdict.build_diagnosis(evidence, None, causal, place, knowledge.calibration, None)
    if own.root_cause is None:
        return alone
    if own.type is FailureType.UNKNOWN:
        return alone
    root, symptoms = alone.root_cause, (*alone.symptoms, *own.symptoms)
    if root:
        symptoms = (Symptom(root.line, root.text, alone.type, root.source, root.provenance), *symptoms)
    merged = replace(
        alone,
        outcome={Outcome.UNKNOWN: Outcome.FAILED}.get(alone.outcome, alone.outcome),
        category=own.category,
        type=own.type,
        confidence=own.confidence,
        decided_by=own.decided_by,
        root_cause=own.root_cause,
        evidence=own.evidence,
        symptoms=symptoms[:_CITED],
        rejected=(*own.rejected, *alone.rejected)[:_CITED],
        nodes=own.nodes,
        mitigation=own.mitigation,
        rollback=None,
        rivals=(),
    )
    return pipeline.with_advice(merged, causal, facts, knowledge.policy)


def _causes(evidence: Evidence, explaining: Sequence[NodeFault]) -> CausalResult:
    """Which fault is the cause of the others, as within one log."""
    stated = [replace(fault.candidate, line=index) for index, fault in enumerate(explaining)]
    return causality.decide(stated, RunTimeline(evidence, _never))


def _never(_: Candidate) -> bool:
    """What training went on after was left out by its time."""
    return False


def _rank_on(node: str, facts: Facts) -> int | None:
    """The only rank that runs on a node, by the registered rank map."""
    return only([rank for rank, host in facts.job.rank_nodes.items() if _own_name(host, (node,))])


def _suspects(cause: NodeFault, explaining: Sequence[NodeFault], knowledge: RuleKnowledge) -> tuple[Suspect, ...]:
    """The node of the cause, and those whose fault the cause does not explain."""
    rivals: dict[str, str] = {}
    for fault in explaining:
        if fault.node == cause.node:
            continue
        if not _follows(fault, cause, knowledge):
            rivals.setdefault(fault.node, fault.candidate.why)
    return suspect_nodes.by_own_logs(cause.node, cause.candidate.why, rivals)


def _follows(fault: NodeFault, cause: NodeFault, knowledge: RuleKnowledge) -> bool:
    """Whether a fault of one node follows from that of another: a link is lost where the other end is gone."""
    seen = Failure(fault.type, fault.candidate.by, node=fault.node)
    if fault.type is cause.type:
        return False
    return knowledge.node_faults.explains(cause.type, cause.node, seen)


def scheduler_proofs(alone: Diagnosis, facts: Facts, knowledge: RuleKnowledge) -> tuple[NodeProof, ...]:
    """What the scheduler itself told against a node of this attempt: why the attempt ended, or, where that explains the
    failure, that the node is down. Its agent tells both as events; text proves nothing, whoever delivers it."""
    failure, found = _failure(alone, facts, knowledge.engine), list[NodeProof]()
    for event in facts.events:
        node = _own_name(event.node, facts.nodes)
        if not node:
            continue
        if (event.provenance, event.reason) == (Provenance.SCHEDULER, NODE_FAIL):
            found.append(_scheduler_proof(node, event))
    for down in facts.node_events:
        node = _own_name(down.node, facts.nodes)
        if node is None:
            continue
        if not _is_down(down, facts):
            continue
        if knowledge.node_faults.explains(FailureType.NODE_FAILURE, node, failure):
            found.append(_scheduler_proof(node, down))
    return tuple(found)


def _scheduler_proof(node: str, event: Event | NodeEvent) -> NodeProof:
    return NodeProof(node, ProofKind.SCHEDULER, f"{event.kind}: {event.reason}", "event", time=event.time)


def _is_down(event: NodeEvent, facts: Facts) -> bool:
    """Whether the node went down, and was not back before the failure."""
    if event.kind is not NodeEventKind.DOWN:
        return False
    for other in facts.node_events:
        if (other.node, other.kind) != (event.node, NodeEventKind.RESUMED):
            continue
        if event.time < other.time < facts.failed[0]:
            return False
    return True


def proofs(explaining: Sequence[NodeFault], knowledge: RuleKnowledge) -> tuple[NodeProof, ...]:
    """The faults that justify taking their node out, a few for each node, in order of time."""
    counts, proving = Counter[str](), list[NodeProof]()
    for fault in explaining:
        if not _justifies(fault, knowledge):
            continue
        if counts[fault.node] < _PROOFS:
            counts[fault.node] += 1
            proving.append(_proof(fault))
    return tuple(proving)


def _justifies(fault: NodeFault, knowledge: RuleKnowledge) -> bool:
    """Whether the fault is sure enough to take the node out."""
    stated, line = fault.candidate, fault.line
    if not knowledge.node_faults.proves(fault.type):
        return False  # here it is the process that is at fault
    if stated.maturity is not Maturity.STABLE:
        return False
    if stated.action not in _TAKES_OUT:
        return False
    named = stated.node or system_log.read_record(line.text).host
    if named and not _own_name(named, (fault.node,)):
        return False  # an alias in the line may after all be another host
    if line.continues:
        return False  # the start of a message is what proves, and this is not the start
    return knowledge.node_proofs.in_log(line.stream.source, line.text, fault.type)


def _proof(fault: NodeFault) -> NodeProof:
    line = fault.line
    return NodeProof(fault.node, ProofKind.NODE_LOG, line.text, line.stream.source, line.number, line.time)


def _notes(faults: Sequence[NodeFault], remark: str, why: str = "") -> tuple[str, ...]:
    if not faults:
        return ()
    first, fault = faults[0].line, faults[0]
    more = f" and {len(faults) - 1} more lines" if len(faults) > 1 else ""
    return (f"{remark}: {first.stream.source} log of {fault.node}, line {first.number} ({fault.type}){more}{why}",)
