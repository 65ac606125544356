"""HOT PATH 2: an attempt's evidence -> Diagnosis. Pure: no clock, no I/O; how long a run is silent is an argument."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diagnoser.diagnosis import ended_hang, guess, hang_evidence, verdict
from diagnoser.diagnosis.confidence import ended_badly, is_outlived, review_reasons
from diagnoser.diagnosis.location import locate
from diagnoser.diagnosis.recovered import RecoveryCheck
from diagnoser.localize import (
    ANCHORS,
    checkpoints,
    clock_skew,
    launches,
    metric_breaks,
    progress,
    rollback,
    suspect_nodes,
)
from diagnoser.localize.exit_reports import ExitTable
from diagnoser.localize.hang_detection import ExpectedSilence, Silence, agreed_silence, expected_silence
from diagnoser.localize.metric_series import LossBreak
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
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.engine import Engine, Hit
from diagnoser.rules.node_faults import NodeFaultTable
from diagnoser.rules.node_metrics import NodeMetricTable
from diagnoser.rules.run_end import RunTimeline
from diagnoser.rules.schema import Maturity, Role
from diagnoser.rules.xid import XidTable

if TYPE_CHECKING:
    from diagnoser.hang.report import HangReport  # its readers take a while to load


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


@dataclass(frozen=True, slots=True)
class _Run:
    """What the log of an attempt shows before a cause is looked for.

    begins: lines at which later launches begin.
    series: the evidence with the steps of its newest launch.
    broken: where its loss breaks.
    reported: what witnesses outside the log say of the end.
    processes: those of the job, and how each ended.
    quiet: see ``diagnose``.
    """

    evidence: Evidence
    hits: Sequence[Hit]
    begins: Sequence[int]
    series: Evidence
    broken: LossBreak | None
    reported: outcome.Ending | None
    processes: left_behind.Processes
    quiet: float | None

    @property
    def is_running(self) -> bool:
        return self.quiet is not None


def diagnose(evidence: Evidence, facts: Facts, knowledge: RuleKnowledge, quiet: float | None = None) -> Diagnosis:
    """The deterministic verdict.

    quiet: seconds since the newest line arrived while the attempt is still open, so that silence counts as a hang; None
        when it ended.
    """
    evidence = as_read(evidence, knowledge.exits)
    reads_like = _unlike_a_run(evidence, facts, quiet)
    if reads_like:
        return verdict.no_run(evidence, reads_like, knowledge.engine.ruleset.hash)
    run = _read_run(evidence, facts, knowledge, quiet)
    causal = _decide(run, knowledge)
    silence, dumps, hang = _silence(run, facts)
    if not run.is_running and hang is None:  # what runs may still tell, and what hangs has better witnesses
        causal = guess.with_guess(causal, evidence, run.hits, knowledge.heuristics, run.reported, run.processes)
    diagnosis = _state(run, causal, facts, knowledge, silence)
    if hang:
        seen = hang_evidence.look(evidence, facts, hang, dumps) if silence else None
        diagnosis = hang_evidence.apply(diagnosis, hang, dumps, running=run.is_running, seen=seen)
    diagnosis = _with_checkpoint(with_advice(diagnosis, causal, facts, knowledge.policy), facts)
    return ended_hang.keep_hang(diagnosis, evidence, facts)


def _read_run(evidence: Evidence, facts: Facts, knowledge: RuleKnowledge, quiet: float | None) -> _Run:
    hits = knowledge.engine.match(evidence)
    begins = launches.starts(evidence, _ends(hits))
    series = replace(evidence, progress=launches.series(evidence, begins))
    broken = metric_breaks.loss_break(series.progress, is_running=quiet is not None)
    ends = knowledge.heuristics.ends
    newest = evidence.lines[begins[-1]] if begins else None
    processes = left_behind.find_processes(series, ends.says_last_words, ends.complains, newest)
    return _Run(evidence, hits, begins, series, broken, outcome.reported(facts.events), processes, quiet)


def _belied_status(run: _Run, knowledge: RuleKnowledge) -> str:
    """Why a status of success may not be the training's own; "" where nothing speaks against it. It is that of a
    script's last command: behind a pipe, or before an ``echo``, a training may have crashed. The log says so where it
    shows a process that ended badly, and no good end of the run."""
    if not outcome.is_success(run.reported) or not ended_badly(run.evidence, None):
        return ""
    root = _decide(replace(run, reported=None), knowledge).root
    return outcome.BELIED if root and root.is_fault else ""


def _decide(run: _Run, knowledge: RuleKnowledge) -> CausalResult:
    """Find the root among all lines that may be one."""
    timeline, tables = progress.ProgressTimeline(run.evidence), knowledge.heuristics
    end = clean_end.find_clean_end(
        run.evidence, tables.ends, lambda line: timeline.went_on(line, 0), run.processes, _orders(run.hits)
    )
    loss = verdict.loss_divergence(run.series, run.broken)
    collected = candidates.collect(run.evidence, run.hits, tables, loss, end)
    order = RunTimeline(
        run.evidence,
        RecoveryCheck(run.evidence, timeline, run.processes.found),
        run.begins,
        diverged=loss is not None,
        completed=outcome.is_success(run.reported),
        ended=run.processes,
    )
    return causality.decide(xid.follow(collected, run.evidence, knowledge.codes), order)


def _state(
    run: _Run, causal: CausalResult, facts: Facts, knowledge: RuleKnowledge, silence: Silence | None
) -> Diagnosis:
    """The diagnosis by the log alone, with where it happened, how sure it is, and why it may be wrong."""
    location = locate(run.evidence, facts, causal, run.begins)
    diagnosis = verdict.build_diagnosis(run.evidence, run.reported, causal, location, knowledge.calibration, silence)
    diagnosis = replace(diagnosis, ruleset=knowledge.engine.ruleset.hash, step=rollback.last_step(run.evidence))
    has_witness = run.is_running or run.reported is not None
    if not has_witness and diagnosis.outcome is Outcome.UNKNOWN:
        diagnosis = replace(diagnosis, notes=(*diagnosis.notes, outcome.HINT))
    diagnosis = replace(diagnosis, needs_review=_belied_status(run, knowledge))
    if diagnosis.type is FailureType.LOSS_DIVERGENCE:
        diagnosis = _with_break(diagnosis, run, facts)
    outlived = run.reported is None and is_outlived(run.evidence, causal)
    doubts = review_reasons(diagnosis, knowledge.calibration, outlived=outlived, contested=causal.is_contested)
    return replace(diagnosis, doubts=doubts)


def as_read(evidence: Evidence, exits: ExitTable) -> Evidence:
    """The evidence in corrected time, without what only repeats or advises, and with the ends of processes that it
    reports."""
    evidence = statements.stated(clock_skew.corrected(evidence))
    return replace(evidence, exits=exits.read(statements.stated_lines(evidence.lines)))


def _with_break(diagnosis: Diagnosis, run: _Run, facts: Facts) -> Diagnosis:
    """The diagnosis of a loss that diverged, with where to go back to and a picture of the series."""
    notes, broken = diagnosis.notes, run.broken
    if broken:
        notes = (metric_breaks.picture(broken, is_running=run.is_running), *notes)
    elif diagnosis.root_cause:
        broken = metric_breaks.reported_break(run.series.progress, diagnosis.root_cause.line)
    point = rollback.find_rollback(broken, run.series, facts.events, facts.earlier_checkpoints)
    return replace(diagnosis, rollback=point, notes=notes)


def _unlike_a_run(evidence: Evidence, facts: Facts, quiet: float | None) -> str:
    """What a file reads like that is not the log of a run. What anything else is known about is a run."""
    if quiet is not None or facts != Facts(baseline=facts.baseline):
        return ""
    return log_likeness.unlike_a_run(evidence)


def _silence(run: _Run, facts: Facts) -> tuple[Silence | None, list[RuntimeFile], "HangReport | None"]:
    """The silence of an open attempt, the dumps that were taken in it, and what they show."""
    silence, advanced = None, None
    if run.quiet is not None:
        newest = launches.around(run.evidence, run.begins, len(run.evidence.lines)).evidence
        limit = agreed_silence(expected_silence(newest, facts.baseline), contract_of(facts.job))
        silence = limit.silence(run.quiet) if limit else None
        if silence:
            advanced = facts.last_line + run.quiet - silence.seconds
    dumps = hang_evidence.fresh(run.evidence, facts, advanced)
    hang = hang_evidence.analyze(run.evidence, facts, dumps)
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
    return [hit.line for hit in hits if (hit.rule.role, hit.rule.type) == (Role.SYMPTOM, FailureType.CANCELLED)]


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
