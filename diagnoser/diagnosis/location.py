"""Where a failure happened: the rank and the node of its root, ranks that never arrived, and suspect nodes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from diagnoser.diagnosis import verdict
from diagnoser.localize import collectives, launches, ranks, suspect_nodes
from diagnoser.localize.node_names import NodeNames
from diagnoser.localize.stragglers import stragglers
from diagnoser.model import Evidence, Facts
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Blame, Role

_T = FailureType
_WAITING = frozenset({_T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR, _T.NETWORK_ERROR})
"""Types that ranks report because another rank did not arrive."""


def locate(evidence: Evidence, facts: Facts, causal: CausalResult, begins: Sequence[int] = ()) -> verdict.Localization:
    """Where it happened: rank and node of the root, ranks that never arrived, suspect nodes.

    begins: lines at which later launches begin. Only the launch that failed is read.
    """
    part = launches.around(evidence, begins, causal.root.line if causal.root else len(evidence.lines))
    location = _located(part.evidence, facts, _within(causal, part))
    absent = location.absent
    if absent is None:
        return location
    if absent.line < 0:
        return location
    return replace(location, absent=replace(absent, line=absent.line + part.first))


def _within(causal: CausalResult, part: launches.LaunchSegment) -> CausalResult:
    """The result for one launch only, its line indices relative to the launch."""
    rejected = []
    for candidate, reason in causal.rejected:
        if part.holds(candidate.line):
            rejected.append((replace(candidate, line=candidate.line - part.first), reason))
    root = causal.root
    if root:
        root = replace(root, line=root.line - part.first)
    return CausalResult(root, tuple(rejected))


def _located(evidence: Evidence, facts: Facts, causal: CausalResult) -> verdict.Localization:
    root = causal.root
    launch = ranks.read(evidence, facts, root.line if root else None)
    names = NodeNames(evidence, (*facts.job.nodes, *facts.job.rank_nodes.values()), launch.printed, launch.pods)
    launch = replace(launch, nodes=names.of_ranks(launch.nodes))
    slow = stragglers(evidence, launch.nodes)
    if root is None:
        return verdict.Localization(slow=slow)
    alike = _alike(causal)
    spot = ranks.place(launch, evidence.lines, root.line, root.rank, root.node, alone=len(alike) <= 1)
    if root.blame is Blame.PEER and ranks.is_of_printer(spot, evidence.lines[root.line]):
        spot = replace(spot, node=None)
    rank, node = _place_root(evidence, causal, root, launch, spot)
    node = names.canonical(node)
    text = evidence.lines[root.line].body
    blamed = suspect_nodes.RootBlame(root.type, str(root.blame), rank, node, root.why, text)
    # a line that names its peer tells more than who is silent
    absent = None if spot.rank_source == ranks.PEER else _absent(evidence, causal, root, launch)
    absent_nodes: tuple[str | None, ...] = ()
    if absent:
        absent_nodes = tuple(map(names.canonical, _nodes_of(absent, launch)))
        blamed = replace(blamed, rank=None, node=None)  # not those who waited
        if len(absent.ranks) == 1:
            rank, node = absent.ranks[0], absent_nodes[0] or node
    suspects = suspect_nodes.suspects(evidence, launch.nodes, blamed, absent_nodes, alike, names)
    return verdict.Localization(rank, node, suspects, absent, slow)


def _place_root(
    evidence: Evidence, causal: CausalResult, root: Candidate, launch: ranks.LauncherTopology, spot: ranks.Spot
) -> tuple[int | None, str | None]:
    """Rank and node of the root.

    spot: as the lines around it and the launcher tell them.
    """
    rank, node = spot.rank, spot.node
    node = _named_culprit(root) or node
    if rank is not None:
        return rank, node
    if not root.exit:
        return rank, node
    rank = ranks.only_silent(evidence, _lost_peers(causal))
    if rank is not None:
        node = node or launch.nodes.get(rank)
    return rank, node


def _named_culprit(root: Candidate) -> str | None:
    """The node at fault that the line of the root names, wherever it was printed."""
    if root.blame is not Blame.SELF:
        return None
    if ranks.is_address(root.node or ""):
        return None
    return root.node


def _lost_peers(causal: CausalResult) -> frozenset[int]:
    """Ranks that complain of the connection to a peer, which the root explains."""
    return _ranks_of(symptom for symptom in causal.symptoms if symptom.type in _WAITING)


def _ranks_of(found: Iterable[Candidate]) -> frozenset[int]:
    """The ranks of the candidates, as far as known."""
    return frozenset(candidate.rank for candidate in found if candidate.rank is not None)


def _nodes_of(absent: collectives.Absence, launch: ranks.LauncherTopology) -> tuple[str | None, ...]:
    by_task = launch.task_nodes
    return tuple(map(launch.nodes.get, absent.ranks)) + tuple(map(by_task.get, absent.tasks))


def _alike(causal: CausalResult) -> frozenset[int]:
    """Ranks that report the same failure as the root."""
    return _ranks_of(filter(None, (*causal.rejected_as(RejectionReason.REPEATED), causal.root)))


def _absent(
    evidence: Evidence, causal: CausalResult, root: Candidate, launch: ranks.LauncherTopology
) -> collectives.Absence | None:
    """Whom the others waited for, if waiting is all that the log shows."""
    if root.type not in _WAITING:
        return None
    if root.is_root and root.blame is not Blame.NONE:
        return None  # the root says more than that somebody waited
    reports = [root, *causal.rejected_as(*set(RejectionReason) - {RejectionReason.BENIGN})]
    absent = collectives.absent(evidence, _first_complaints(evidence, reports))
    tasks = {evidence.lines[report.line].task for report in reports} - {-1}
    return absent or collectives.absent_task(launch.task_nodes, tasks)


def _first_complaints(evidence: Evidence, reports: Sequence[Candidate]) -> dict[int, int]:
    """rank -> its first own error line. When a thousand ranks print the same, only some lines are kept: the template
    lists the others."""
    ranks_by_sample = dict[str, frozenset[int]]()
    for template in evidence.templates:
        ranks_by_sample |= dict.fromkeys(template.samples, template.ranks)
    complained: dict[int, int] = {}
    for report in reports:
        if report.role is Role.TEARDOWN:
            continue
        printers = ranks_by_sample.get(evidence.lines[report.line].text, frozenset())
        for rank in (*_ranks_of([report]), *printers):
            complained.setdefault(rank, report.line)
    return complained
