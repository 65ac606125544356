"""HOT PATH 2: an attempt's evidence -> Diagnosis. Pure: no clock, no I/O; how long a run is silent is an argument."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnoser.diagnosis import ended_hang, guess, hang_evidence, verdict
from diagnoser.diagnosis.recovered import RecoveryCheck
from diagnoser.diagnosis.review_reasons import is_outlived, review_reasons
from diagnoser.localize import (
    ANCHORS,
    checkpoints,
    clock_skew,
    collectives,
    launches,
    metric_breaks,
    progress,
    ranks,
    rollback,
    suspect_nodes,
)
from diagnoser.localize.exit_reports import ExitTable
from diagnoser.localize.hang_detection import ExpectedSilence, Silence, agreed_silence, expected_silence
from diagnoser.localize.metric_series import LossBreak
from diagnoser.localize.node_names import NodeNames
from diagnoser.localize.stragglers import stragglers
from diagnoser.model import (
    MISMATCHED_COLLECTIVES,
    WAITING_RANKS,
    Anchor,
    Baseline,
    DecisionBasis,
    Diagnosis,
    Evidence,
    Facts,
    Job,
    Rollback,
    RuntimeFile,
    StuckPlace,
    SuspectKind,
)
from diagnoser.model.job_contract import contract_of, labels_of
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.recovery.node_proofs import NO_PROOFS, NodeProofTable
from diagnoser.recovery.policy import Policy, case_of
from diagnoser.rules import (
    candidates,
    causality,
    clean_end,
    exception_lines,
    left_behind,
    log_likeness,
    outcome,
    quotations,
    statements,
    xid,
)
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.node_faults import NodeFaultTable
from diagnoser.rules.node_metrics import NodeMetricTable
from diagnoser.rules.schema import Blame, Maturity, Role
from diagnoser.rules.xid import XidTable

if TYPE_CHECKING:
    from diagnoser.hang.report import HangReport  # its readers take a while to load

_T = FailureType
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
    node_metrics: NodeMetricTable = field(default_factory=NodeMetricTable)

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """What the compressor's gate must let through."""
        of_modules = (*quotations.ANCHORS, *exception_lines.ANCHORS, *ANCHORS)
        return (*self.engine.ruleset.anchors, *self.exits.anchors, *of_modules)


def diagnose(evidence: Evidence, facts: Facts, knowledge: RuleKnowledge, quiet: float | None = None) -> Diagnosis:
    """The deterministic verdict.

    quiet: seconds since the newest line arrived while the attempt is still open, so that silence counts as a hang; None
        when it ended.
    """
    evidence = as_read(evidence, knowledge.exits)
    reads_like = _unlike_a_run(evidence, facts, quiet)
    if reads_like:
        return verdict.no_run(evidence, reads_like, knowledge.engine.ruleset.hash)
    hits = knowledge.engine.match(evidence)
    begins = launches.starts(evidence, _ends(hits))
    series = replace(evidence, progress=launches.series(evidence, begins))
    broken = metric_breaks.loss_break(series.progress, is_running=quiet is not None)
    loss = verdict.loss_divergence(series, broken)
    timeline = progress.ProgressTimeline(evidence)
    reported = outcome.reported(facts.events)
    ends = knowledge.heuristics.ends
    processes = left_behind.find_processes(evidence, ends.says_last_words, ends.says_trouble)
    end = clean_end.find_clean_end(evidence, ends, lambda line: timeline.went_on(line, 0), processes, _orders(hits))
    collected = candidates.collect(evidence, hits, knowledge.heuristics, loss, end)
    collected = xid.follow(collected, evidence, knowledge.codes)
    causal = causality.decide(
        evidence,
        collected,
        RecoveryCheck(evidence, timeline),
        begins,
        diverged=loss is not None,
        completed=outcome.is_success(reported),
        ended=processes,
    )
    silence, dumps, hang = _silence(evidence, facts, begins, quiet)
    if quiet is None and hang is None:
        causal = guess.with_guess(causal, evidence, hits, knowledge.heuristics, reported, processes)
    location = locate(evidence, facts, causal, begins)
    diagnosis = verdict.build_diagnosis(evidence, reported, causal, location, knowledge.calibration, silence)
    diagnosis = replace(diagnosis, ruleset=knowledge.engine.ruleset.hash, step=rollback.last_step(evidence))
    if quiet is None and reported is None and diagnosis.outcome is Outcome.UNKNOWN:
        diagnosis = replace(diagnosis, notes=(*diagnosis.notes, outcome.HINT))
    if diagnosis.type is _T.LOSS_DIVERGENCE:
        diagnosis = _with_break(diagnosis, broken, series, facts, is_running=quiet is not None)
    outlived = reported is None and is_outlived(evidence, causal)
    diagnosis = replace(diagnosis, doubts=review_reasons(diagnosis, knowledge.calibration, outlived=outlived))
    if hang:
        seen = hang_evidence.look(evidence, facts, hang, dumps) if silence else None
        diagnosis = hang_evidence.apply(diagnosis, hang, dumps, running=quiet is not None, seen=seen)
    diagnosis = _with_checkpoint(with_advice(diagnosis, causal, facts, knowledge.policy), facts)
    return ended_hang.keep_hang(diagnosis, evidence, facts)


