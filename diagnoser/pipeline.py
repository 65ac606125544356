"""HOT PATH 2: an attempt's evidence -> Diagnosis. Pure: no clock, no I/O; `now` is an argument."""

from dataclasses import dataclass, replace

from diagnoser import verdict
from diagnoser.localize import ANCHORS, collectives, nodes, progress, ranks
from diagnoser.model import Anchor, Diagnosis, Evidence, Facts
from diagnoser.recovery.policy import Case, Policy
from diagnoser.rules import candidates, causality
from diagnoser.rules.candidates import Candidate
from diagnoser.rules.causality import Story, Why
from diagnoser.rules.confidence import Calibration
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import Blame, Role
from diagnoser.taxonomy import Category, FailureType, category_of

_T = FailureType
_WAITING = frozenset({_T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR, _T.NETWORK_ERROR})
"""Types that ranks print because another one did not arrive."""


@dataclass(frozen=True)
class Knowledge:
    """What a diagnosis is made with; loaded once, shared by all."""

    engine: Engine
    policy: Policy
    calibration: Calibration

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        return (*self.engine.ruleset.anchors, *ANCHORS)


def diagnose(evidence: Evidence, facts: Facts, knowledge: Knowledge, now: float | None = None) -> Diagnosis:
    """The deterministic verdict.

    now: seconds since the epoch while the attempt is still open, so that silence counts as a hang; None when it ended.
    """
    loss = verdict.loss_break(evidence)
    found = candidates.collect(evidence, knowledge.engine.match(evidence), loss)
    story = causality.decide(evidence, found, lambda one: _recovered(evidence, one), diverged=loss is not None)
    place = locate(evidence, facts, story)
    told = verdict.tell(evidence, facts, story, place, knowledge.calibration, now)
    return _advised(replace(told, ruleset=knowledge.engine.ruleset.hash), story, knowledge.policy)


def locate(evidence: Evidence, facts: Facts, story: Story) -> verdict.Place:
    """Where it happened: rank and node of the root, ranks that never arrived, nodes by suspicion."""
    root = story.root
    if root is None:
        return verdict.Place()
    launch = ranks.read(evidence, facts)
    alike = _alike(story)
    rank, node = ranks.place(launch, evidence.lines, root.line, root.rank, root.node, alone=len(alike) <= 1)
    absent = _absent(evidence, story, root, launch)
    missing = _nodes_of(absent, launch) if absent else ()
    if absent and len(absent.ranks) == 1:
        rank, node = absent.ranks[0], missing[0] or node
    blamed = nodes.Blamed(str(root.blame), None if absent else rank, None if absent else node, root.why)
    suspects = nodes.suspects(evidence, launch.nodes, blamed, missing, alike)
    if category_of(root.type) in (Category.SCRIPT, Category.NONE):
        suspects = ()
    return verdict.Place(rank, node, suspects, absent)


def _nodes_of(absent: collectives.Absence, launch: ranks.Launch) -> tuple[str | None, ...]:
    by_task = launch.task_nodes
    return tuple(map(launch.nodes.get, absent.ranks)) + tuple(map(by_task.get, absent.tasks))


def _recovered(evidence: Evidence, one: Candidate) -> bool:
    return one.type is not _T.LOSS_DIVERGENCE and progress.went_on(evidence, evidence.lines[one.line])


def _alike(story: Story) -> frozenset[int]:
    """Ranks that tell of the same failure as the root."""
    root = story.root
    same = [one for one, why in story.rejected if why is Why.REPEATED] + ([root] if root else [])
    return frozenset(one.rank for one in same if one.rank is not None)


def _absent(evidence: Evidence, story: Story, root: Candidate, launch: ranks.Launch) -> collectives.Absence | None:
    """Whom the others waited for, when all that the log shows is that they waited."""
    if root.type not in _WAITING or (root.role is Role.ROOT and root.blame is not Blame.NONE):
        return None
    complained: dict[int, int] = {}
    tasks: set[int] = set()
    for one in (root, *(other for other, _ in story.rejected)):
        tasks.add(evidence.lines[one.line].task)
        if one.rank is not None and one.role is not Role.TEARDOWN:
            complained.setdefault(one.rank, one.line)
    absent = collectives.absent(evidence, complained)
    return absent or collectives.absent_task(launch.task_nodes, tasks - {-1})


def _advised(diagnosis: Diagnosis, story: Story, policy: Policy) -> Diagnosis:
    root = story.root
    named = nodes.named(diagnosis.nodes) and diagnosis.category is Category.INFRASTRUCTURE
    case = Case(
        type=diagnosis.type,
        category=diagnosis.category,
        confidence=diagnosis.confidence,
        node_named=named,
        stable=bool(root and root.stable),
        hint=root.action if root else None,
    )
    return replace(diagnosis, recovery=policy.advise(case))
