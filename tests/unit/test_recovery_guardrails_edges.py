"""The guardrails at their limits, and the sentence that each leaves on a plan it changes."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.adapters.files import bundled, text
from diagnoser.model import (
    CheckVerdict,
    ClusterHistory,
    Mode,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    Plan,
    PlanReason,
    PlanState,
    RootCause,
)
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import breaker, guardrails, retry_history, trust
from diagnoser.recovery.breaker import BreakerLimits
from diagnoser.recovery.policy import Policy, load
from tests.contract.records import diagnosis
from tests.proofs import node_log
from tests.unit.test_recovery_guardrails import NOW, done, plan, settle, shipped_policy

R, S = PlanReason, PlanState
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


def launch(attempt: int = 9, **fields: Any) -> Plan:
    """A plan that only launches its job again."""
    return plan(attempt, action=Action.RESUBMIT, **fields)


def others(count: int, tenant: str, ago: float = 60.0, cluster: str = "east") -> tuple[Plan, ...]:
    """Launches of other jobs."""
    made = [done(1, ago, job=f"{tenant}-{number}", tenant=tenant, fingerprint="g") for number in range(count)]
    return tuple(replace(past, cluster=cluster, id=past.job) for past in made)


def shipped_but(old: str, new: str) -> Policy:
    """The shipped policy with one of its values changed."""
    shipped = text(bundled("rules") / "policy.yaml")
    assert old in shipped
    return load("policy.yaml", shipped.replace(old, new))


def told(made: Plan) -> tuple[str, str, str]:
    return made.state.value, made.reason, made.history[-1].why


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        (others(9, "red"), ("sent", R.ACT, "the policy lets this be done without approval")),
        (others(10, "red"), ("waiting", R.TENANT_CAP, "10 launches of tenant red within the hour; the limit is 10")),
        (others(10, "red", ago=HOUR), ("sent", R.ACT, "the policy lets this be done without approval")),
        (others(10, "red", cluster="west"), ("sent", R.ACT, "the policy lets this be done without approval")),
        (others(10, "blue"), ("sent", R.ACT, "the policy lets this be done without approval")),
        (others(29, "blue"), ("sent", R.ACT, "the policy lets this be done without approval")),
        (others(30, "blue"), ("waiting", R.REQUEUE_CAP, "30 launches on east within the hour; the limit is 30")),
    ],
)
def test_launches_within_the_hour(past: tuple[Plan, ...], expected: tuple[str, str, str]) -> None:
    """A tenant's own, before those of the cluster; older ones and those of other clusters do not count."""
    assert told(settle(shipped_policy(), launch(tenant="red"), *past)) == expected


def test_launches_of_no_known_tenant_are_capped_as_one() -> None:
    """They share what a tenant may have."""
    made = settle(shipped_policy(), launch(), *others(10, ""))
    assert told(made) == (
        "waiting",
        R.TENANT_CAP,
        "10 launches of no known tenant within the hour; the limit is 10",
    )


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.ACT, ("sent", R.ACT, "the policy lets this be done without approval")),
        (Mode.APPROVE, ("waiting", R.NEEDS_APPROVAL, "the policy asks for a person's approval")),
        (Mode.OBSERVE, ("advised", R.OBSERVE, "the policy only advises here")),
    ],
)
def test_a_plan_that_no_guardrail_changed_says_why_it_begins_so(mode: Mode, expected: tuple[str, str, str]) -> None:
    """In words, for whoever reads its history."""
    assert told(settle(shipped_policy(), launch(mode=mode))) == expected


def test_what_only_a_person_can_do_says_so() -> None:
    """No guardrail looks at it."""
    made = settle(shipped_policy(), plan(action=Action.NOTIFY_USER))
    assert (made.reason, made.history[-1].why) == (R.FOR_A_PERSON, "only a person can do this")


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        (2, ("sent", R.ACT, "the policy lets this be done without approval")),
        (3, ("held", R.RETRIES_SPENT, "3 launches without progress since this failure; the limit is 3")),
    ],
)
def test_launches_without_progress(spent: int, expected: tuple[str, str, str]) -> None:
    """As many as the policy allows; what is held tells how many there were."""
    past = [done(number, 7_200.0, progress=("step", 200.0)) for number in range(1, spent + 1)]
    assert told(settle(shipped_policy(), launch(progress=("step", 100.0)), *past)) == expected


