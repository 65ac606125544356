"""How the attempt ended, how sure the verdict is, and whether rules do what their examples say."""

import pytest

from diagnoser.model import Event, EventKind, Evidence
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.rules import calibration, examples, outcome
from diagnoser.rules.candidate import Candidate
from diagnoser.rules.schema import Maturity, Role, Specificity
from tests.rule_files import engine, log, rule

TABLE = calibration.load(
    "c.yaml",
    """
made: "2026-01-01"
cases: 3
floor: 0.2
default: 0.7
sandbox: 0.5
learned: 0.9
contested: 0.5
kinds:
  words: {cases: 9, right: 0.6, said: 0.6}
  words.words_word: {cases: 5, right: 0.7, said: 0.65}
  words.words_word.cause.ended_badly: {cases: 2, right: 1.0, said: 0.8}
  other: {cases: 0, right: 0.0, said: 0.55}
review_from: 0.2
review: {}
""",
)


EXIT_0, EXIT_3 = Event(EventKind.EXIT, 5.0, code=0), Event(EventKind.EXIT, 5.0, code=3)


def kind(decided_by: str, failure: str = "key_error", **root: object) -> calibration.VerdictKind:
    """Of a verdict whose root is a line that rules or heuristics read so; None without a level."""
    candidate = None
    if "specificity" in root:
        candidate = Candidate(0, FailureType(failure), by=decided_by, why="", **{"role": Role.ROOT} | root)  # type: ignore[arg-type]
    return calibration.verdict_kind(decided_by, FailureType(failure), candidate, ended_badly=True)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((EXIT_0,), Outcome.COMPLETED),
        ((EXIT_3, Event(EventKind.CANCELLED, 6.0)), Outcome.CANCELLED),
        ((Event(EventKind.EXIT, 5.0, signal=9),), Outcome.FAILED),
        ((EXIT_3, Event(EventKind.EXIT, 7.0)), Outcome.FAILED),
        ((Event(EventKind.EXIT, 7.0),), None),
        ((Event(EventKind.HEARTBEAT, 9.0),), None),
        ((Event(EventKind.EXIT, 5.0, code=3, rank=1), Event(EventKind.EXIT, 6.0, code=0, rank=0)), Outcome.FAILED),
        ((Event(EventKind.EXIT, 5.0, code=3, rank=1), Event(EventKind.EXIT, 6.0, code=0, rank=1)), Outcome.COMPLETED),
    ],
)
def test_events_tell_the_end(events: tuple[Event, ...], expected: Outcome | None) -> None:
    """The newest event about the attempt decides, else the newest exit of the rank that fared worst; an exit without a
    code only says that the run is over."""
    ending = outcome.reported(events)
    assert (ending and ending.outcome) is expected


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, "completed"),
        (1, "unknown"),
        (124, "time_limit"),
        (130, "cancelled"),
        (143, "cancelled"),
        (137, "host_out_of_memory"),
        (-9, "host_out_of_memory"),
        (139, "segmentation_fault"),
        (-6, "segmentation_fault"),
    ],
)
def test_an_exit_status_alone_says_little(code: int, kind: str) -> None:
    """Where the log shows no cause, the code of a run names what usually ends with it, and never a success but 0."""
    ending = outcome.of_status(code)
    assert (ending.type, ending.outcome is Outcome.COMPLETED) == (FailureType(kind), code == 0)


@pytest.mark.parametrize(
    ("known", "cause", "hung", "expected"),
    [
        (Outcome.FAILED, "time_limit", False, Outcome.TIME_LIMIT),
        (Outcome.FAILED, "key_error", False, Outcome.FAILED),
        (None, "unknown", True, Outcome.HUNG),
        (None, "unknown", False, Outcome.UNKNOWN),
        (None, "key_error", False, Outcome.FAILED),
    ],
)
def test_a_named_cause_has_an_outcome(known: Outcome | None, cause: str, hung: bool, expected: Outcome) -> None:
    """A cause of category none is its own outcome; else what is known, a hang, a failure."""
    assert outcome.decide_outcome(known, FailureType(cause), hung=hung) is expected


