"""The rails: retry ledger, people's own acts, the breaker, and two diagnoses for one failure."""

from dataclasses import replace

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
    PlanChange,
    PlanReason,
    PlanState,
)
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import breaker, guardrails
from diagnoser.recovery.breaker import BreakerLimits
from diagnoser.recovery.policy import Policy, in_mode, load

NOW = 1_000_000.0
from tests.proofs import proven

R, S = PlanReason, PlanState


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load("policy.yaml", text(bundled("rules") / "policy.yaml"))


def plan(
    attempt: int = 9, mode: Mode = Mode.ACT, action: Action = Action.CORDON_AND_RESUBMIT, **fields: object
) -> Plan:
    made = Plan(
        id=f"p{attempt}",
        key=f"k{attempt}",
        job="j",
        attempt=attempt,
        action=action,
        nodes=("n1",) if action is Action.CORDON_AND_RESUBMIT else (),
        mode=mode,
        state=S.SENT,
        reason="",
        created=NOW,
        expires=NOW + 3600,
        row="broken_node_named",
        cluster="east",
        family="llm",
        fingerprint="f",
        progress=("step", 100.0 * attempt),
        suspects=("n1",),
    )
    return replace(in_mode(proven(made, "n1", "n2"), mode), **fields)  # type: ignore[arg-type]


def done(attempt: int, ago: float, state: PlanState = S.REACHED, **fields: object) -> Plan:
    """An earlier launch's plan that came to its end so many seconds ago."""
    made = plan(attempt, created=NOW - ago, action=Action.RESUBMIT, suspects=())
    history = (PlanChange(NOW - ago, state, "slurm", ""),)
    return replace(made, state=state, history=history, **fields)  # type: ignore[arg-type]


def settle(policy: Policy, new: Plan, *past: Plan, **more: object) -> Plan:
    situation = replace(ClusterHistory(past=past, fleet={"east": 1000}), **more)  # type: ignore[arg-type]
    settled = guardrails.apply_guardrails(policy, new, situation, NOW).plan
    assert settled is not None
    return settled


def stands(found: Plan) -> tuple[str, str, str]:
    return found.action.value, found.state.value, found.reason


@pytest.mark.parametrize(
    ("mode", "state", "reason"),
    [
        (Mode.OBSERVE, S.ADVISED, R.OBSERVE),
        (Mode.APPROVE, S.WAITING, R.NEEDS_APPROVAL),
        (Mode.ACT, S.SENT, R.ACT),
    ],
)
def test_a_first_failure_is_settled_by_its_mode(
    policy: Policy, mode: Mode, state: PlanState, reason: PlanReason
) -> None:
    """Without a past no rail speaks, and the history begins with the row."""
    found = settle(policy, plan(mode=mode))
    assert stands(found) == ("cordon_and_resubmit", state, reason)
    assert "broken_node_named" in found.history[0].why


@pytest.mark.parametrize("action", [Action.NOTIFY_USER])
def test_what_only_a_person_can_do_is_never_sent(policy: Policy, action: Action) -> None:
    """Also in mode act."""
    assert stands(settle(policy, plan(action=action))) == ("notify_user", S.ADVISED, R.FOR_A_PERSON)


def test_the_same_failure_at_the_same_step_stops(policy: Policy) -> None:
    """The second time at one step, launching again cannot help; a step further it may."""
    before = done(8, 7200, progress=("step", 900.0))
    assert stands(settle(policy, plan(), before))[1:] == (S.HELD, R.SAME_STEP)
    assert settle(policy, plan(), replace(before, progress=("step", 899.0))).state is S.SENT
    assert settle(policy, plan(), replace(before, fingerprint="other")).state is S.SENT
    assert settle(policy, plan(), replace(before, family="other")).state is S.SENT


def test_equal_elapsed_times_are_not_the_same_step(policy: Policy) -> None:
    """Only training steps are exact enough."""
    before = done(8, 7200, progress=("seconds", 60.0))
    assert settle(policy, plan(progress=("seconds", 60.0)), before).state is S.SENT