def test_one_launch_without_progress_is_told_as_one() -> None:
    """Where the policy allows none at all."""
    strict = shipped_but("retries: 3", "retries: 1")
    assert told(settle(strict, launch(progress=("step", 50.0)), done(1, 7_200.0, progress=("step", 100.0)))) == (
        "held",
        R.RETRIES_SPENT,
        "1 launch without progress since this failure; the limit is 1",
    )


def test_the_same_step_twice_is_held() -> None:
    """Only a training step counts as the same; the sentence names it."""
    made = settle(shipped_policy(), launch(progress=("step", 400.0)), done(1, 7_200.0, progress=("step", 400.0)))
    assert told(made) == (
        "held",
        R.SAME_STEP,
        "it failed the same way at step 400 twice: another launch would end there again",
    )
    lines = settle(shipped_policy(), launch(progress=("lines", 4.0)), done(1, 7_200.0, progress=("lines", 4.0)))
    assert lines.state is S.SENT


@pytest.mark.parametrize(
    ("ago", "drained", "is_wrong"),
    [
        (30 * MINUTE, ("n9",), True),
        (30 * MINUTE + 1, ("n9",), False),
        (60.0, (), False),
    ],
)
def test_a_failure_right_after_an_eviction(ago: float, drained: tuple[str, ...], is_wrong: bool) -> None:
    """Within half an hour the wrong node went: the nodes are checked."""
    made = settle(shipped_policy(), launch(progress=("step", 1.0)), done(1, ago, drained=drained))
    if is_wrong:
        assert (made.action, made.reason) == (Action.CHECK_AND_RESUBMIT, R.WRONG_EVICTION)
        assert made.history[-1].why == "it failed again right after n9 was taken out: the nodes are checked"
    else:
        assert (made.action, made.reason) == (Action.RESUBMIT, R.ACT)


def test_two_nodes_that_went_wrongly_are_told_as_two() -> None:
    """The earlier plan learns of it as well."""
    earlier = done(1, 60.0, drained=("n8", "n9"))
    new = launch(progress=("step", 1.0))
    result = guardrails.apply_guardrails(
        shipped_policy(), new, ClusterHistory(past=(earlier,), fleet={"east": 1000}), NOW
    )
    assert result.plan is not None
    assert "n8, n9 were taken out" in result.plan.history[-1].why
    (marked,) = result.others
    assert (marked.id, marked.history[-1].why) == (
        earlier.id,
        "it failed again right after: the wrong node went",
    )


def test_a_failure_right_after_a_check_waits_for_a_person() -> None:
    """Another check would say the same."""
    check = NodeCheck(("n1", "n9"), 1, (), verdict=CheckVerdict(faulty=("n9",)))
    made = settle(shipped_policy(), launch(progress=("step", 1.0)), done(1, 60.0, drained=("n9",), check=check))
    assert told(made) == (
        "held",
        R.WRONG_EVICTION,
        "it failed again right after the node check took out n9",
    )


def test_a_node_that_went_twice_for_one_failure_needs_repair() -> None:
    """The third time a person decides."""
    past = [done(number, 90_000.0, drained=("n1",)) for number in (1, 2)]
    made = settle(shipped_policy(), plan(), *past)
    assert told(made) == (
        "waiting",
        R.NODE_AGAIN,
        "n1 was taken out 2 times or more for this failure before: repair comes first",
    )
    assert settle(shipped_policy(), plan(), past[0]).state is S.SENT


def test_a_suspect_of_two_launches_is_checked_before_a_third() -> None:
    """Launching again on it would fail again."""
    past = [done(number, 90_000.0, suspects=("n1",)) for number in (1, 2)]
    past = [replace(made, suspects=("n1",)) for made in past]
    made = settle(shipped_policy(), launch(), *past)
    assert (made.action, made.reason) == (Action.CHECK_AND_RESUBMIT, R.NODE_AGAIN)
    why = "n1 was suspected 2 times or more for this failure before: the nodes are checked"
    assert made.history[-1].why == why
    assert settle(shipped_policy(), launch(), past[0]).action is Action.RESUBMIT


