"""Turns the stages' results into a Diagnosis: its confidence, its evidence, and what was rejected."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from diagnoser.localize import collectives, progress
from diagnoser.localize.hang_detection import Silence
from diagnoser.localize.stragglers import Straggler
from diagnoser.model import (
    Diagnosis,
    EventKind,
    Evidence,
    EvidenceLine,
    Facts,
    Rejected,
    RootCause,
    StackKind,
    Stage,
    Suspect,
    Symptom,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.rules import outcome
from diagnoser.rules.calibration import Calibration, verdict_kind
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidates import EXIT_SIGNAL, SIGNALS, Break, Candidate
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Role, Specificity

_T = FailureType
_MACHINERY = re.compile(r"^c10::(?:Error|detail)|google::LogMessage|<unknown function>|^(?:raise|abort|gsignal) ?\(")
"""Frames that only make the error object or end the process."""
LISTED = 20
"""Most symptoms and rejected candidates listed in a diagnosis: a thousand ranks may print the same."""
_ALIKE = 3
"""Most rejected candidates listed per rule and reason."""
_NAMED = 3
"""Most stragglers named in a note."""
_ADVICE = {
    Category.SCRIPT: "Read the last frame of the traceback that lies in your own code, mend it and submit again.",
    Category.FRAMEWORK: "Read the exception and the last frames above it; the job fails again until it is mended.",
    Category.INFRASTRUCTURE: "Check the named host and its links before the job is submitted again.",
    Category.NONE: "Nothing is to be repaired.",
    Category.UNKNOWN: "No known failure is visible: read the last lines of each rank, and the node's kernel log.",
}


@dataclass(frozen=True, slots=True)
class Localization:
    """Where it happened. rank, node: of the root, None when not shown."""

    rank: int | None = None
    node: str | None = None
    suspects: tuple[Suspect, ...] = ()
    absent: collectives.Absence | None = None
    slow: tuple[Straggler, ...] = ()


def loss_break(evidence: Evidence) -> Break | None:
    """The place where the loss broke, as a candidate for the cause; None when it did not, or its line was not kept."""
    loss = progress.loss_break(evidence.progress)
    if loss is None:
        return None
    for index, line in enumerate(evidence.lines):
        if line.number == loss.point.line and line.rank in (loss.point.rank, -1):
            resume = f"; last checkpoint before: {loss.checkpoint}" if loss.checkpoint else ""
            skip = f"; skip the batches of steps {loss.point.step}..{loss.until}" if loss.until is not None else ""
            return Break(index, f"{loss.why}{resume}{skip}")
    return None


def build_diagnosis(
    evidence: Evidence,
    facts: Facts,
    causal: CausalResult,
    place: Localization,
    calibration: Calibration,
    quiet: Silence | None,
) -> Diagnosis:
    """The diagnosis without its advice. quiet: how long nothing has advanced, while the attempt is still open."""
    root = causal.root
    hung = quiet is not None and quiet.confirmed
    reported = outcome.reported(facts.events)
    failure, decider = _failure_type(facts, root, reported, hung=hung)
    failure, score = _with_confidence(causal, failure, decider, calibration)
    completed = any(candidate.type is _T.COMPLETED for candidate, _ in causal.rejected)
    cause = root if root and (failure is root.type or failure is _T.UNKNOWN) else None
    return Diagnosis(
        outcome=outcome.decide_outcome(reported, cause.type if cause else failure, hung=hung, completed=completed),
        category=category_of(failure),
        type=failure,
        confidence=score,
        decided_by=decider,
        root_cause=_root_cause(evidence, cause, place),
        evidence=_evidence(evidence, cause, place),
        symptoms=_symptoms(evidence, causal),
        rejected=_rejected(evidence, causal),
        nodes=place.suspects,
        mitigation=(cause.mitigation if cause else "") or _ADVICE[category_of(failure)],
        notes=_notes(evidence, causal) + _slow(place) + _hangs(quiet),
        left_out=evidence.left_out,
        compression=evidence.compression,
    )


def _failure_type(
    facts: Facts, root: Candidate | None, reported: Outcome | None, *, hung: bool
) -> tuple[FailureType, str]:
    """Type and decider. The scheduler's report outweighs weak candidates; a failure before a cancel stays a failure."""
    if reported is Outcome.COMPLETED and (root is None or root.type is not _T.LOSS_DIVERGENCE):
        return _T.COMPLETED, "heuristic:exit_event"
    stopped = reported in (Outcome.CANCELLED, Outcome.PREEMPTED)
    if root is not None and (root.role is Role.ROOT or not stopped):
        return _shown_type(root), root.by
    if stopped:
        return FailureType(str(reported)), "heuristic:exit_event"
    signalled = _type_by_signal(facts)
    if signalled is not None:
        return signalled, EXIT_SIGNAL
    return _T.UNKNOWN, "heuristic:no_progress" if hung else "heuristic:no_evidence"