def test_retries_without_progress_are_spent(policy: Policy) -> None:
    """Three launches that came no further are enough; the measure is the plan's."""
    past = [done(n, 7200.0 - n, progress=("seconds", 60.0 + n)) for n in range(1, 4)]
    assert stands(settle(policy, plan(progress=("seconds", 65.0)), *past))[1:] == (S.HELD, R.RETRIES_SPENT)
    assert settle(policy, plan(progress=("seconds", 65.0)), *past[:2]).state is S.SENT


def test_progress_past_the_last_failure_resets_the_retries(policy: Policy) -> None:
    """A job that gets further each time may go on for ever."""
    past = [done(n, 7200.0 - n) for n in range(1, 9)]
    assert settle(policy, plan(), *past).state is S.SENT


def test_launches_that_nobody_made_do_not_count(policy: Policy) -> None:
    """Advice and refused plans spend no retries."""
    past = [done(n, 7200.0 - n, S.REFUSED, progress=("seconds", 60.0)) for n in range(1, 6)]
    assert settle(policy, plan(progress=("seconds", 60.0)), *past).state is S.SENT


def test_in_observe_mode_a_rail_only_gives_its_reason(policy: Policy) -> None:
    """Nothing would have acted anyway."""
    before = done(8, 7200, progress=("step", 900.0))
    assert stands(settle(policy, plan(mode=Mode.OBSERVE), before))[1:] == (S.ADVISED, R.SAME_STEP)


def test_a_failure_right_after_an_eviction_escalates_to_the_check(policy: Policy) -> None:
    """The wrong node went: the nodes are checked, and the old plan says so."""
    evicted = done(8, 600, drained=("n7",), progress=("step", 950.0))
    situation = ClusterHistory(past=(evicted,), fleet={"east": 1000})
    ruling = guardrails.apply_guardrails(policy, plan(), situation, NOW)
    assert ruling.plan is not None
    assert stands(ruling.plan) == ("check_and_resubmit", S.SENT, R.WRONG_EVICTION)
    assert ruling.plan.nodes == () and ruling.plan.key != plan().key
    assert [one.history[-1].why for one in ruling.others] == ["it failed again right after: the wrong node went"]


def test_a_failure_right_after_a_check_stops(policy: Policy) -> None:
    """The check has said what it can."""
    check = NodeCheck(("n7", "n8"), 2, (), verdict=CheckVerdict(("n7",)))
    evicted = done(8, 600, drained=("n7",), check=check, progress=("step", 950.0))
    assert stands(settle(policy, plan(), evicted))[1:] == (S.HELD, R.WRONG_EVICTION)


def test_a_failure_long_after_an_eviction_is_a_new_one(policy: Policy) -> None:
    """So is one that came further than before."""
    soon, later = (done(8, ago, drained=("n7",), progress=("step", 950.0)) for ago in (1800, 1801))
    assert settle(policy, plan(), soon).reason == R.WRONG_EVICTION
    assert settle(policy, plan(), later).reason == R.ACT
    assert settle(policy, plan(), done(8, 600, drained=("n7",))).reason == R.ACT  # step 800 before, 900 now


def test_a_node_that_was_evicted_for_it_before_needs_repair(policy: Policy) -> None:
    """The third time a person is asked."""
    past = [done(n, 90_000.0 * n, drained=("n1",), family=f"other{n}") for n in (1, 2)]
    assert stands(settle(policy, plan(), *past))[1:] == (S.WAITING, R.NODE_AGAIN)


def test_a_resubmit_on_the_same_suspect_again_becomes_a_check(policy: Policy) -> None:
    """A transient failure that keeps pointing at one node is not transient."""
    past = [replace(done(n, 9000.0 * n, family=f"other{n}"), suspects=("n1",)) for n in (1, 2)]
    found = settle(policy, plan(action=Action.RESUBMIT), *past)
    assert stands(found) == ("check_and_resubmit", S.SENT, R.NODE_AGAIN)


def test_launches_an_hour_are_capped(policy: Policy) -> None:
    """Whatever fails so often on one cluster, a person looks at it first."""
    past = [done(n, 60.0, fingerprint=f"f{n}", job=f"j{n}") for n in range(30)]
    assert stands(settle(policy, plan(), *past))[1:] == (S.WAITING, R.REQUEUE_CAP)
    assert settle(policy, plan(), *past[1:]).state is S.SENT