def mark(kind: NodeEventKind, ago: float = 60.0, by: NodeActor = NodeActor.PERSON) -> NodeEvent:
    return NodeEvent("east", "n1", kind, by, NOW - ago)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            mark(NodeEventKind.CORDONED, 30 * DAY),
            (
                Action.RESUBMIT,
                "n1 was cordoned by a person already: nothing is left to do but to launch the job again",
            ),
        ),
        (mark(NodeEventKind.UNCORDONED, DAY - 1), (Action.CORDON_AND_RESUBMIT, "a person is handling n1")),
        (mark(NodeEventKind.UNCORDONED, DAY), None),
        (mark(NodeEventKind.DOWN), None),
        (mark(NodeEventKind.CORDONED, by=NodeActor.DIAGNOSER), None),
    ],
)
def test_a_node_that_a_person_handles(event: NodeEvent, expected: tuple[Action, str] | None) -> None:
    """One that they cordoned stays so, however long ago; one that they gave back is left alone for a day."""
    made = settle(shipped_policy(), plan(), marks={"n1": event})
    if expected is None:
        assert (made.action, made.reason) == (Action.CORDON_AND_RESUBMIT, R.ACT)
    else:
        assert (made.action, made.history[-1].why, made.reason) == (*expected, R.PERSON_HANDLES_NODE)


def test_nothing_is_proven_yet() -> None:
    """Advice keeps its node and the missing proof; a plan that would act becomes a check of it."""
    why = "would cordon n1, which only the job's own output blames; needs the node's own log or a node check"
    advised = settle(shipped_policy(), plan(mode=Mode.OBSERVE, proofs=()))
    checked = settle(shipped_policy(), plan(proofs=()))
    assert (advised.state, advised.reason, advised.nodes, advised.history[-1].why) == (
        S.ADVISED,
        R.UNPROVEN,
        ("n1",),
        why,
    )
    assert (checked.action, checked.reason, checked.nodes) == (Action.CHECK_AND_RESUBMIT, R.UNPROVEN, ())
    assert (checked.unproven_suspects, checked.history[-1].why) == (("n1",), why)


def test_a_foreign_node_is_dropped_and_the_job_s_own_are_checked() -> None:
    """Suspects that the scheduler did not give the attempt go with it."""
    made = settle(shipped_policy(), plan(nodes=("n7",), proofs=node_log("n7"), suspects=("n7", "n2")))
    assert (made.action, made.nodes, made.suspects) == (Action.CHECK_AND_RESUBMIT, (), ("n2",))
    assert made.history[-1].why == "the scheduler did not give n7 to launch 9 of j: the job's own nodes are checked"


def test_an_attempt_whose_nodes_nobody_told_is_held() -> None:
    """With the launch that is meant."""
    made = settle(shipped_policy(), plan(allocation=()))
    assert told(made) == ("held", R.ALLOCATION_UNKNOWN, "no agent reported which nodes launch 9 ran on")


@pytest.mark.parametrize(("waited", "not_before"), [(59.0, NOW + 541.0), (600.0, 0.0), (700.0, 0.0)])
def test_a_cool_down_is_waited_for(waited: float, not_before: float) -> None:
    """Only as long as it lasts, and the plan lives so much longer."""
    slow = shipped_but("cool_down_minutes: 0", "cool_down_minutes: 10")
    new = launch(progress=("step", 900.0))
    made = settle(slow, new, done(1, waited, progress=("step", 100.0)))
    assert made.not_before == not_before
    if not_before:
        assert made.expires == new.expires + 541.0
        assert made.history[-1].why == "waits 541 s more after the last launch"


def test_a_later_diagnosis_takes_the_place_of_an_open_plan() -> None:
    """History says so; one that acts already stands."""
    waits = plan(mode=Mode.APPROVE, action=Action.RESUBMIT, id="old", key="old")
    result = guardrails.apply_guardrails(shipped_policy(), launch(key="new"), ClusterHistory(past=(waits,)), NOW)
    (superseded,) = result.others
    assert told(superseded) == (
        "superseded",
        R.LATER_DIAGNOSIS,
        "a later diagnosis of the same failure planned something else",
    )
    acts = replace(waits, state=S.SENT)
    stands = guardrails.apply_guardrails(shipped_policy(), launch(key="new"), ClusterHistory(past=(acts,)), NOW)
    assert stands.plan == acts and stands.others == ()


LIMITS = BreakerLimits(share_per_hour=0.1, share_per_day=0.3, least=1, most=4, healthy_share=0.5, tenant_share=0.5)