def _shown_type(root: Candidate) -> FailureType:
    return _T.UNKNOWN if _says_nothing(root) else root.type


def _type_by_signal(facts: Facts) -> FailureType | None:
    """What the first reported end by a signal says that is known to say something."""
    for event in facts.events:
        signal = event.signal
        if not signal and event.code:
            signal = event.code - 128  # as shells report signals
        if event.kind is EventKind.EXIT and signal in SIGNALS:
            return SIGNALS[signal][0]
    return None


def _with_confidence(
    causal: CausalResult, failure: FailureType, decider: str, calibration: Calibration
) -> tuple[FailureType, float]:
    """The type and its confidence; a failure that is not sure enough is unknown."""
    root = causal.root
    score = calibration.bounded(calibration.of(_bin(causal, decider)), decider, root.maturity if root else None)
    unsure = score < calibration.floor and category_of(failure) is not Category.NONE
    if failure is _T.UNKNOWN or unsure:
        return _T.UNKNOWN, min(score, calibration.floor)
    return failure, score


def _says_nothing(root: Candidate) -> bool:
    """A launcher's exception alone shows that something failed, but not what; an exit code shows that the program ended
    itself."""
    return not root.exit and root.by.startswith("heuristic:") and root.role in (Role.WRAPPER, Role.TEARDOWN)


def _bin(causal: CausalResult, decider: str) -> str:
    root = causal.root
    if root is None:
        return verdict_kind(decider, "none", Specificity.WORD, 0)
    rivals = {
        other.type
        for other, reason in causal.rejected
        if reason in (RejectionReason.LATER, RejectionReason.VAGUE)
        and other.role is Role.ROOT
        and other.type is not root.type
    }
    return verdict_kind(decider, str(root.role), root.specificity, len(rivals))


def _root_cause(evidence: Evidence, root: Candidate | None, place: Localization) -> RootCause | None:
    if root is None:
        return None
    line = evidence.lines[root.line]
    source, provenance = line.stream.source, line.stream.provenance
    return RootCause(line.number, line.text, place.rank, place.node, root.gpu, source, provenance)


def _evidence(evidence: Evidence, root: Candidate | None, place: Localization) -> tuple[EvidenceLine, ...]:
    if root is None:
        return ()
    cited = [(root.line, root.why)]
    if root.trace >= 0:
        frames = [index for index in evidence.tracebacks[root.trace].lines if _is_frame(evidence, index)]
        cited += [(index, "where it was raised") for index in frames[-1:]]
    else:
        cited += [(index, "where it was raised") for index in _native_frames(evidence, root.line)[:1]]
    if place.absent and place.absent.line >= 0 and place.absent.line != root.line:
        cited.append((place.absent.line, place.absent.why))
    return tuple(_cite(evidence, index, reason) for index, reason in cited)


