"""HOT PATH 2: an attempt's evidence -> Diagnosis. Pure: no clock, no I/O; `now` is an argument."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnoser.diagnosis import verdict
from diagnoser.localize import ANCHORS, clock_skew, collectives, launches, progress, ranks, rollback, suspect_nodes
from diagnoser.localize.hang_detection import silence
from diagnoser.localize.stragglers import stragglers
from diagnoser.model import Anchor, DecisionBasis, Diagnosis, Evidence, Facts
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.rules import candidates, causality, run_end
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidates import Candidate, Heuristics
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.schema import Blame, Maturity, Role

_T = FailureType
_DEATHS = frozenset({_T.SEGMENTATION_FAULT, _T.HOST_OUT_OF_MEMORY, _T.NODE_FAILURE})
"""Types after which a process is gone."""
_BUFFERED = 20
"""Steps whose lines may still arrive after a process has died."""
_WAITING = frozenset({_T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR, _T.NETWORK_ERROR})
"""Types that ranks print because another one did not arrive."""


@dataclass(frozen=True)
class RuleKnowledge:
    """What a diagnosis is made with; loaded once, shared by all."""

    engine: Engine
    heuristics: Heuristics
    policy: Policy
    calibration: Calibration

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        return (*self.engine.ruleset.anchors, *run_end.ANCHORS, *ANCHORS)


def diagnose(evidence: Evidence, facts: Facts, knowledge: RuleKnowledge, now: float | None = None) -> Diagnosis:
    """The deterministic verdict.

    now: seconds since the epoch while the attempt is still open, so that silence counts as a hang; None when it ended.
    """
    evidence = clock_skew.corrected(evidence)
    hits = knowledge.engine.match(evidence)
    begins = launches.starts(evidence, _ends(hits))
    series = replace(evidence, progress=launches.series(evidence, begins))
    loss = verdict.loss_break(series)
    found = candidates.collect(evidence, hits, knowledge.heuristics, loss)
    story = causality.decide(evidence, found, _recovered(evidence), begins, diverged=loss is not None)
    place = locate(evidence, facts, story, begins)
    quiet = None if now is None else silence(launches.around(evidence, begins, len(evidence.lines)).evidence, now)
    told = verdict.build_diagnosis(evidence, facts, story, place, knowledge.calibration, quiet)
    told = replace(told, ruleset=knowledge.engine.ruleset.hash, step=rollback.last_step(evidence))
    if told.type is _T.LOSS_DIVERGENCE:
        told = replace(told, rollback=rollback.find(series, facts.events))
    return _advised(told, story, facts, knowledge.policy)


def _ends(hits: Sequence[Hit]) -> Iterator[int]:
    """Lines that say that a run has ended, well or by order."""
    return (hit.line for hit in hits if hit.rule.role is Role.ROOT and category_of(hit.rule.type) is Category.NONE)


def locate(evidence: Evidence, facts: Facts, story: CausalResult, begins: Sequence[int] = ()) -> verdict.Localization:
    """Where it happened: rank and node of the root, ranks that never arrived, nodes by suspicion.

    begins: lines at which later launches begin. Only the launch that failed is asked.
    """
    part = launches.around(evidence, begins, story.root.line if story.root else len(evidence.lines))
    place = _placed(part.evidence, facts, _within(story, part))
    if place.absent and place.absent.line >= 0:
        return replace(place, absent=replace(place.absent, line=place.absent.line + part.first))
    return place


def _within(story: CausalResult, part: launches.LaunchSegment) -> CausalResult:
    """The story of one launch, its lines counted from there."""
    told = ((one, why) for one, why in story.rejected if part.holds(one.line))
    rejected = tuple((replace(one, line=one.line - part.first), why) for one, why in told)
    return CausalResult(story.root and replace(story.root, line=story.root.line - part.first), rejected)


def _placed(evidence: Evidence, facts: Facts, story: CausalResult) -> verdict.Localization:
    root = story.root
    launch = ranks.read(evidence, facts, root.line if root else None)
    slow = stragglers(evidence, launch.nodes)
    if root is None:
        return verdict.Localization(slow=slow)
    alike = _alike(story)
    rank, node = ranks.place(launch, evidence.lines, root.line, root.rank, root.node, alone=len(alike) <= 1)
    node = root.node if root.blame is Blame.SELF and root.node and not ranks.is_address(root.node) else node
    absent = _absent(evidence, story, root, launch)
    missing = _nodes_of(absent, launch) if absent else ()
    if absent and len(absent.ranks) == 1:
        rank, node = absent.ranks[0], missing[0] or node
    blamed = suspect_nodes.Blamed(str(root.blame), None if absent else rank, None if absent else node, root.why)
    suspects = suspect_nodes.suspects(evidence, launch.nodes, blamed, missing, alike)
    if category_of(root.type) in (Category.SCRIPT, Category.NONE):
        suspects = ()
    return verdict.Localization(rank, node, suspects, absent, slow)


def _nodes_of(absent: collectives.Absence, launch: ranks.LauncherTopology) -> tuple[str | None, ...]:
    by_task = launch.task_nodes
    return tuple(map(launch.nodes.get, absent.ranks)) + tuple(map(by_task.get, absent.tasks))


def _recovered(evidence: Evidence) -> Callable[[Candidate], bool]:
    """Whether the job went on after a candidate: a death needs more than what was still in the pipe."""
    course = progress.ProgressTimeline(evidence)

    def recovered(one: Candidate) -> bool:
        line = evidence.lines[one.line]
        if one.type is _T.LOSS_DIVERGENCE:
            return one.role is Role.SYMPTOM and course.calmed(line)
        return course.went_on(line, _BUFFERED) if one.type in _DEATHS else course.went_on(line)

    return recovered


def _alike(story: CausalResult) -> frozenset[int]:
    """Ranks that tell of the same failure as the root."""
    root = story.root
    same = [one for one, why in story.rejected if why is RejectionReason.REPEATED] + ([root] if root else [])
    return frozenset(one.rank for one in same if one.rank is not None)


def _absent(
    evidence: Evidence, story: CausalResult, root: Candidate, launch: ranks.LauncherTopology
) -> collectives.Absence | None:
    """Whom the others waited for, when all that the log shows is that they waited."""
    if root.type not in _WAITING or (root.role is Role.ROOT and root.blame is not Blame.NONE):
        return None
    spoken = (root, *(other for other, why in story.rejected if why is not RejectionReason.BENIGN))
    tasks = {evidence.lines[one.line].task for one in spoken} - {-1}
    complained = _complained(evidence, [one for one in spoken if one.role is not Role.TEARDOWN])
    absent = collectives.absent(evidence, complained)
    return absent or collectives.absent_task(launch.task_nodes, tasks)


def _complained(evidence: Evidence, spoken: Sequence[Candidate]) -> dict[int, int]:
    """rank -> its first own error line. Of a thousand ranks that print the same only some lines are kept: the template
    knows the others."""
    spread = {sample: template.ranks for template in evidence.templates for sample in template.samples}
    complained: dict[int, int] = {}
    for one in spoken:
        same = spread.get(evidence.lines[one.line].text, frozenset())
        for rank in same if one.rank is None else {one.rank, *same}:
            complained.setdefault(rank, one.line)
    return complained


def _advised(diagnosis: Diagnosis, story: CausalResult, facts: Facts, policy: Policy) -> Diagnosis:
    root = story.root
    grounds = DecisionBasis(
        node_named=suspect_nodes.named(diagnosis.nodes) and diagnosis.category is Category.INFRASTRUCTURE,
        stable=root is not None and root.maturity is Maturity.STABLE,
        sandbox=root is not None and root.maturity is Maturity.SANDBOX,
        hint=root.action if root else None,
    )
    known = replace(diagnosis, grounds=grounds)
    return replace(known, recovery=policy.advise(case_of(known, facts.job.labels)))