def as_read(evidence: Evidence, exits: ExitTable) -> Evidence:
    """The evidence in corrected time, without what only repeats or advises, and with the ends of processes that it
    reports."""
    evidence = statements.stated(clock_skew.corrected(evidence))
    return replace(evidence, exits=exits.read(statements.stated_lines(evidence.lines)))


def _with_break(
    diagnosis: Diagnosis, broken: LossBreak | None, series: Evidence, facts: Facts, *, is_running: bool
) -> Diagnosis:
    """The diagnosis of a loss that diverged, with where to go back to and a picture of the series."""
    notes = diagnosis.notes
    if broken:
        notes = (metric_breaks.picture(broken, is_running=is_running), *notes)
    elif diagnosis.root_cause:
        broken = metric_breaks.reported_break(series.progress, diagnosis.root_cause.line)
    point = rollback.find_rollback(broken, series, facts.events, facts.earlier_checkpoints)
    return replace(diagnosis, rollback=point, notes=notes)


def _unlike_a_run(evidence: Evidence, facts: Facts, quiet: float | None) -> str:
    """What a file reads like that is not the log of a run. What anything else is known about is a run."""
    if quiet is not None or facts != Facts(baseline=facts.baseline):
        return ""
    return log_likeness.unlike_a_run(evidence)


def _silence(
    evidence: Evidence, facts: Facts, begins: Sequence[int], quiet: float | None
) -> tuple[Silence | None, list[RuntimeFile], "HangReport | None"]:
    """The silence of an open attempt, the dumps that were taken in it, and what they show."""
    silence, advanced = None, None
    if quiet is not None:
        limit = expected_silence(launches.around(evidence, begins, len(evidence.lines)).evidence, facts.baseline)
        limit = agreed_silence(limit, contract_of(facts.job))
        silence = limit.silence(quiet) if limit else None
        if silence:
            advanced = facts.last_line + quiet - silence.seconds
    dumps = hang_evidence.fresh(evidence, facts, advanced)
    hang = hang_evidence.analyze(evidence, facts, dumps)
    return hang_evidence.confirmed(silence, hang), dumps, hang


def _with_checkpoint(diagnosis: Diagnosis, facts: Facts) -> Diagnosis:
    """A run that could not read its checkpoint goes back to the newest verified one that its lines do not name."""
    if diagnosis.recovery.action is not Action.ROLLBACK_AND_RESUBMIT:
        return diagnosis
    if diagnosis.rollback is not None:
        return diagnosis
    cited = [entry.text for entry in (diagnosis.root_cause, *diagnosis.evidence) if entry]
    saved = checkpoints.to_resume(facts.events, facts.earlier_checkpoints, cited)
    if saved is None:
        return diagnosis
    return replace(diagnosis, rollback=Rollback(saved.path, saved.step, verified=True))


