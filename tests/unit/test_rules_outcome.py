"""How the attempt ended, how sure the verdict is, and whether rules do what their examples say."""

import pytest

from diagnoser.model import Event, EventKind, Evidence
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType, Outcome
from diagnoser.rules import calibration, examples, outcome
from diagnoser.rules.schema import Maturity, Specificity
from tests.rule_files import engine, log, rule

TABLE = calibration.load(
    "c.yaml",
    'made: "2026-01-01"\ncases: 3\nfloor: 0.2\ndefault: 0.7\nsandbox: 0.5\nlearned: 0.9\nkinds: {a.b: 0.95}\n',
)


def test_events_tell_the_end() -> None:
    """The last event about the end decides; progress events say nothing."""
    exit_0, exit_1 = Event(EventKind.EXIT, 5.0, code=0), Event(EventKind.EXIT, 5.0, code=1)
    cancelled = Event(EventKind.CANCELLED, 6.0)
    assert outcome.reported([exit_0]) is Outcome.COMPLETED
    assert outcome.reported([exit_1]) is Outcome.FAILED
    assert outcome.reported([exit_1, cancelled]) is Outcome.CANCELLED
    assert outcome.reported([Event(EventKind.HEARTBEAT, 9.0)]) is None


def test_an_exit_without_a_code_is_no_success() -> None:
    """Only that the run is over is known then, and an earlier event may tell more."""
    unknown = Event(EventKind.EXIT, 7.0)
    assert outcome.reported([unknown]) is None
    assert outcome.reported([Event(EventKind.EXIT, 5.0, code=3), unknown]) is Outcome.FAILED
    assert outcome.reported([Event(EventKind.EXIT, 5.0, signal=9)]) is Outcome.FAILED


def test_outcome_follows_type_then_events_then_log() -> None:
    """A verdict of category none is its own outcome; else events, a completed log, a hang, a root."""

    def settle(told: Outcome | None, root: str, **state: bool) -> Outcome:
        return outcome.decide_outcome(told, FailureType(root), **({"hung": False, "completed": False} | state))

    assert settle(Outcome.FAILED, "time_limit") is Outcome.TIME_LIMIT
    assert settle(Outcome.FAILED, "key_error") is Outcome.FAILED
    assert settle(None, "loss_divergence", completed=True) is Outcome.COMPLETED
    assert settle(None, "unknown", hung=True) is Outcome.HUNG
    assert settle(None, "unknown") is Outcome.UNKNOWN
    assert settle(None, "key_error") is Outcome.FAILED


def test_confidence_comes_from_the_table() -> None:
    """A kind that was measured has its share, any other the default."""
    assert (TABLE.of("a.b"), TABLE.of("never.seen")) == (0.95, 0.7)


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


def test_kind_names_who_decided_and_whether_it_is_contested() -> None:
    """Rules share bins by role and specificity; a rival of another type makes a verdict contested."""
    assert calibration.verdict_kind("rule:x", "root", Specificity.CODE, 0) == "rule.root.code.alone"
    heuristic = calibration.verdict_kind("heuristic:exception_class", "root", Specificity.CLASS, 1)
    assert heuristic == "exception_class.root.class.contested"


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
