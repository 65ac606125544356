"""Where the structure of a verdict leaves room for doubt, with the rules that ship."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.review_reasons import review_reasons
from diagnoser.model import ASK_REASONS, AskReason, Diagnosis, Event, EventKind, Facts, Job, RootCause, Suspect
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


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STEPS + TRACE + OOM, ()),
        (STEPS + TRACE + "KeyError: 'mask'\n", ()),
        (STEPS + "zx81: the quilt does not fit\n", (AskReason.UNKNOWN,)),
        (STEPS + TRACE + "QuiltError: the quilt does not fit\n", (AskReason.HEURISTIC,)),
        (STEPS + TRACE + "RuntimeError: the sampler gave 0 batches\n", (AskReason.GENERIC_RULE,)),
        (STEPS + TRACE + "OSError: the quilt does not fit\n", (AskReason.GENERIC_RULE,)),
        (STEPS + "training finished after 19 iterations\n", ()),
        (STEPS + "Done.\n", (AskReason.HEURISTIC,)),
    ],
    ids=["message", "class with a type of its own", "nothing", "class", "carrier", "carrier by class", "end", "done"],
)
def test_doubt_follows_from_who_decided(analyzer: LogAnalyzer, log: str, expected: tuple[AskReason, ...]) -> None:
    """A rule that knows the message is not in doubt; a guess, and a class that carries other causes, are."""
    assert doubted(analyzer, log) == expected


@pytest.mark.parametrize(
    ("reason", "kind", "role", "close"),
    [
        (RejectionReason.LATER, FailureType.OS_ERROR, Role.ROOT, True),
        (RejectionReason.VAGUE, FailureType.OS_ERROR, Role.ROOT, True),
        (RejectionReason.EXPLAINED, FailureType.OS_ERROR, Role.ROOT, False),
        (RejectionReason.LATER, FailureType.GPU_LOST, Role.ROOT, False),
        (RejectionReason.LATER, FailureType.OS_ERROR, Role.WRAPPER, False),
    ],
)
def test_a_rival_is_close_where_only_its_place_speaks_against_it(
    reason: RejectionReason, kind: FailureType, role: Role, close: bool
) -> None:
    """Another cause of another type that nothing explains; not one that follows from the root."""
    root = Candidate(1, FailureType.GPU_LOST, Role.ROOT, "rule:x", "gone", Specificity.CODE)
    causal = CausalResult(root, ((replace(root, line=9, type=kind, role=role), reason),))
    diagnosis = replace(LOST, root_cause=RootCause(1, "gone", node="gpu-1"))
    assert review_reasons(diagnosis, causal, NODES) == ((AskReason.CLOSE_RIVAL,) if close else ())


def test_what_decides_must_not_stand_at_the_end_of_other_failures() -> None:
    """A wrapper or teardown as the root, and an order to stop that other failures print too."""
    wrapper = Candidate(1, FailureType.GPU_LOST, Role.WRAPPER, "rule:x", "gone", Specificity.CODE)
    stopped = replace(wrapper, type=FailureType.CANCELLED, role=Role.SYMPTOM)
    ended = replace(LOST, type=FailureType.CANCELLED, category=Category.NONE)
    placed = replace(LOST, root_cause=RootCause(1, "gone", node="gpu-1"))
    assert review_reasons(placed, CausalResult(wrapper), NODES) == (AskReason.CONSEQUENCE,)
    assert review_reasons(ended, CausalResult(stopped), NODES) == (AskReason.CONSEQUENCE,)


def test_what_the_scheduler_reports_is_no_guess(analyzer: LogAnalyzer) -> None:
    """An exit code of 0 settles that the run completed, and a failed one leaves the cause open."""
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=0)) == ()
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=1)) == (AskReason.UNKNOWN,)


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
    assert review_reasons(diagnosis, CausalResult(None), NODES) == ((AskReason.UNSURE_LOCATION,) if unsure else ())
    assert review_reasons(replace(diagnosis, nodes=()), CausalResult(None), {0: "gpu-1", 1: "gpu-1"}) == ()


def test_every_reason_has_its_words() -> None:
    """People and the model read the same closed list."""
    assert set(ASK_REASONS) == set(AskReason)