def taken(number: int, ago: float, tenant: str = "blue", partition: str = "") -> Plan:
    return done(number, ago, job=f"t{number}", tenant=tenant, drained=(f"d{number}",), partition=partition, nodes=())


@pytest.mark.parametrize(
    ("past", "fleet", "why"),
    [
        ((), 20, None),
        ((taken(1, 60.0),), 20, None),
        ((taken(1, 60.0), taken(2, 60.0)), 20, "3 nodes would be taken out within one hour; the limit is 2"),
        ((taken(1, HOUR), taken(2, HOUR)), 20, None),
        (tuple(taken(n, 7_200.0) for n in range(4)), 10, "5 nodes would be taken out within one day; the limit is 3"),
        (tuple(taken(n, 60.0) for n in range(4)), 1000, "5 nodes would be taken out within one hour; the limit is 4"),
        ((taken(1, DAY),), 2, None),
    ],
)
def test_what_trips_the_breaker(past: tuple[Plan, ...], fleet: int, why: str | None) -> None:
    """A share of the nodes that are known within an hour and a day, at least one and at most so many."""
    history = ClusterHistory(past=past, fleet={"east": fleet})
    trip = breaker.decide_trip(LIMITS, plan(), ("n1",), history, NOW)
    assert (trip.reason if trip else None) == why
    if trip:
        assert (trip.scope, trip.tripped, trip.time) == ("east", True, NOW)


@pytest.mark.parametrize(("out", "is_tripped"), [(4, False), (5, True)])
def test_half_of_the_nodes_stay_in_service(out: int, is_tripped: bool) -> None:
    """Cordoned and lost ones count as out, whoever took them; uncordoned ones do not."""
    kinds = [NodeEventKind.CORDONED, NodeEventKind.DOWN] * 3
    marks = {f"m{n}": NodeEvent("east", f"m{n}", kinds[n], NodeActor.PERSON, 0.0) for n in range(out)}
    marks["back"] = NodeEvent("east", "back", NodeEventKind.UNCORDONED, NodeActor.PERSON, 0.0)
    trip = breaker.decide_trip(LIMITS, plan(), ("n1",), ClusterHistory(marks=marks, fleet={"east": 10}), NOW)
    assert (trip is not None) is is_tripped
    if trip:
        assert trip.reason == "4 of 10 nodes would stay in service, 50% must"


def test_a_breaker_of_a_partition_counts_its_own() -> None:
    """Beside that of the cluster."""
    new = plan(partition="gpu")
    assert breaker.scopes(new) == ("east", "east:gpu") and breaker.scopes(plan()) == ("east",)
    history = ClusterHistory(past=(taken(1, 60.0, partition="gpu"),), fleet={"east": 1000, "east:gpu": 10})
    trip = breaker.decide_trip(LIMITS, new, ("n1",), history, NOW)
    assert trip is not None and trip.scope == "east:gpu"
    elsewhere = ClusterHistory(past=(taken(1, 60.0, partition="cpu"),), fleet={"east": 1000, "east:gpu": 10})
    assert breaker.decide_trip(LIMITS, new, ("n1",), elsewhere, NOW) is None


@pytest.mark.parametrize(
    ("tenant", "past", "why"),
    [
        ("red", (), ""),
        ("red", (taken(1, 60.0, "blue"),), ""),
        (
            "red",
            (taken(1, 60.0, "red"),),
            "2 nodes would be taken out by tenant red within one hour; the limit is 1",
        ),
        (
            "",
            (taken(1, 60.0, ""),),
            "2 nodes would be taken out by jobs of no known tenant within one hour; the limit is 1",
        ),
    ],
)
def test_one_tenant_s_share_of_the_nodes(tenant: str, past: tuple[Plan, ...], why: str) -> None:
    """At least one node, at most half of what the breaker allows, by its own plans alone."""
    history = ClusterHistory(past=past, fleet={"east": 20})
    assert breaker.over_tenant_share(LIMITS, plan(tenant=tenant), ("n1",), history, NOW) == why


def test_a_plan_under_way_counts_by_the_nodes_that_it_names() -> None:
    """Also before it has taken any out, and no more once it is over."""
    under_way = replace(taken(1, 60.0), state=S.SENT, nodes=("d7", "d8"), drained=())
    history = ClusterHistory(past=(under_way,), fleet={"east": 20})
    assert breaker.decide_trip(LIMITS, plan(), ("n1",), history, NOW) is not None
    over = replace(under_way, state=S.NOT_REACHED)
    assert breaker.decide_trip(LIMITS, plan(), ("n1",), ClusterHistory(past=(over,), fleet={"east": 20}), NOW) is None


