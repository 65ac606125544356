"""Where the structure of a verdict leaves room for doubt, with the rules that ship."""

from dataclasses import replace

import pytest

from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.confidence import review_reasons
from diagnoser.model import ASK_REASONS, AskReason, Diagnosis, Event, EventKind, Facts, Job
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.calibration import Calibration, review_kind, verdict_kind
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Maturity, Role, Specificity
from tests import accuracy_bars

STEPS = "".join(f"iteration {n}/900 | lm loss: {9 - n / 200:.4f} |\n" for n in range(1, 20))
TRACE = 'Traceback (most recent call last):\n  File "/srv/app/train.py", line 80, in <module>\n    main()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.\n"
WORDS = ("ash", "elm", "fir", "oak", "bay", "yew", "box", "fig", "gum", "nut", "tea", "ivy")


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
        (STEPS, (AskReason.UNKNOWN,)),
        (STEPS + "zx81: the quilt does not fit\n", (AskReason.UNSURE,)),
        (STEPS + "training finished after 19 iterations\n", ()),
        (STEPS + "Done.\n", ()),
    ],
    ids=["message", "class with a type of its own", "nothing", "guess", "end", "done"],
)
def test_a_verdict_of_a_kind_that_is_mostly_right_is_in_no_doubt(
    analyzer: LogAnalyzer, log: str, expected: tuple[AskReason, ...]
) -> None:
    """A rule that knows the message or the class, and a run that says that it ended; not a cause that nobody knows, or
    that is guessed."""
    assert doubted(analyzer, log) == expected


TABLE = Calibration.model_validate(
    {
        **dict.fromkeys(("floor", "default", "sandbox", "learned", "contested"), 0.9),
        "made": "",
        "cases": 0,
        "kinds": {},
        "review_from": 0.2,
        "review": {
            "exception": {"cases": 40, "wrong": 10, "share": 0.25},
            "exception.line": {"cases": 30, "wrong": 3, "share": 0.1},
            "exception.line.wide_cause": {"cases": 5, "wrong": 3, "share": 0.6},
        },
    }
)
LOST = Diagnosis(Outcome.FAILED, Category.INFRASTRUCTURE, FailureType.GPU_LOST, 0.4, "rule:x")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("exception.line.wide_cause", (AskReason.UNSURE,)),
        ("exception.line.narrow_cause", ()),
        ("exception.words.narrow_cause", (AskReason.UNSURE,)),
        ("killed.exit_signal.narrow_consequence", ()),
    ],
    ids=["often wrong", "as the kind above it", "as the decider", "never measured"],
)
def test_doubt_follows_from_how_often_such_verdicts_were_wrong(kind: str, expected: tuple[AskReason, ...]) -> None:
    """Whatever the confidence, the narrowest kind that was measured counts."""
    assert review_reasons(replace(LOST, review_kind=kind), TABLE) == expected


RULE = Candidate(0, FailureType.VALUE_ERROR, Role.ROOT, "rule:x", "", Specificity.WORD)


@pytest.mark.parametrize(
    ("root", "decided_by", "expected"),
    [
        (RULE, "rule:x", "generic_rule.word.wide_cause"),
        (replace(RULE, maturity=Maturity.SANDBOX), "rule:x", "generic_rule.sandbox.wide_cause"),
        (
            replace(RULE, type=FailureType.NCCL_REMOTE_ERROR, role=Role.SYMPTOM, specificity=Specificity.FAMILY),
            "rule:x",
            "specific_rule.family.downstream_consequence",
        ),
        (RULE, "heuristic:exception_words", "exception.exception_words.wide_cause"),
        (replace(RULE, type=FailureType.GPU_LOST), "heuristic:words", "words.words.narrow_cause"),
    ],
    ids=["class", "a rule that nobody measured", "what peers print", "words of an exception", "words of a line"],
)
def test_a_kind_is_named_after_what_bears_on_its_being_wrong(root: Candidate, decided_by: str, expected: str) -> None:
    """What decided and how; whether its type is what programs raise for anything, or what the peers of a dead process
    see; whether its line is a cause."""
    kind = verdict_kind(decided_by, root.type, root, ended_badly=True)
    assert review_kind(kind, root.type, root.maturity) == expected


def test_what_the_scheduler_reports_is_no_guess(analyzer: LogAnalyzer) -> None:
    """An exit code of 0 settles that the run completed, and a failed one leaves the cause open."""
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=0)) == ()
    assert doubted(analyzer, STEPS, Event(EventKind.EXIT, 9.0, code=1)) == (AskReason.UNKNOWN,)


@pytest.mark.parametrize(("after", "expected"), [(3, ()), (12, (AskReason.BELIED_END,))], ids=["goodbye", "goes on"])
def test_an_end_that_the_run_outlives_is_in_doubt(
    analyzer: LogAnalyzer, after: int, expected: tuple[AskReason, ...]
) -> None:
    """It may be that of an earlier phase; an exit code of 0 settles it."""
    goes_on = "".join(f"{word} of the quilt\n" for word in WORDS[:after])
    log = STEPS + "training finished after 19 iterations\n" + goes_on
    assert doubted(analyzer, log) == expected
    assert doubted(analyzer, log, Event(EventKind.EXIT, 9.0, code=0)) == ()


@pytest.mark.parametrize(
    ("last", "expected"),
    [("OSError: [Errno 28] No space left on device", (AskReason.CLOSE_RIVAL,)), ("ValueError: bad", ())],
    ids=["message", "class"],
)
def test_a_later_message_that_nothing_explains_contests_a_verdict(
    analyzer: LogAnalyzer, last: str, expected: tuple[AskReason, ...]
) -> None:
    """Two causes far apart may both be it, where the later one says more than its class; neither is sure then."""
    between = "".join(f"{word} and {other} of the quilt\n" for word in WORDS for other in WORDS[:4])
    found = analyzer.diagnose_with_node_logs(
        analyzer.evidence_of(f"{STEPS}{TRACE}KeyError: 'mask'\n{between}{TRACE}{last}\n".encode()), Facts()
    )
    assert (found.type, found.doubts) == (FailureType.KEY_ERROR, expected)
    assert (found.confidence <= analyzer.knowledge.calibration.contested) is bool(expected)


def test_every_reason_has_its_words() -> None:
    """People and the model read the same closed list."""
    assert set(ASK_REASONS) == set(AskReason)
