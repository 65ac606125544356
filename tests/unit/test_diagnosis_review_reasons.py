"""Where the structure of a verdict leaves room for doubt, with the rules that ship."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.review_reasons import ReviewedVerdict, review_reasons
from diagnoser.model import (
    ASK_REASONS,
    AskReason,
    Diagnosis,
    Event,
    EventKind,
    Evidence,
    Facts,
    Job,
    Progress,
    RootCause,
    Suspect,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.schema import Role, Specificity
from tests import accuracy_bars

STEPS = "".join(f"iteration {n}/900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 20))
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in <module>\n    main()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def doubted(analyzer: LogAnalyzer, log: str, *events: Event) -> tuple[AskReason, ...]:
    return analyzer.diagnose_with_node_logs(analyzer.evidence_of(log.encode()), Facts(Job("j"), 1, events)).doubts


NOTHING, UNREAD = CausalResult(None), Evidence()


def reasons(diagnosis: Diagnosis, causal: CausalResult = NOTHING, evidence: Evidence = UNREAD) -> tuple[AskReason, ...]:
    return review_reasons(ReviewedVerdict(diagnosis, causal, evidence, NODES))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STEPS + TRACE + OOM, ()),
        (STEPS + TRACE + "KeyError: 'mask'\n", ()),
        (STEPS + "zx81: the quilt does not fit\n", (AskReason.UNKNOWN,)),
        (STEPS + "training finished after 19 iterations\n", ()),
        (STEPS + "Done.\n", ()),
    ],
    ids=["message", "class with a type of its own", "nothing", "end", "done"],
)
def test_a_verdict_of_a_kind_that_is_mostly_right_is_in_no_doubt(
    analyzer: LogAnalyzer, log: str, expected: tuple[AskReason, ...]
) -> None:
    """A rule that knows the message or the class, and a run that says that it ended; not a cause that nobody knows."""
    assert doubted(analyzer, log) == expected


@pytest.mark.parametrize(("confidence", "expected"), [(0.8, (AskReason.UNSURE,)), (0.81, ())])
def test_doubt_follows_from_how_often_such_verdicts_were_wrong(
    confidence: float, expected: tuple[AskReason, ...]
) -> None:
    """Whatever decided: the measured confidence is what counts."""
    placed = replace(LOST, confidence=confidence, nodes=suspects(0.9))
    assert reasons(placed) == expected


@pytest.mark.parametrize(
    ("reason", "kind", "line", "close"),
    [
        (RejectionReason.LATER, FailureType.OS_ERROR, 9, True),
        (RejectionReason.VAGUE, FailureType.OS_ERROR, 3, True),
        (RejectionReason.LATER, FailureType.GPU_LOST, 9, False),
        (RejectionReason.LATER, FailureType.COMPLETED, 9, True),
        (RejectionReason.LATER, FailureType.COMPLETED, 3, False),
        (RejectionReason.EXPLAINED, FailureType.OS_ERROR, 3, False),
        (RejectionReason.EXPLAINED, FailureType.OS_ERROR, 9, False),
        (RejectionReason.RECOVERED, FailureType.OS_ERROR, 3, False),
    ],
)
def test_a_rival_is_close_where_only_its_place_speaks_against_it(
    reason: RejectionReason, kind: FailureType, line: int, close: bool
) -> None:
    """Another cause of another type that nothing explains; not the end of an earlier phase, and not what the run
    survived."""
    root = Candidate(5, FailureType.GPU_LOST, Role.ROOT, "rule:x", "gone", Specificity.CODE)
    placed = replace(LOST, nodes=suspects(0.9))
    rival = replace(root, line=line, type=kind)
    assert reasons(placed, CausalResult(root, ((rival, reason),))) == ((AskReason.CLOSE_RIVAL,) if close else ())
    assert reasons(placed, CausalResult(root, ((replace(rival, role=Role.WRAPPER), reason),))) == ()


def points(*steps: tuple[int, int, float]) -> Evidence:
    """steps: rank, step and loss."""
    series = (Progress(line, rank, 0.0, step, loss) for line, (rank, step, loss) in enumerate(steps, 1))
    return Evidence(progress=tuple(series))


@pytest.mark.parametrize(
    ("evidence", "belied"),
    [
        (points((0, 10, 2.0), (1, 10, 2.0)), False),
        (points((0, 10, 2.0), (1, 8, 2.0)), False),
        (points((0, 10, 2.0), (1, 7, 2.0)), True),
        (points((-1, 3, 2.0), (0, 10, 2.0)), False),
        (points((0, 9, 2.0), (0, 10, float("nan"))), True),
        (points((0, 9, float("nan")), (0, 10, 2.0)), False),
        (points((0, 10, float("inf")), (1, 10, 2.0)), True),
    ],
    ids=["together", "a step apart", "one stopped early", "unknown process", "nan", "nan before", "one of two"],
)
def test_what_does_not_fit_a_clean_end_belies_it(evidence: Evidence, belied: bool) -> None:
    """A process that stopped before its peers, and a loss that is no number when it ends; of a failure that is news to
    nobody."""
    assert reasons(ENDED, evidence=evidence) == ((AskReason.BELIED_END,) if belied else ())
    assert reasons(replace(LOST, nodes=suspects(0.9)), evidence=evidence) == ()


def test_a_failure_that_only_the_end_outweighs_belies_it() -> None:
    """It stood in the log when the run said that all went well."""
    end = Candidate(9, FailureType.COMPLETED, Role.ROOT, "heuristic:clean_end", "done", Specificity.CLASS)
    failure = Candidate(3, FailureType.OS_ERROR, Role.ROOT, "rule:x", "broken", Specificity.MESSAGE)
    assert reasons(ENDED, CausalResult(end, ((failure, RejectionReason.FINISHED),))) == (AskReason.BELIED_END,)
    assert reasons(ENDED, CausalResult(end, ((failure, RejectionReason.RECOVERED),))) == ()


def test_what_the_scheduler_reports_is_no_guess(analyzer: LogAnalyzer) -> None:
    """An exit code of 0 settles that the run completed, and a failed one leaves the cause open."""
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=0)) == ()
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=1)) == (AskReason.UNKNOWN,)


ENDED = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.97, "heuristic:clean_end")
LOST = Diagnosis(Outcome.FAILED, Category.INFRASTRUCTURE, FailureType.GPU_LOST, 0.9, "rule:x", RootCause(1, "gone"))
NODES = {0: "gpu-1", 1: "gpu-2"}


def suspects(*scores: float) -> tuple[Suspect, ...]:
    return tuple(Suspect(f"gpu-{number}", score, "named") for number, score in enumerate(scores, 1))


@pytest.mark.parametrize(
    ("diagnosis", "unsure"),
    [
        (LOST, True),
        (replace(LOST, root_cause=RootCause(1, "gone", node="gpu-1")), False),
        (replace(LOST, nodes=suspects(0.9)), False),
        (replace(LOST, nodes=suspects(0.9, 0.85)), True),
        (replace(LOST, nodes=suspects(0.9, 0.4)), False),
        (replace(LOST, type=FailureType.CONNECTION_ERROR), False),
        (replace(LOST, type=FailureType.KEY_ERROR, category=Category.SCRIPT), False),
    ],
)
def test_a_fault_of_one_machine_must_have_its_place(diagnosis: Diagnosis, unsure: bool) -> None:
    """No node where several could be it, or two suspects as good as each other; a shared service has no place."""
    assert reasons(diagnosis) == ((AskReason.UNSURE_LOCATION,) if unsure else ())
    alone = ReviewedVerdict(replace(diagnosis, nodes=()), CausalResult(None), Evidence(), {0: "gpu-1", 1: "gpu-1"})
    assert review_reasons(alone) == ()


def test_every_reason_has_its_words() -> None:
    """People and the model read the same closed list."""
    assert set(ASK_REASONS) == set(AskReason)
