"""Turns the stages' results into a Diagnosis: its type, its evidence, and what was rejected."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diagnoser.diagnosis import confidence
from diagnoser.localize import collectives, progress
from diagnoser.localize.hang_detection import Silence
from diagnoser.localize.metric_series import LossBreak
from diagnoser.localize.stragglers import Straggler
from diagnoser.model import (
    Advice,
    Diagnosis,
    Evidence,
    EvidenceLine,
    Progress,
    Rejected,
    RootCause,
    Stage,
    Suspect,
    Symptom,
)
from diagnoser.model.diagnosis import LISTED_SYMPTOMS
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.rules import outcome
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate import Candidate, LossDivergence
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.outcome import Ending, Testimony
from diagnoser.structure import loops, stacks

_T = FailureType
_NO_RUN = 0.03
"""Confidence in the verdict on a text that is not the log of a run."""
_ALIKE = 3
"""Most rejected candidates listed per rule and reason."""
_NAMED = 3
"""Most stragglers named in a note."""
_ADVICE = {
    Category.SCRIPT: "Fix the last frame of the traceback that is in your own code, then resubmit.",
    Category.FRAMEWORK: "Read the exception and the frames above it. The job will fail again until this is fixed.",
    Category.INFRASTRUCTURE: "Check the named host and its links before you resubmit the job.",
    Category.NONE: "Nothing to fix.",
    Category.UNKNOWN: "The log shows no known failure. Read the last lines of each rank and its node's kernel log.",
}


@dataclass(frozen=True, slots=True)
class Localization:
    """Where it happened. rank, node: of the root, None when not shown."""

    rank: int | None = None
    node: str | None = None
    suspects: tuple[Suspect, ...] = ()
    absent: collectives.Absence | None = None
    slow: tuple[Straggler, ...] = ()


def loss_divergence(evidence: Evidence, loss: LossBreak | None) -> LossDivergence | None:
    """The place where the loss broke, as a candidate for the cause; None when it did not. Where its line was not kept,
    as in a slow climb, the next one that was and that prints the same loss."""
    if loss is None:
        return _broken_measure(evidence)
    why = loss.why
    if loss.checkpoint:
        why += f"; last checkpoint before: {loss.checkpoint}"
    if loss.until is not None:
        why += f"; skip the batches of steps {loss.point.step}..{loss.until}"
    index = _first_kept(evidence, loss.point)
    return _broken_measure(evidence) if index is None else LossDivergence(index, why)


def _first_kept(evidence: Evidence, broken: Progress) -> int | None:
    """The index of the line of a point or, where that was not kept, of the next one of the same series."""
    series, behind = (broken.stream, broken.rank, broken.metric), set[int]()
    for point in evidence.progress:
        if point.line >= broken.line and (point.stream, point.rank, point.metric) == series:
            behind.add(point.line)
    for index, line in enumerate(evidence.lines):
        if line.stream != broken.stream:
            continue
        if line.rank not in (broken.rank, -1):
            continue
        if line.number in behind:
            return index
    return None


def _broken_measure(evidence: Evidence) -> LossDivergence | None:
    """The line at which the measure of a loop breaks, where the loop is known by repetition alone."""
    index = loops.broken_measure(evidence)
    if index is None:
        return None
    return LossDivergence(index, "what the loop measures is not finite, and stays so")


def build_diagnosis(
    evidence: Evidence,
    reported: Ending | None,
    causal: CausalResult,
    place: Localization,
    calibration: Calibration,
    quiet: Silence | None,
) -> Diagnosis:
    """The diagnosis without its advice.

    reported: what witnesses outside the log say of the end.
    quiet: how long nothing has advanced, while the attempt is still open.
    """
    ended_badly = confidence.ended_badly(evidence, reported)
    hung = quiet is not None and quiet.confirmed
    ending = outcome.decide_ending(Testimony(reported, causal.root, hung, ended_badly))
    decider = ending.decided_by
    measure = confidence.Measure(calibration, ended_badly)
    failure, score = measure.verdict(causal, ending.type, decider)
    cause, mitigation = causal.root, ""
    if cause and failure in (cause.type, _T.UNKNOWN):
        mitigation = cause.mitigation
    else:
        cause = None  # something else than the log decided
    return Diagnosis(
        outcome=ending.outcome,
        category=category_of(failure),
        type=failure,
        confidence=score,
        decided_by=decider,
        review_kind=measure.review_kind(causal, failure, decider),
        root_cause=_root_cause(evidence, cause, place),
        evidence=_evidence(evidence, cause, place),
        symptoms=_symptoms(evidence, causal),
        rejected=_rejected(evidence, causal),
        nodes=place.suspects,
        mitigation=mitigation or _ADVICE[category_of(failure)],
        notes=(*_earlier_attempts(evidence, causal), *_slow(place), *_hangs(quiet)),
        left_out=evidence.left_out,
        compression=evidence.compression,
        rivals=measure.rivals(evidence, causal, failure, score),
    )


def no_run(evidence: Evidence, reads_like: str, ruleset: str) -> Diagnosis:
    """The answer to a text that is not the log of a run; nobody is asked about it and nothing is done."""
    return Diagnosis(
        outcome=Outcome.UNKNOWN,
        category=Category.UNKNOWN,
        type=_T.UNKNOWN,
        confidence=_NO_RUN,
        decided_by="heuristic:not_a_run",
        recovery=Advice(Action.NONE, "not the log of a run"),
        mitigation="Give the output of the run itself: what its processes printed, from start to end.",
        notes=(f"This does not look like the log of a run: it reads like {reads_like}.",),
        left_out=evidence.left_out,
        compression=evidence.compression,
        ruleset=ruleset,
    )


def _root_cause(evidence: Evidence, root: Candidate | None, place: Localization) -> RootCause | None:
    if root is None:
        return None
    line = evidence.lines[root.line]
    source, provenance = line.stream.source, line.stream.provenance
    return RootCause(line.number, line.text, place.rank, place.node, root.gpu, source, provenance)


def _evidence(evidence: Evidence, root: Candidate | None, place: Localization) -> tuple[EvidenceLine, ...]:
    """The lines that the verdict cites, each with what it shows."""
    if root is None:
        return ()
    cited = [_cite(evidence, root.line, root.why)]
    frame = _raised_at(evidence, root)
    if frame is not None and not _is_same_record(evidence, frame, root.line):
        cited.append(_cite(evidence, frame, "where it was raised"))
    absent = place.absent
    if absent and absent.line not in (-1, root.line):
        cited.append(_cite(evidence, absent.line, absent.why))
    return tuple(cited)


def _is_same_record(evidence: Evidence, one: int, other: int) -> bool:
    """Whether two text lines are of one line as printed."""
    lines = evidence.lines
    return (lines[one].stream, lines[one].number) == (lines[other].stream, lines[other].number)


def _raised_at(evidence: Evidence, root: Candidate) -> int | None:
    """The line that names the code that raised: the innermost frame of a traceback, or of a native stack."""
    if root.trace < 0:
        return stacks.frame_of(evidence.lines, root.line)
    for index in reversed(evidence.tracebacks[root.trace].lines):
        if evidence.lines[index].body.lstrip().startswith('File "'):
            return index
    return None


def _cite(evidence: Evidence, index: int, why: str) -> EvidenceLine:
    line = evidence.lines[index]
    return EvidenceLine(line.number, line.text, why, line.known_rank, line.stream.source, line.stream.provenance)


def _symptoms(evidence: Evidence, causal: CausalResult) -> tuple[Symptom, ...]:
    symptoms = []
    for symptom in causal.symptoms[:LISTED_SYMPTOMS]:
        line = evidence.lines[symptom.line]
        symptoms.append(Symptom(line.number, line.text, symptom.type, line.stream.source, line.stream.provenance))
    return tuple(symptoms)


def _rejected(evidence: Evidence, causal: CausalResult) -> tuple[Rejected, ...]:
    """One per rule and reason first: a thousand repeats must not hide the one that matters."""
    counts: Counter[tuple[str, RejectionReason]] = Counter()
    ranked: list[tuple[bool, Candidate, RejectionReason]] = []
    for candidate, reason in causal.rejected:
        counts[candidate.by, reason] += 1
        if counts[candidate.by, reason] <= _ALIKE:
            ranked.append((counts[candidate.by, reason] > 1, candidate, reason))
    ranked.sort(key=lambda entry: entry[0])
    rejected = []
    for _, candidate, reason in sorted(ranked[:LISTED_SYMPTOMS], key=lambda entry: entry[1].line):
        line = evidence.lines[candidate.line]
        rejected.append(Rejected(line.number, line.text, candidate.type, str(reason)))
    return tuple(rejected)


def _hangs(quiet: Silence | None) -> Iterator[str]:
    if quiet is None:
        return
    if not quiet.confirmed:
        return
    measure = "a step takes" if quiet.stage is Stage.TRAIN else "the longest stay there before took"
    usual = f" ({measure} {quiet.usual:.3g} s)" if quiet.usual else ""
    yield f"Nothing has advanced for {quiet.seconds:.0f} s at stage {quiet.stage}{usual}."


def _slow(place: Localization) -> Iterator[str]:
    for slow in place.slow[:_NAMED]:
        where = f" on {slow.node}" if slow.node else ""
        yield (
            f"Rank {slow.rank}{where} is a straggler: step after step it takes, or makes "
            f"others wait, {slow.times} times as long as usual. That is no reason to take a node out."
        )


def _earlier_attempts(evidence: Evidence, causal: CausalResult) -> Iterator[str]:
    """The last failure before the diagnosed one, if the log holds more than one attempt."""
    restarts = progress.restarts(evidence)
    for candidate, reason in reversed(causal.rejected):
        if _is_of_earlier(evidence, candidate, reason, restarts):
            line = evidence.lines[candidate.line]
            yield f"An earlier attempt in the same log failed at line {line.number}: {candidate.type}."
            return


def _is_of_earlier(evidence: Evidence, candidate: Candidate, reason: RejectionReason, restarts: Sequence[int]) -> bool:
    """Whether the candidate ended an earlier attempt: also an exception after which training restarted, as the same
    process would have kept counting."""
    if not candidate.is_root:
        return False
    if reason is RejectionReason.EARLIER_ATTEMPT:
        return True
    if reason is not RejectionReason.RECOVERED:
        return False
    if not candidate.raised:
        return False
    return evidence.lines[candidate.line].number < max(restarts, default=0)