def test_a_cool_down_delays_the_next_launch(policy: Policy) -> None:
    """It is claimable later, and lives as much longer."""
    table = policy.table.model_copy(
        update={"defaults": policy.table.defaults.model_copy(update={"cool_down_minutes": 10.0})}
    )
    found = settle(replace(policy, table=table), plan(), done(8, 120))
    assert (found.not_before, found.expires) == (NOW + 480, NOW + 3600 + 480)


def mark(kind: NodeEventKind, ago: float, by: NodeActor = NodeActor.PERSON) -> dict[str, NodeEvent]:
    return {"n1": NodeEvent("east", "n1", kind, by, NOW - ago)}


def test_a_node_that_a_person_cordoned_is_left_alone(policy: Policy) -> None:
    """It is out already, however long: the job is launched again without touching it."""
    found = settle(policy, plan(), marks=mark(NodeEventKind.CORDONED, 1e6))
    assert (*stands(found), found.nodes) == ("resubmit", S.SENT, R.PERSON_HANDLES_NODE, ())


def test_a_node_that_a_person_brought_back_is_left_alone(policy: Policy) -> None:
    """For a day nothing is done against that person's word."""
    assert stands(settle(policy, plan(), marks=mark(NodeEventKind.UNCORDONED, 3600)))[1:] == (
        S.HELD,
        R.PERSON_HANDLES_NODE,
    )
    assert settle(policy, plan(), marks=mark(NodeEventKind.UNCORDONED, 90_000)).state is S.SENT
    assert settle(policy, plan(), marks=mark(NodeEventKind.CORDONED, 60, NodeActor.DIAGNOSER)).state is S.SENT


def test_the_breaker_trips_and_then_asks(policy: Policy) -> None:
    """A small cluster may lose one node an hour; the second trips it, and an open one asks without tripping again."""
    taken = replace(done(8, 600, fingerprint="x", drained=("n7",)), job="other")
    situation = ClusterHistory(past=(taken,), fleet={"east": 10})
    ruling = guardrails.apply_guardrails(policy, plan(), situation, NOW)
    assert ruling.plan is not None and stands(ruling.plan)[1:] == (S.WAITING, R.BREAKER)
    assert [(one.scope, one.tripped) for one in ruling.trips] == [("east", True)]
    asked = guardrails.apply_guardrails(
        policy, plan(), replace(ClusterHistory(fleet={"east": 10}), open=frozenset({"east"})), NOW
    )
    assert asked.plan is not None and stands(asked.plan)[1:] == (S.WAITING, R.BREAKER)
    assert asked.trips == ()


def test_the_breaker_does_not_stop_a_launch_that_takes_nothing_out(policy: Policy) -> None:
    """Resubmitting needs no node."""
    assert settle(policy, plan(action=Action.RESUBMIT), open=frozenset({"east"})).state is S.SENT


@pytest.mark.parametrize(("mode", "reason"), [(Mode.OBSERVE, R.OBSERVE), (Mode.APPROVE, R.NEEDS_APPROVAL)])
def test_a_plan_that_does_nothing_by_itself_neither_trips_the_breaker_nor_waits_for_it(
    policy: Policy, mode: Mode, reason: PlanReason
) -> None:
    """Advice takes no node out, and what a person approves has its approval."""
    taken = replace(done(8, 600, fingerprint="x", drained=("n7",)), job="other")
    for tripped in (frozenset[str](), frozenset({"east"})):
        ruling = guardrails.apply_guardrails(
            policy, plan(mode=mode), ClusterHistory(past=(taken,), fleet={"east": 10}, open=tripped), NOW
        )
        assert ruling.plan is not None and ruling.plan.reason == reason
        assert ruling.trips == ()


LIMITS = BreakerLimits()