def expected_silence_of(job: Job, evidence: Evidence, known: Baseline) -> ExpectedSilence | None:
    """How long a run that is still open may be silent now; needs no rules. known: the clean runs of its family."""
    evidence = clock_skew.corrected(evidence)
    begins = launches.starts(evidence, ())
    limit = expected_silence(launches.around(evidence, begins, len(evidence.lines)).evidence, known)
    return agreed_silence(limit, contract_of(job))


def _ends(hits: Sequence[Hit]) -> Iterator[int]:
    """Lines that say that a run has ended, well or by order."""
    for hit in hits:
        if (hit.rule.role, category_of(hit.rule.type)) == (Role.ROOT, Category.NONE):
            yield hit.line


def _orders(hits: Sequence[Hit]) -> list[int]:
    """Lines in which a process was told to end."""
    return [hit.line for hit in hits if (hit.rule.role, hit.rule.type) == (Role.SYMPTOM, _T.CANCELLED)]


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
    rank, node = _place_root(evidence, causal, root, launch, alone=len(alike) <= 1)
    node = names.canonical(node)
    text = evidence.lines[root.line].body
    blamed = suspect_nodes.RootBlame(root.type, str(root.blame), rank, node, root.why, text)
    absent = _absent(evidence, causal, root, launch)
    absent_nodes: tuple[str | None, ...] = ()
    if absent:
        absent_nodes = tuple(map(names.canonical, _nodes_of(absent, launch)))
        blamed = replace(blamed, rank=None, node=None)  # not those who waited
        if len(absent.ranks) == 1:
            rank, node = absent.ranks[0], absent_nodes[0] or node
    suspects = suspect_nodes.suspects(evidence, launch.nodes, blamed, absent_nodes, alike, names)
    return verdict.Localization(rank, node, suspects, absent, slow)


def _place_root(
    evidence: Evidence, causal: CausalResult, root: Candidate, launch: ranks.LauncherTopology, *, alone: bool
) -> tuple[int | None, str | None]:
    """Rank and node of the root. alone: no other rank reports the same failure."""
    spot = ranks.place(launch, evidence.lines, root.line, root.rank, root.node, alone=alone)
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
    ranks_by_sample = {sample: template.ranks for template in evidence.templates for sample in template.samples}
    complained: dict[int, int] = {}
    for report in reports:
        if report.role is Role.TEARDOWN:
            continue
        printers = ranks_by_sample.get(evidence.lines[report.line].text, frozenset())
        for rank in (*_ranks_of([report]), *printers):
            complained.setdefault(rank, report.line)
    return complained


def with_advice(diagnosis: Diagnosis, causal: CausalResult, facts: Facts, policy: Policy) -> Diagnosis:
    """The diagnosis with what the policy table advises, and what the table looked at."""
    suspects = diagnosis.nodes if diagnosis.category is Category.INFRASTRUCTURE else ()
    grounds = DecisionBasis(node_named=suspect_nodes.named(suspects), stuck=_stuck_place(diagnosis))
    root = causal.root
    if root and diagnosis.decided_by not in (WAITING_RANKS, MISMATCHED_COLLECTIVES):
        stable, sandbox = root.maturity is Maturity.STABLE, root.maturity is Maturity.SANDBOX
        grounds = replace(grounds, stable=stable, sandbox=sandbox, hint=root.action)
    grounded = replace(diagnosis, grounds=grounds)
    return replace(grounded, recovery=policy.advise(case_of(grounded, labels_of(facts.job))), policy=policy.hash)


def _stuck_place(diagnosis: Diagnosis) -> StuckPlace | None:
    """What stands still where agents saw the suspects stuck: a node, where several ranks do and all are on it, or one
    waits with the others and does not answer."""
    if diagnosis.hang is None or diagnosis.hang.look is None:
        return None
    suspects = diagnosis.hang.suspects
    if len({suspect.node for suspect in suspects}) == 1 < len(suspects):
        return StuckPlace.NODE
    if any(suspect.kind is SuspectKind.ABSENT for suspect in suspects):
        return StuckPlace.NODE
    return StuckPlace.RANK