def _is_frame(evidence: Evidence, index: int) -> bool:
    return evidence.lines[index].body.lstrip().startswith('File "')


def _native_frames(evidence: Evidence, root: int) -> list[int]:
    """Lines of the root's stack that name the code, innermost first: not how the error object was made."""
    stacks = (stack for stack in evidence.stacks if root in stack.lines and stack.kind is not StackKind.TABLE)
    stack = next(stacks, None)
    frames = [frame for frame in stack.frames if not _MACHINERY.search(frame)] if stack else []
    return [
        index
        for frame in frames
        for index in (stack.lines if stack else ())
        if index != root and frame in evidence.lines[index].body
    ]


def _cite(evidence: Evidence, index: int, why: str) -> EvidenceLine:
    line = evidence.lines[index]
    rank, stream = line.known_rank, line.stream
    return EvidenceLine(line.number, line.text, why, rank, stream.source, stream.provenance)


def _symptoms(evidence: Evidence, causal: CausalResult) -> tuple[Symptom, ...]:
    lines = ((evidence.lines[symptom.line], symptom.type) for symptom in causal.symptoms)
    return tuple(
        Symptom(line.number, line.text, kind, line.stream.source, line.stream.provenance)
        for line, kind in islice(lines, LISTED)
    )


def _rejected(evidence: Evidence, causal: CausalResult) -> tuple[Rejected, ...]:
    """One per rule and reason first: a thousand repeats must not hide the one that matters."""
    counts: Counter[tuple[str, RejectionReason]] = Counter()
    first: list[tuple[Candidate, RejectionReason]] = []
    repeats: list[tuple[Candidate, RejectionReason]] = []
    for candidate, reason in causal.rejected:
        counts[candidate.by, reason] += 1
        if counts[candidate.by, reason] <= _ALIKE:
            (first if counts[candidate.by, reason] == 1 else repeats).append((candidate, reason))
    chosen = sorted((first + repeats)[:LISTED], key=lambda entry: entry[0].line)
    lines = ((evidence.lines[candidate.line], candidate.type, reason) for candidate, reason in chosen)
    return tuple(Rejected(line.number, line.text, kind, str(reason)) for line, kind, reason in lines)


def _hangs(quiet: Silence | None) -> tuple[str, ...]:
    if quiet is None or not quiet.confirmed:
        return ()
    measure = "a step takes" if quiet.stage is Stage.TRAIN else "the longest stay there before took"
    usual = f" ({measure} {quiet.usual:.3g} s)" if quiet.usual else ""
    return (f"Nothing has advanced for {quiet.seconds:.0f} s at stage {quiet.stage}{usual}.",)


def _slow(place: Localization) -> tuple[str, ...]:
    return tuple(
        f"Rank {slow.rank}{f' on {slow.node}' if slow.node else ''} is a straggler: step after step it takes, or makes "
        f"others wait, {slow.times} times as long as usual. That is no reason to take a node out."
        for slow in place.slow[:_NAMED]
    )


def _notes(evidence: Evidence, causal: CausalResult) -> tuple[str, ...]:
    """The last failure before the diagnosed one, if the log holds more than one attempt."""
    restarts = progress.restarts(evidence)
    failures = [
        candidate
        for candidate, reason in causal.rejected
        if candidate.role is Role.ROOT
        and (
            reason is RejectionReason.EARLIER_ATTEMPT
            or (reason is RejectionReason.RECOVERED and _raised_before(evidence, candidate, restarts))
        )
    ]
    if not failures:
        return ()
    line = evidence.lines[failures[-1].line]
    return (f"An earlier attempt in the same log failed at line {line.number}: {failures[-1].type}.",)


def _raised_before(evidence: Evidence, candidate: Candidate, restarts: Sequence[int]) -> bool:
    """Whether training restarted after an exception: the same process would have kept counting."""
    return candidate.raised and any(evidence.lines[candidate.line].number < line for line in restarts)
