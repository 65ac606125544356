"""Puts what the stages found into words: the Diagnosis, its confidence, its evidence, and what was rejected."""

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
from diagnoser.rules import calibration as confidence
from diagnoser.rules import outcome
from diagnoser.rules.calibration import Calibration
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.candidates import Break, Candidate
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Role, Specificity

_T = FailureType
_MACHINERY = re.compile(r"^c10::(?:Error|detail)|google::LogMessage|<unknown function>|^(?:raise|abort|gsignal) ?\(")
"""Frames that only make the error object or end the process."""
_LISTED = 20
"""Symptoms and rejected candidates that a diagnosis lists; a thousand ranks print the same."""
_ALIKE = 3
"""Rejected candidates of one rule and reason that are listed."""
_NAMED = 3
"""Stragglers that a note names."""
_SIGNALS = {9: _T.HOST_OUT_OF_MEMORY, 4: _T.SEGMENTATION_FAULT, 6: _T.SEGMENTATION_FAULT, 7: _T.SEGMENTATION_FAULT}
_SIGNALS |= {8: _T.SEGMENTATION_FAULT, 11: _T.SEGMENTATION_FAULT}
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
    found = progress.loss_break(evidence.progress)
    if found is None:
        return None
    for index, line in enumerate(evidence.lines):
        if line.number == found.point.line and line.rank in (found.point.rank, -1):
            back = f"; last checkpoint before: {found.checkpoint}" if found.checkpoint else ""
            skip = f"; skip the batches of steps {found.point.step}..{found.until}" if found.until is not None else ""
            return Break(index, f"{found.why}{back}{skip}")
    return None


def build_diagnosis(
    evidence: Evidence,
    facts: Facts,
    story: CausalResult,
    place: Localization,
    calibration: Calibration,
    quiet: Silence | None,
) -> Diagnosis:
    """The diagnosis without its advice. quiet: for how long nothing has advanced, while the attempt is still open."""
    root = story.root
    hung = quiet is not None and quiet.confirmed
    said = outcome.reported(facts.events)
    kind, by = _named(facts, root, said, hung=hung, finished=progress.reached_total(evidence))
    sure = calibration.bounded(calibration.of(_bin(story, by)), by, root.maturity if root else None)
    if kind is _T.UNKNOWN or (sure < calibration.floor and category_of(kind) is not Category.NONE):
        kind, sure = _T.UNKNOWN, min(sure, calibration.floor)
    shown = root if root and (kind is root.type or kind is _T.UNKNOWN) else None
    return Diagnosis(
        outcome=outcome.decide_outcome(said, shown.type if shown else kind, hung=hung, completed=_completed(story)),
        category=category_of(kind),
        type=kind,
        confidence=sure,
        decided_by=by,
        root_cause=_root_cause(evidence, shown, place),
        evidence=_evidence(evidence, shown, place),
        symptoms=_symptoms(evidence, story),
        rejected=_rejected(evidence, story),
        nodes=place.suspects,
        mitigation=(shown.mitigation if shown else "") or _ADVICE[category_of(kind)],
        notes=_notes(evidence, story) + _slow(place) + _hangs(quiet),
        left_out=evidence.left_out,
        compression=evidence.compression,
    )


def _named(
    facts: Facts, root: Candidate | None, said: Outcome | None, *, hung: bool, finished: bool
) -> tuple[FailureType, str]:
    """Type and who decided. What the scheduler reports outweighs weak candidates; a failure before a cancel does not
    become a cancellation."""
    if said is Outcome.COMPLETED and (root is None or root.type is not _T.LOSS_DIVERGENCE):
        return _T.COMPLETED, "heuristic:exit_event"
    if root is not None and (said not in (Outcome.CANCELLED, Outcome.PREEMPTED) or root.role is Role.ROOT):
        return (_T.UNKNOWN if _says_nothing(root) else root.type), root.by
    if said in (Outcome.CANCELLED, Outcome.PREEMPTED):
        return FailureType(str(said)), "heuristic:exit_event"
    for event in facts.events:
        signal = event.signal or (event.code - 128 if event.code and event.code > 128 else 0)
        if event.kind is EventKind.EXIT and signal in _SIGNALS:
            return _SIGNALS[signal], "heuristic:exit_signal"
    if finished and root is None:
        return _T.COMPLETED, "heuristic:reached_total"
    return _T.UNKNOWN, "heuristic:no_progress" if hung else "heuristic:no_evidence"


def _says_nothing(root: Candidate) -> bool:
    """A launcher's exception alone shows that something failed, and not what."""
    return root.by.startswith("heuristic:") and root.role in (Role.WRAPPER, Role.TEARDOWN)


def _bin(story: CausalResult, by: str) -> str:
    root = story.root
    if root is None:
        return confidence.kind(by, "none", Specificity.WORD, 0)
    rivals = {
        one.type
        for one, why in story.rejected
        if why in (RejectionReason.LATER, RejectionReason.VAGUE) and one.role is Role.ROOT and one.type is not root.type
    }
    return confidence.kind(by, str(root.role), root.specificity, len(rivals))