def test_confidence_is_that_of_the_finest_kind_that_was_measured() -> None:
    """A level that was never seen says what its decider is worth, and a new heuristic what new ones are worth."""
    assert TABLE.of(kind("heuristic:words", specificity=Specificity.WORD)) == 0.8
    assert TABLE.of(kind("heuristic:words", specificity=Specificity.WORD, role=Role.SYMPTOM)) == 0.65
    assert TABLE.of(kind("heuristic:words", specificity=Specificity.CLASS)) == 0.6
    assert TABLE.of(kind("heuristic:of_tomorrow", specificity=Specificity.CLASS)) == 0.55
    assert TABLE.of(kind("rule:x", specificity=Specificity.CODE)) == 0.7


def test_rules_that_were_not_measured_say_less() -> None:
    """A sandbox rule and a learned rule are capped, a stable rule and a heuristic are not, and nothing is raised."""
    assert TABLE.bounded(0.95, "rule:mine", Maturity.SANDBOX) == 0.5
    assert TABLE.bounded(0.95, "rule:learned_x", Maturity.SANDBOX) == 0.9
    assert TABLE.bounded(0.95, "rule:mine", Maturity.STABLE) == TABLE.bounded(0.95, "heuristic:words", None) == 0.95
    assert TABLE.bounded(0.3, "rule:mine", Maturity.SANDBOX) == 0.3


def test_confidence_table_faults_are_told() -> None:
    """A share above 1 is a fault with its line."""
    with pytest.raises(RuleFaults) as caught:
        calibration.load("c.yaml", 'made: "2026-01-01"\ncases: 3\nfloor: 2\ndefault: 0.7\nkinds: {}\n')
    assert "c.yaml:3" in str(caught.value)


@pytest.mark.parametrize(
    ("decided_by", "failure", "specificity", "decider"),
    [
        ("rule:x", "ecc_error", Specificity.FAMILY, "specific_rule"),
        ("rule:x", "key_error", Specificity.CLASS, "generic_rule"),
        ("heuristic:exception_context", "key_error", Specificity.CLASS, "exception"),
        ("heuristic:exit_signal", "segmentation_fault", Specificity.FAMILY, "exit"),
        ("heuristic:exit_signal", "host_out_of_memory", Specificity.FAMILY, "killed"),
        ("heuristic:exit_event", "completed", Specificity.FAMILY, "report"),
    ],
)
def test_deciders_of_a_kind_share_a_row(decided_by: str, failure: str, specificity: Specificity, decider: str) -> None:
    """What decided names the coarse row, by what it knows and not by its name."""
    assert kind(decided_by, failure, specificity=specificity).decider == decider


def test_facts_that_bear_on_a_verdict_name_its_fine_row() -> None:
    """A consequence in a run whose end is not seen is not as sure as a cause."""
    root = Candidate(0, FailureType.KEY_ERROR, Role.SYMPTOM, "rule:x", "", Specificity.CLASS)
    found = calibration.verdict_kind("rule:x", root.type, root, ended_badly=False)
    assert found.keys[-1] == "generic_rule.class.consequence.end_unseen"


def read(text: bytes) -> Evidence:
    return log(*text.decode().splitlines())


def test_examples_that_hold_give_no_fault() -> None:
    """A rule that hits its matches, extracts what they state and spares the rest is proven."""
    example = {"text": "marker rank=3", "rank": 3}
    made = engine(
        rule("one", patterns=[r"marker(?: rank=(?P<rank>\d+))?"], examples={"match": [example], "no_match": ["x"]})
    )
    assert examples.check(made, read) == []


def test_each_example_that_does_not_hold_is_told() -> None:
    """A match that misses, a wrong extraction, a no_match that hits and a missed anchor are four faults."""
    made = engine(
        rule("miss", patterns=["marker 7"], examples={"match": ["marker"], "no_match": ["x"]}),
        rule("wrong", examples={"match": [{"text": "marker", "rank": 3}], "no_match": ["x"]}),
        rule("hits", examples={"match": ["marker"], "no_match": ["a marker"]}),
        rule("lost", anchors=["Marker"], examples={"match": ["marker"], "no_match": ["x"]}),
    )
    told = {fault.path: fault.message for fault in examples.check(made, read)}
    assert "does not hit" in told["infrastructure/miss.yaml"]
    assert "rank: expected 3" in told["infrastructure/wrong.yaml"]
    assert "no_match.0: the rule hits" in told["infrastructure/hits.yaml"]
    assert "anchors" in told["infrastructure/lost.yaml"]
