"""Whether the repair of a node helped."""

import pytest

from diagnoser.model import NodeActor, NodeEvent, NodeEventKind
from diagnoser.recovery.node_returns import DAY, HOUR, REPEAT_SECONDS, evictions, unhelpful_repair

NOW = 100 * DAY


def event(kind: NodeEventKind, ago: float, by: NodeActor = NodeActor.DIAGNOSER) -> NodeEvent:
    return NodeEvent("east", "gpu-017", kind, by, NOW - ago)


def cordoned(ago: float, by: NodeActor = NodeActor.DIAGNOSER) -> NodeEvent:
    return event(NodeEventKind.CORDONED, ago, by)


def given_back(ago: float) -> NodeEvent:
    return event(NodeEventKind.UNCORDONED, ago, NodeActor.PERSON)


def test_only_what_a_plan_took_out_is_an_eviction() -> None:
    """Nodes that people cordon, and nodes that come back, are none."""
    ours = cordoned(HOUR)
    assert evictions([given_back(0.0), ours, cordoned(DAY, NodeActor.PERSON)]) == [ours]


@pytest.mark.parametrize(
    ("causes", "days", "says"),
    [
        (("ecc_error", "ecc_error"), 3.0, "twice within 3 d for ecc error"),
        (("ecc_error", "nvlink_error"), 3.0, ""),
        (("", ""), 3.0, ""),
        (("ecc_error", "ecc_error"), REPEAT_SECONDS / DAY, ""),
    ],
    ids=["the same cause", "another cause", "causes that nobody knows any more", "a month ago"],
)
def test_the_same_cause_again_within_a_month_was_not_repaired(causes: tuple[str, str], days: float, says: str) -> None:
    """Another cause, an unknown one, or one of long ago says nothing about the repair."""
    last, before = cordoned(0.0), cordoned(days * DAY)
    repaired = given_back(2 * DAY)
    why = unhelpful_repair([last, repaired, before], [(last, causes[0]), (before, causes[1])])
    assert says in why and bool(why) == bool(says)


@pytest.mark.parametrize(("came_back", "says"), [(5 * HOUR, "5 h after it came back"), (2 * DAY, ""), (-HOUR, "")])
def test_a_node_that_fails_on_probation_was_not_repaired(came_back: float, says: str) -> None:
    """Whatever the cause; a return of long ago, or one after the eviction, is no probation of it."""
    last = cordoned(0.0)
    why = unhelpful_repair([given_back(came_back), last], [(last, "hang")])
    assert says in why and bool(why) == bool(says)