@pytest.mark.parametrize(
    ("fleet", "taken", "ago", "trips"),
    [
        (1000, 19, 60.0, False),  # with the one to come 20 = 2 % an hour
        (1000, 20, 60.0, True),
        (1000, 20, 3700.0, True),  # most is 20 a window, also of a day
        (200, 4, 60.0, True),
        (200, 4, 3700.0, False),
        (200, 9, 3700.0, False),
        (200, 10, 3700.0, True),
        (200, 10, 90_000.0, False),
        (0, 0, 60.0, False),  # unknown size: one may go
        (0, 1, 60.0, True),
    ],
)
def test_the_breaker_counts_within_its_windows(fleet: int, taken: int, ago: float, trips: bool) -> None:
    """2 % an hour, 5 % a day, at least one, at most twenty."""
    past = tuple(replace(done(n, ago), drained=(f"d{n}",)) for n in range(1, taken + 1))
    situation = ClusterHistory(past=past, fleet={"east": fleet})
    assert (breaker.decide_trip(LIMITS, plan(), ("n1",), situation, NOW) is not None) == trips


def test_the_breaker_counts_plans_under_way_and_partitions() -> None:
    """Two plans decided at once are both seen; a partition trips though the cluster is large."""
    under_way = replace(plan(8), nodes=("n5",), partition="gpu")
    situation = ClusterHistory(past=(under_way,), fleet={"east": 1000, "east:gpu": 8})
    found = breaker.decide_trip(LIMITS, plan(partition="gpu"), ("n1",), situation, NOW)
    assert found is not None and found.scope == "east:gpu"


def test_the_only_node_of_a_fleet_may_be_taken_out() -> None:
    """A share of one node means nothing; of two nodes one is half and may go, of which the second stays."""
    assert breaker.decide_trip(LIMITS, plan(), ("n1",), ClusterHistory(fleet={"east": 1}), NOW) is None
    assert breaker.decide_trip(LIMITS, plan(), ("n1",), ClusterHistory(fleet={"east": 2}), NOW) is None
    down = {"n2": NodeEvent("east", "n2", NodeEventKind.DOWN, NodeActor.DIAGNOSER, NOW)}
    found = breaker.decide_trip(LIMITS, plan(), ("n1",), ClusterHistory(fleet={"east": 2}, marks=down), NOW)
    assert found is not None and "0 of 2 nodes would stay in service" in found.reason


def test_half_of_the_nodes_stay_in_service() -> None:
    """Nodes that are down for whatever reason count."""
    marks = {f"m{n}": NodeEvent("east", f"m{n}", NodeEventKind.DOWN, NodeActor.DIAGNOSER, NOW) for n in range(5)}
    situation = ClusterHistory(marks=marks, fleet={"east": 10})
    found = breaker.decide_trip(LIMITS, plan(), ("n1",), situation, NOW)
    assert found is not None and "4 of 10 nodes would stay in service" in found.reason


@pytest.mark.parametrize("state", [S.SENT, S.REACHED, S.NOT_REACHED])
def test_two_diagnoses_for_one_failure_act_once(policy: Policy, state: PlanState) -> None:
    """What was sent stands, also when a better diagnosis wants something else."""
    first = replace(plan(), state=state)
    later = replace(plan(), id="later", key="other", action=Action.RESUBMIT)
    assert settle(policy, later, first) == first


def test_a_later_diagnosis_replaces_advice(policy: Policy) -> None:
    """Only one plan of a failure can be approved."""
    first = replace(plan(mode=Mode.APPROVE), key="first")
    later = replace(plan(mode=Mode.APPROVE, action=Action.RESUBMIT), id="later", key="later")
    ruling = guardrails.apply_guardrails(policy, later, ClusterHistory(past=(first,), fleet={"east": 1000}), NOW)
    assert ruling.plan is not None and (ruling.plan.id, ruling.plan.state) == ("later", S.WAITING)
    assert [(one.id, one.state) for one in ruling.others] == [(first.id, S.SUPERSEDED)]
    again = guardrails.apply_guardrails(
        policy, replace(first, id="x"), ClusterHistory(past=(ruling.others[0], ruling.plan)), NOW
    )
    assert again.plan is not None and (again.plan.id, again.plan.state) == ("x", S.WAITING)


@pytest.mark.parametrize("state", [S.WAITING, S.REFUSED, S.EXPIRED, S.HELD])
def test_the_same_plan_again_is_the_one_that_stands(policy: Policy, state: PlanState) -> None:
    """A person's no is not asked again, and a hold is not lifted by a second diagnosis."""
    first = replace(plan(mode=Mode.APPROVE), state=state)
    assert settle(policy, replace(plan(mode=Mode.APPROVE), id="later"), first) == first