def _completed(story: CausalResult) -> bool:
    return any(one.type is _T.COMPLETED for one, _ in story.rejected)


def _root_cause(evidence: Evidence, root: Candidate | None, place: Localization) -> RootCause | None:
    if root is None:
        return None
    line = evidence.lines[root.line]
    return RootCause(line.number, line.text, place.rank, place.node, root.gpu, line.stream.source)


def _evidence(evidence: Evidence, root: Candidate | None, place: Localization) -> tuple[EvidenceLine, ...]:
    if root is None:
        return ()
    shown = [(root.line, root.why)]
    if root.trace >= 0:
        frames = [index for index in evidence.tracebacks[root.trace].lines if _is_frame(evidence, index)]
        shown += [(index, "where it was raised") for index in frames[-1:]]
    else:
        shown += [(index, "where it was raised") for index in _native_frames(evidence, root.line)[:1]]
    if place.absent and place.absent.line >= 0 and place.absent.line != root.line:
        shown.append((place.absent.line, place.absent.why))
    return tuple(_cite(evidence, index, why) for index, why in shown)


def _is_frame(evidence: Evidence, index: int) -> bool:
    return evidence.lines[index].body.lstrip().startswith('File "')


def _native_frames(evidence: Evidence, root: int) -> list[int]:
    """Lines of the root's stack that name the code, innermost first: not how the error object was made."""
    stack = next((one for one in evidence.stacks if root in one.lines and one.kind is not StackKind.TABLE), None)
    told = [frame for frame in stack.frames if not _MACHINERY.search(frame)] if stack else []
    return [
        index
        for frame in told
        for index in (stack.lines if stack else ())
        if index != root and frame in evidence.lines[index].body
    ]


def _cite(evidence: Evidence, index: int, why: str) -> EvidenceLine:
    line = evidence.lines[index]
    return EvidenceLine(line.number, line.text, why, line.rank if line.rank >= 0 else None, line.stream.source)


def _symptoms(evidence: Evidence, story: CausalResult) -> tuple[Symptom, ...]:
    lines = ((evidence.lines[one.line], one.type) for one in story.symptoms)
    return tuple(Symptom(line.number, line.text, kind, line.stream.source) for line, kind in islice(lines, _LISTED))


def _rejected(evidence: Evidence, story: CausalResult) -> tuple[Rejected, ...]:
    """One of each kind and reason first: a thousand repeats must not hide the one that matters."""
    seen: Counter[tuple[str, RejectionReason]] = Counter()
    first: list[tuple[Candidate, RejectionReason]] = []
    more: list[tuple[Candidate, RejectionReason]] = []
    for one, why in story.rejected:
        seen[one.by, why] += 1
        if seen[one.by, why] <= _ALIKE:
            (first if seen[one.by, why] == 1 else more).append((one, why))
    chosen = sorted((first + more)[:_LISTED], key=lambda pair: pair[0].line)
    lines = ((evidence.lines[one.line], one.type, why) for one, why in chosen)
    return tuple(Rejected(line.number, line.text, kind, str(why)) for line, kind, why in lines)


def _hangs(quiet: Silence | None) -> tuple[str, ...]:
    if quiet is None or not quiet.confirmed:
        return ()
    what = "a step takes" if quiet.stage is Stage.TRAIN else "the longest stay there before took"
    usual = f" ({what} {quiet.usual:.3g} s)" if quiet.usual else ""
    return (f"Nothing has advanced for {quiet.seconds:.0f} s at stage {quiet.stage}{usual}.",)


def _slow(place: Localization) -> tuple[str, ...]:
    return tuple(
        f"Rank {one.rank}{f' on {one.node}' if one.node else ''} computes {one.times} times as long as the others: "
        "a straggler, which is no reason to take a node out."
        for one in place.slow[:_NAMED]
    )


def _notes(evidence: Evidence, story: CausalResult) -> tuple[str, ...]:
    """The last failure before the one that is diagnosed, when the log holds more than one attempt."""
    started = progress.restarts(evidence)
    earlier = [
        one
        for one, why in story.rejected
        if one.role is Role.ROOT
        and (
            why is RejectionReason.EARLIER_ATTEMPT
            or (why is RejectionReason.RECOVERED and _raised_before(evidence, one, started))
        )
    ]
    if not earlier:
        return ()
    line = evidence.lines[earlier[-1].line]
    return (f"An earlier attempt in the same log failed at line {line.number}: {earlier[-1].type}.",)


def _raised_before(evidence: Evidence, one: Candidate, started: Sequence[int]) -> bool:
    """Whether training began anew after an exception: the same process would have gone on counting."""
    return one.raised and any(evidence.lines[one.line].number < line for line in started)