@pytest.mark.parametrize(
    ("old", "counts"),
    [
        ({}, True),
        ({"tenant": ""}, False),
        ({"tenant": "red"}, False),
        ({"cluster": "west"}, False),
        ({"suspects": ("n2", "n1")}, False),
        ({"suspects": ()}, False),
        ({"created": NOW - 7 * DAY}, False),
        ({"created": NOW - 7 * DAY + 1}, True),
        ({"state": S.SUPERSEDED}, False),
        ({"job": "j", "attempt": 9}, False),
    ],
)
def test_whose_suspicion_counts(old: dict[str, object], counts: bool) -> None:
    """That of another known tenant's job of this cluster, of the same first suspect, within a week."""
    past = replace(plan(1), **({"job": "o", "tenant": "blue", "created": NOW - 60.0} | old))  # type: ignore[arg-type]
    new = plan(tenant="red")
    assert bool(retry_history.suspected_by_others(new, [past], NOW)) is counts
    assert retry_history.suspected_by_others(plan(), [past], NOW) == ()


@pytest.mark.parametrize(
    ("now", "before", "is_further"),
    [
        (("step", 101.0), ("step", 100.0), True),
        (("step", 100.0), ("step", 100.0), False),
        (("checkpoint", 101.0), ("checkpoint", 100.0), True),
        (("seconds", 150.0), ("seconds", 100.0), False),
        (("seconds", 150.1), ("seconds", 100.0), True),
        (("lines", 149.0), ("lines", 100.0), False),
        (("step", 900.0), ("seconds", 1.0), False),
    ],
)
def test_what_counts_as_progress(now: tuple[str, float], before: tuple[str, float], is_further: bool) -> None:
    """Steps and checkpoints exactly, time and lines only by half as much again, and never one against the other."""
    assert retry_history.is_further(now, before) is is_further


def test_a_persons_word_on_a_node_is_feedback_on_ours() -> None:
    """Giving back what a plan took out undoes it; other acts say whether the node is good."""
    ours = mark(NodeEventKind.CORDONED, by=NodeActor.DIAGNOSER)
    for before, event, feedback in (
        (ours, mark(NodeEventKind.UNCORDONED), "eviction_undone"),
        (None, mark(NodeEventKind.UNCORDONED), "node_is_good"),
        (mark(NodeEventKind.CORDONED), mark(NodeEventKind.UNCORDONED), "node_is_good"),
        (replace(ours, kind=NodeEventKind.RESUMED), mark(NodeEventKind.UNCORDONED), "node_is_good"),
        (ours, mark(NodeEventKind.CORDONED), "node_is_bad"),
        (ours, mark(NodeEventKind.DOWN), ""),
        (ours, mark(NodeEventKind.UNCORDONED, by=NodeActor.DIAGNOSER), ""),
        (ours, replace(mark(NodeEventKind.CORDONED), feedback="kept"), "kept"),
    ):
        assert breaker.with_feedback(before, event).feedback == feedback


def test_names_of_nodes_are_spelled_as_the_scheduler_does() -> None:
    """Short or full; an address is no short name of another, and what fits several stays as it is."""
    nodes = ("gpu-1.lab", "gpu-2", "10.0.0.3", "gpu-3.a", "gpu-3.b")
    named = ("gpu-1", "gpu-2.lab", "10.0.0.3", "10.0.0.4", "10", "gpu-3", "gpu-1.lab")
    spelled = ("gpu-1.lab", "gpu-2", "10.0.0.3", "10.0.0.4", "10", "gpu-3")
    assert trust.match_scheduler_names(named, nodes) == spelled


def test_a_root_line_that_is_no_text_has_a_fingerprint() -> None:
    """Half a character that a process printed does not stop a plan; numbers and addresses do not count."""
    roots = [
        replace(diagnosis(), root_cause=RootCause(1, text)) for text in ("bad \ud800 7", "bad \udfff 0x8f", "good")
    ]
    first, second, other = map(retry_history.fingerprint, roots)
    assert first == second != other and len(first) == 16
