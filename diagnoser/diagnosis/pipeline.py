"""HOT PATH 2: an attempt's evidence -> Diagnosis. Pure: no clock, no I/O; how long a run is silent is an argument."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.diagnosis import hang_evidence, verdict
from diagnoser.diagnosis.doubts import doubts
from diagnoser.localize import (
    ANCHORS,
    checkpoints,
    clock_skew,
    collectives,
    launches,
    progress,
    ranks,
    rollback,
    suspect_nodes,
)
from diagnoser.localize.exit_reports import ExitTable
from diagnoser.localize.hang_detection import ExpectedSilence, Silence, expected_silence
from diagnoser.localize.stragglers import stragglers
from diagnoser.model import (
    MISMATCHED_COLLECTIVES,
    WAITING_RANKS,
    Anchor,
    Baseline,
    DecisionBasis,
    Diagnosis,
    Evidence,
    ExitReport,
    Facts,
    Rollback,
)
from diagnoser.model.taxonomy import Action, Category, FailureType, category_of
from diagnoser.recovery.node_proofs import NO_PROOFS, NodeProofTable
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.rules import candidates, causality, clean_end, precursors, run_end, statements, xid
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.node_faults import NodeFaultTable
from diagnoser.rules.schema import Blame, Maturity, Role
from diagnoser.rules.xid import XidTable

_T = FailureType
_DEATHS = frozenset({_T.SEGMENTATION_FAULT, _T.HOST_OUT_OF_MEMORY, _T.NODE_FAILURE})
"""Types after which a process is gone."""
_BUFFERED = 20
"""Steps whose lines may still arrive after a process has died."""
_REPORTED = 12
"""Lines after an uncaught exception within which a launcher reports the end of its process."""
_WAITING = frozenset({_T.NCCL_TIMEOUT_ERROR, _T.NCCL_REMOTE_ERROR, _T.CONNECTION_ERROR, _T.NETWORK_ERROR})
"""Types that ranks report because another rank did not arrive."""


@dataclass(frozen=True)
class RuleKnowledge:
    """What a diagnosis needs besides the log; loaded once, shared by all."""

    engine: Engine
    heuristics: Heuristics
    policy: Policy
    calibration: Calibration
    codes: XidTable
    node_faults: NodeFaultTable = field(default_factory=NodeFaultTable)
    exits: ExitTable = field(default_factory=ExitTable)
    node_proofs: NodeProofTable = NO_PROOFS

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        return (*self.engine.ruleset.anchors, *self.exits.anchors, *run_end.ANCHORS, *ANCHORS)


def diagnose(evidence: Evidence, facts: Facts, knowledge: RuleKnowledge, quiet: float | None = None) -> Diagnosis:
    """The deterministic verdict.

    quiet: seconds since the newest line arrived while the attempt is still open, so that silence counts as a hang; None
    when it ended.
    """
    evidence = statements.stated(clock_skew.corrected(evidence))
    evidence = replace(evidence, exits=knowledge.exits.read(statements.stated_lines(evidence.lines)))
    hits = knowledge.engine.match(evidence)
    begins = launches.starts(evidence, _ends(hits))
    series = replace(evidence, progress=launches.series(evidence, begins))
    loss = verdict.loss_break(series)
    timeline = progress.ProgressTimeline(evidence)
    end = clean_end.find_clean_end(evidence, knowledge.heuristics.ends, lambda line: timeline.went_on(line, 0))
    collected = candidates.collect(evidence, hits, knowledge.heuristics, loss, end)
    collected = precursors.link(collected, evidence, knowledge.heuristics.keywords)
    collected = xid.follow(collected, evidence, knowledge.codes)
    causal = causality.decide(evidence, collected, _Recovery(evidence, timeline), begins, diverged=loss is not None)
    location = locate(evidence, facts, causal, begins)
    silence = None if quiet is None else _silence(evidence, facts, begins, quiet)
    advanced = None if quiet is None or silence is None else facts.last_line + quiet - silence.seconds
    dumps = hang_evidence.fresh(evidence, facts, advanced)
    hang = hang_evidence.analyze(evidence, facts, dumps)
    silence = hang_evidence.confirmed(silence, hang)
    diagnosis = verdict.build_diagnosis(evidence, facts, causal, location, knowledge.calibration, silence)
    diagnosis = replace(diagnosis, ruleset=knowledge.engine.ruleset.hash, step=rollback.last_step(evidence))
    if diagnosis.type is _T.LOSS_DIVERGENCE:
        diagnosis = replace(diagnosis, rollback=rollback.find_rollback(series, facts.events, facts.earlier_checkpoints))
    diagnosis = replace(diagnosis, doubts=doubts(diagnosis, causal, {**facts.job.rank_nodes, **evidence.rank_nodes}))
    if hang:
        diagnosis = hang_evidence.apply(diagnosis, hang, dumps, running=quiet is not None)
    return _with_checkpoint(with_advice(diagnosis, causal, facts, knowledge.policy), facts)


def _with_checkpoint(diagnosis: Diagnosis, facts: Facts) -> Diagnosis:
    """A run that could not read its checkpoint goes back to the newest verified one that its lines do not name."""
    if diagnosis.recovery.action is not Action.ROLLBACK_AND_RESUBMIT or diagnosis.rollback is not None:
        return diagnosis
    cited = [entry.text for entry in (diagnosis.root_cause, *diagnosis.evidence) if entry]
    saved = checkpoints.to_resume(facts.events, facts.earlier_checkpoints, cited)
    return replace(diagnosis, rollback=Rollback(saved.path, saved.step, verified=True)) if saved else diagnosis


def expected_silence_with(evidence: Evidence, known: Baseline) -> ExpectedSilence | None:
    """How long a run that is still open may be silent now; needs no rules. known: the clean runs of its family."""
    evidence = clock_skew.corrected(evidence)
    begins = launches.starts(evidence, ())
    return expected_silence(launches.around(evidence, begins, len(evidence.lines)).evidence, known)


def _silence(evidence: Evidence, facts: Facts, begins: Sequence[int], quiet: float) -> Silence | None:
    newest = launches.around(evidence, begins, len(evidence.lines)).evidence
    limit = expected_silence(newest, facts.baseline)
    return limit.silence(quiet) if limit else None


def _ends(hits: Sequence[Hit]) -> Iterator[int]:
    """Lines that say that a run has ended, well or by order."""
    return (hit.line for hit in hits if hit.rule.role is Role.ROOT and category_of(hit.rule.type) is Category.NONE)


def locate(evidence: Evidence, facts: Facts, causal: CausalResult, begins: Sequence[int] = ()) -> verdict.Localization:
    """Where it happened: rank and node of the root, ranks that never arrived, suspect nodes.

    begins: lines at which later launches begin. Only the launch that failed is read.
    """
    part = launches.around(evidence, begins, causal.root.line if causal.root else len(evidence.lines))
    location = _located(part.evidence, facts, _within(causal, part))
    if location.absent and location.absent.line >= 0:
        return replace(location, absent=replace(location.absent, line=location.absent.line + part.first))
    return location


def _within(causal: CausalResult, part: launches.LaunchSegment) -> CausalResult:
    """The result for one launch only, its line indices relative to the launch."""
    inside = ((candidate, reason) for candidate, reason in causal.rejected if part.holds(candidate.line))
    rejected = tuple((replace(candidate, line=candidate.line - part.first), reason) for candidate, reason in inside)
    return CausalResult(causal.root and replace(causal.root, line=causal.root.line - part.first), rejected)


def _located(evidence: Evidence, facts: Facts, causal: CausalResult) -> verdict.Localization:
    root = causal.root
    launch = ranks.read(evidence, facts, root.line if root else None)
    slow = stragglers(evidence, launch.nodes)
    if root is None:
        return verdict.Localization(slow=slow)
    alike = _alike(causal)
    rank, node = _place_root(evidence, causal, root, launch, alone=len(alike) <= 1)
    blamed = suspect_nodes.RootBlame(str(root.blame), rank, node, root.why)
    absent = _absent(evidence, causal, root, launch)
    absent_nodes: tuple[str | None, ...] = ()
    if absent:
        absent_nodes = _nodes_of(absent, launch)
        blamed = suspect_nodes.RootBlame(str(root.blame), None, None, root.why)  # not those who waited
    if absent and len(absent.ranks) == 1:
        rank, node = absent.ranks[0], absent_nodes[0] or node
    if category_of(root.type) in (Category.SCRIPT, Category.NONE):
        return verdict.Localization(rank, node, (), absent, slow)
    suspects = suspect_nodes.suspects(evidence, launch.nodes, blamed, absent_nodes, alike)
    return verdict.Localization(rank, node, suspects, absent, slow)


def _place_root(
    evidence: Evidence, causal: CausalResult, root: Candidate, launch: ranks.LauncherTopology, *, alone: bool
) -> tuple[int | None, str | None]:
    """Rank and node of the root. alone: no other rank reports the same failure."""
    spot = ranks.place(launch, evidence.lines, root.line, root.rank, root.node, alone=alone)
    rank, node = spot.rank, spot.node
    if root.blame is Blame.SELF and root.node and not ranks.is_address(root.node):
        node = root.node  # the line names the node that is at fault, wherever it was printed
    if rank is None and root.exit:
        rank = ranks.only_silent(evidence, _lost_peers(causal))
        node = node or launch.nodes.get(-1 if rank is None else rank)
    return rank, node


def _lost_peers(causal: CausalResult) -> frozenset[int]:
    """Ranks that complain of the connection to a peer, which the root explains."""
    explained = (symptom.rank for symptom in causal.symptoms if symptom.type in _WAITING)
    return frozenset(rank for rank in explained if rank is not None)


def _nodes_of(absent: collectives.Absence, launch: ranks.LauncherTopology) -> tuple[str | None, ...]:
    by_task = launch.task_nodes
    return tuple(map(launch.nodes.get, absent.ranks)) + tuple(map(by_task.get, absent.tasks))


class _Recovery:
    """Whether the job went on after a candidate.

    After a death, buffered lines still arrive, so it takes more steps; after an error that the program itself logged,
    one step is enough. Whatever others do, an exception is not survived by a process that is reported dead next.
    """

    def __init__(self, evidence: Evidence, timeline: progress.ProgressTimeline) -> None:
        self._lines, self._timeline = evidence.lines, timeline
        self._deaths = {report.line: report for report in evidence.exits if report.failed}

    def __call__(self, candidate: Candidate) -> bool:
        line = self._lines[candidate.line]
        if candidate.type is _T.LOSS_DIVERGENCE:
            return candidate.role is Role.SYMPTOM and self._timeline.calmed(line)
        if candidate.line in self._deaths:
            return self._lived_on(self._deaths[candidate.line])
        if candidate.raised and not candidate.logged and self._died_of(candidate):
            return False
        if candidate.type in _DEATHS:
            return self._timeline.went_on(line, _BUFFERED)
        if candidate.logged:
            return self._killed_later(candidate) or self._timeline.went_on(line, 0)
        return self._timeline.went_on(line)

    def _killed_later(self, candidate: Candidate) -> bool:
        """Whether its process is reported killed from outside: no error that a program catches does that to it."""
        rank = self._lines[candidate.line].rank
        later = (r for r in self._deaths.values() if r.line > candidate.line and r.signal == signal.SIGKILL)
        return any(rank < 0 or rank in report.ranks for report in later)

    def _died_of(self, candidate: Candidate) -> bool:
        """Whether the process that raised is reported dead soon after, and trained no more."""
        rank = self._lines[candidate.line].rank
        reports = (r for r in self._deaths.values() if 0 <= r.line - candidate.line <= _REPORTED)
        same = (report for report in reports if rank < 0 or not report.ranks or rank in report.ranks)
        return any(not self._lived_on(report) for report in same)

    def _lived_on(self, report: ExitReport) -> bool:
        """Whether the ranks that are reported dead trained on: they were started again."""
        return self._timeline.lived_on(self._lines[report.line], report.ranks, 0 if report.ranks else _BUFFERED)


def _alike(causal: CausalResult) -> frozenset[int]:
    """Ranks that report the same failure as the root."""
    repeats = [candidate for candidate, reason in causal.rejected if reason is RejectionReason.REPEATED]
    return frozenset(failed.rank for failed in (*repeats, causal.root) if failed and failed.rank is not None)


def _absent(
    evidence: Evidence, causal: CausalResult, root: Candidate, launch: ranks.LauncherTopology
) -> collectives.Absence | None:
    """Whom the others waited for, if waiting is all that the log shows."""
    if root.type not in _WAITING or (root.role is Role.ROOT and root.blame is not Blame.NONE):
        return None
    reports = (root, *(candidate for candidate, reason in causal.rejected if reason is not RejectionReason.BENIGN))
    tasks = {evidence.lines[report.line].task for report in reports} - {-1}
    complained = _first_complaints(evidence, [report for report in reports if report.role is not Role.TEARDOWN])
    absent = collectives.absent(evidence, complained)
    return absent or collectives.absent_task(launch.task_nodes, tasks)


def _first_complaints(evidence: Evidence, reports: Sequence[Candidate]) -> dict[int, int]:
    """rank -> its first own error line. When a thousand ranks print the same, only some lines are kept: the template
    lists the others."""
    ranks_by_sample = {sample: template.ranks for template in evidence.templates for sample in template.samples}
    complained: dict[int, int] = {}
    for report in reports:
        printers = ranks_by_sample.get(evidence.lines[report.line].text, frozenset())
        for rank in printers if report.rank is None else {report.rank, *printers}:
            complained.setdefault(rank, report.line)
    return complained


def with_advice(diagnosis: Diagnosis, causal: CausalResult, facts: Facts, policy: Policy) -> Diagnosis:
    """The diagnosis with what the policy table advises, and what the table looked at."""
    root = None if diagnosis.decided_by in (WAITING_RANKS, MISMATCHED_COLLECTIVES) else causal.root
    grounds = DecisionBasis(
        node_named=suspect_nodes.named(diagnosis.nodes) and diagnosis.category is Category.INFRASTRUCTURE,
        stable=root is not None and root.maturity is Maturity.STABLE,
        sandbox=root is not None and root.maturity is Maturity.SANDBOX,
        hint=root.action if root else None,
    )
    grounded = replace(diagnosis, grounds=grounds)
    return replace(grounded, recovery=policy.advise(case_of(grounded, facts.job.labels)), policy=policy.hash)
