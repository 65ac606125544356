"""The rails: retry ledger, people's own acts, the breaker, and two diagnoses for one failure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.adapters.files import bundled, text
from diagnoser.model import (
    CheckVerdict,
    ClusterHistory,
    Mode,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    NodeProof,
    Plan,
    PlanChange,
    PlanReason,
    PlanState,
    ProofKind,
)
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import breaker, guardrails
from diagnoser.recovery.breaker import BreakerLimits
from diagnoser.recovery.policy import Policy, in_mode, load
from tests.proofs import node_log, proven

NOW = 1_000_000.0
R, S = PlanReason, PlanState


@cache
def shipped_policy() -> Policy:
    return load("policy.yaml", text(bundled("rules") / "policy.yaml"))


@pytest.fixture
def policy() -> Policy:
    return shipped_policy()


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
    """Without a past no rail speaks, and the history begins with what the policy says, in words."""
    found = settle(policy, plan(mode=mode))
    assert stands(found) == ("cordon_and_resubmit", state, reason)
    assert "_" not in found.history[0].why and "policy" in found.history[0].why


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
    assert settle(policy, plan(), replace(before, job="k", family="other")).state is S.SENT


@pytest.mark.parametrize("other", [{"family": "new"}, {"family": "new", "tenant": "eve"}])
def test_a_job_that_calls_itself_something_else_is_the_same_job(policy: Policy, other: dict[str, str]) -> None:
    """A requeue keeps the id: a new name or label makes no new failure of it."""
    before = replace(done(8, 7200, progress=("step", 900.0)), **other)  # type: ignore[arg-type]
    assert stands(settle(policy, plan(), before))[1:] == (S.HELD, R.SAME_STEP)


def test_what_another_tenant_calls_its_jobs_is_no_history_of_ours(policy: Policy) -> None:
    """Its jobs have our name and print our failure at our step: ours is launched again all the same."""
    theirs = [done(n, 7200.0 - n, job=f"k{n}", tenant="eve", progress=("step", 900.0)) for n in range(1, 9)]
    assert settle(policy, plan(tenant="ida"), *theirs).state is S.SENT


def test_equal_elapsed_times_are_not_the_same_step(policy: Policy) -> None:
    """Only training steps are exact enough."""
    before = done(8, 7200, progress=("seconds", 60.0))
    assert settle(policy, plan(progress=("seconds", 60.0)), before).state is S.SENT


def test_retries_without_progress_are_spent(policy: Policy) -> None:
    """Three launches that came no further are enough; the measure is the plan's."""
    past = [done(n, 7200.0 - n, progress=("seconds", 60.0 + n)) for n in range(1, 4)]
    assert stands(settle(policy, plan(progress=("seconds", 65.0)), *past))[1:] == (S.HELD, R.RETRIES_SPENT)
    assert settle(policy, plan(progress=("seconds", 65.0)), *past[:2]).state is S.SENT


def test_retries_count_launches_under_one_id_whatever_they_print(policy: Policy) -> None:
    """Another name, label and message at each launch: the scheduler knows it as one job."""
    past = [
        done(n, 7200.0 - n, progress=("seconds", 60.0), family=f"name-{n}", fingerprint=f"text-{n}")
        for n in range(1, 4)
    ]
    assert stands(settle(policy, plan(progress=("seconds", 65.0)), *past))[1:] == (S.HELD, R.RETRIES_SPENT)
    assert settle(policy, plan(progress=("seconds", 65.0)), *past[:2]).state is S.SENT
    resubmitted = [replace(old, job=f"j{n}") for n, old in enumerate(past)]
    assert settle(policy, plan(progress=("seconds", 65.0)), *resubmitted).state is S.SENT


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


@pytest.mark.parametrize(
    ("kind", "hours", "allocation", "action"),
    [
        (NodeEventKind.UNCORDONED, 5, ("n1",), "check_and_resubmit"),
        (NodeEventKind.UNCORDONED, 25, ("n1",), "resubmit"),  # a day has gone by
        (NodeEventKind.UNCORDONED, -5, ("n1",), "check_and_resubmit"),  # a clock that was put back
        (NodeEventKind.RESUMED, 5, ("n1",), "resubmit"),  # nobody had taken it out
        (NodeEventKind.UNCORDONED, 5, ("n2",), "resubmit"),  # the job only names it
    ],
)
def test_a_node_on_probation_is_checked_at_the_first_suspicion(
    policy: Policy, kind: NodeEventKind, hours: float, allocation: tuple[str, ...], action: str
) -> None:
    """For a day after it was given back, and only by a job that ran on it."""
    mark = NodeEvent("east", "n1", kind, NodeActor.PERSON, NOW - hours * 3600)
    new = plan(action=Action.RESUBMIT, allocation=allocation)
    found = settle(policy, new, marks={"n1": mark})
    assert found.action.value == action
    assert (found.reason == R.ON_PROBATION) == (action == "check_and_resubmit")


def test_eighteen_nodes_under_one_switch_lead_to_one_check(policy: Policy) -> None:
    """The first goes; the second makes it a matter of the switch, which its plan checks; the others wait."""
    under = {f"n{number}": (f"switch:{'a' if number < 18 else 'b'}",) for number in range(40)}
    made = list[Plan]()
    for number in range(18):
        node = f"n{number}"
        proofs = (NodeProof(node, ProofKind.NODE_LOG, "Xid 79"),)
        fields = {"job": f"j{number}", "family": f"f{number}", "fingerprint": f"g{number}", "suspects": (node,)}
        new = replace(plan(number + 1), nodes=(node,), allocation=(node,), proofs=proofs, **fields)  # type: ignore[arg-type]
        made.append(settle(policy, new, *made, places=under))
    assert [stands(found)[0] for found in made].count("check_and_resubmit") == 1
    assert stands(made[1]) == ("check_and_resubmit", S.SENT, R.PLACE_FAILS)
    assert {stands(found)[1:] for found in made[2:]} == {(S.WAITING, R.PLACE_FAILS)}
    assert made[-1].history[-1].why == "18 nodes of switch a failed within 10 minutes, and another plan checks it"


@pytest.mark.parametrize(("relaunches", "state"), [(None, S.SENT), (0, S.HELD), (50, S.SENT)])
def test_a_contract_lowers_how_often_a_job_is_launched_again(
    policy: Policy, relaunches: int | None, state: PlanState
) -> None:
    """It never raises what the policy allows: see the next launch, which is the fourth."""
    new = plan(4, action=Action.RESUBMIT, relaunches=relaunches, progress=("seconds", 65.0))
    assert settle(policy, new).state is state
    spent = [done(number, 7200.0 - number, progress=("seconds", 60.0 + number)) for number in (1, 2, 3)]
    assert settle(policy, new, *spent).state is S.HELD


def test_launches_an_hour_are_capped(policy: Policy) -> None:
    """Whatever fails so often on one cluster, a person looks at it first."""
    past = [done(n, 60.0, fingerprint=f"f{n}", job=f"j{n}", tenant=f"t{n % 5}") for n in range(30)]
    assert stands(settle(policy, plan(), *past))[1:] == (S.WAITING, R.REQUEUE_CAP)
    assert settle(policy, plan(), *past[1:]).state is S.SENT


@pytest.mark.parametrize("tenant", ["eve", ""])
def test_launches_an_hour_are_capped_for_each_tenant(policy: Policy, tenant: str) -> None:
    """Under new ids and names each time; jobs of no known tenant are one tenant; the others launch on."""
    past = [done(n, 60.0, fingerprint=f"f{n}", family=f"new{n}", job=f"j{n}", tenant=tenant) for n in range(10)]
    assert stands(settle(policy, plan(tenant=tenant), *past))[1:] == (S.WAITING, R.TENANT_CAP)
    assert settle(policy, plan(tenant=tenant), *past[1:]).state is S.SENT
    assert settle(policy, plan(tenant="ida"), *past).state is S.SENT
    assert settle(policy, plan(tenant=tenant, cluster="west"), *past).state is S.SENT


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
    taken = replace(done(8, 600, fingerprint="x", drained=("n7",)), job="other", tenant="ida")
    situation = ClusterHistory(past=(taken,), fleet={"east": 10})
    ruling = guardrails.apply_guardrails(policy, plan(), situation, NOW)
    assert ruling.plan is not None and stands(ruling.plan)[1:] == (S.WAITING, R.BREAKER)
    assert [(one.scope, one.tripped) for one in ruling.trips] == [("east", True)]
    asked = guardrails.apply_guardrails(
        policy, plan(), replace(ClusterHistory(fleet={"east": 10}), open=frozenset({"east"})), NOW
    )
    assert asked.plan is not None and stands(asked.plan)[1:] == (S.WAITING, R.BREAKER)
    assert asked.trips == ()


@pytest.mark.parametrize(("fleet", "allowed"), [(0, 1), (10, 1), (150, 1), (200, 2), (1000, 10), (100_000, 10)])
def test_evictions_have_a_cap_for_each_tenant(policy: Policy, fleet: int, allowed: int) -> None:
    """Half of what the breaker allows an hour, at least one node: the next plan waits, the breaker stays as it is, and
    another tenant's may go."""
    past = [
        replace(done(n, 7000, fingerprint=f"f{n}", drained=(f"d{n}",)), job=f"j{n}", tenant="eve", family="x")
        for n in range(1, 30)
    ]
    recent = [replace(old, history=(PlanChange(NOW - 60, S.REACHED, "slurm", ""),)) for old in past]
    history = ClusterHistory(past=tuple(recent[:allowed]), fleet={"east": fleet})
    ruling = guardrails.apply_guardrails(policy, plan(tenant="eve"), history, NOW)
    assert ruling.plan is not None and stands(ruling.plan)[1:] == (S.WAITING, R.TENANT_CAP)
    assert f"the limit is {allowed}" in ruling.plan.history[-1].why and ruling.trips == ()
    history = replace(history, past=history.past[1:])
    assert settle(policy, plan(tenant="eve"), *history.past, fleet=history.fleet).reason == R.ACT
    theirs = guardrails.apply_guardrails(policy, plan(tenant="ida"), history, NOW)
    assert theirs.plan is not None and (theirs.plan.reason, theirs.trips) == (R.ACT, ())


def test_a_site_that_lets_no_node_go_asks_the_tenant_first() -> None:
    """A tenant's share is never more than the breaker allows."""
    limits = BreakerLimits(least=0, most=0)
    assert "the limit is 0" in breaker.over_tenant_share(limits, plan(), ("n1",), ClusterHistory(), NOW)


def test_suspicions_of_another_tenant_count_where_something_proves_them(policy: Policy) -> None:
    """What its jobs print does not turn our launch into a check of nodes."""
    past = [replace(done(n, 9000.0 * n), job=f"k{n}", tenant="eve", suspects=("n1",)) for n in (1, 2, 3)]
    new = plan(action=Action.RESUBMIT, tenant="ida")
    assert stands(settle(policy, new, *past)) == ("resubmit", S.SENT, R.ACT)
    proof = NodeProof("n1", ProofKind.NODE_LOG, "NVRM: Xid 79")
    proven = [replace(old, proofs=(proof,)) for old in past]
    assert stands(settle(policy, new, *proven)) == ("check_and_resubmit", S.SENT, R.NODE_AGAIN)


@dataclass(frozen=True)
class Failure:
    """A plan to be decided on. minute: when. again: whether its job looks like the tenant's one before."""

    minute: int
    tenant: str
    action: Action
    again: bool


def failures_of(tenant: str, count: int) -> st.SearchStrategy[list[Failure]]:
    actions = st.sampled_from([Action.CORDON_AND_RESUBMIT, Action.RESUBMIT])
    one = st.builds(Failure, st.integers(0, 180), st.just(tenant), actions, st.booleans())
    return st.lists(one, max_size=count)


def decided(policy: Policy, failures: Sequence[Failure], fleet: int) -> dict[Failure, list[tuple[str, str, bool]]]:
    """(state, reason, whether a breaker tripped) of each. A plan that is sent ends at once, its nodes taken out.

    A cordon names a node of the tenant's own; a job prints any node, here one that the others suspect too.
    """
    history, outcomes = ClusterHistory(fleet={"east": fleet}), defaultdict[Failure, list[tuple[str, str, bool]]](list)
    for number, failure in enumerate(sorted(failures, key=lambda failure: failure.minute)):
        now, cordons = NOW + 60.0 * failure.minute, failure.action is Action.CORDON_AND_RESUBMIT
        nodes = (f"{failure.tenant}-{number}",) if cordons else ()
        made = replace(
            plan(1, action=failure.action, created=now, expires=now + 3600, tenant=failure.tenant, nodes=nodes),
            id=f"p{number}",
            key=f"k{number}",
            job=f"{failure.tenant}-{number}",
            family="llm" if failure.again else f"llm-{number}",
            fingerprint="f" if failure.again else f"f-{number}",
            progress=("step", 100.0 + number),
            suspects=nodes or ("n1",),
            allocation=nodes,
            proofs=node_log(*nodes),
        )
        ruling = guardrails.apply_guardrails(policy, made, history, now)
        settled = ruling.plan
        assert settled is not None
        outcomes[failure].append((settled.state.value, settled.reason, bool(ruling.trips)))
        if settled.state is S.SENT:
            settled = replace(settled, state=S.REACHED, drained=settled.nodes)
        marks = {name: NodeEvent("east", name, NodeEventKind.CORDONED, NodeActor.DIAGNOSER, now) for name in nodes}
        history = replace(
            history,
            past=(*history.past, settled),
            marks={**history.marks, **(marks if settled.drained else {})},
            open=history.open | {state.scope for state in ruling.trips},
        )
    return outcomes


@given(failures_of("eve", 60), st.sampled_from([0, 1, 2, 10, 300, 1000, 5000]))
def test_one_tenant_alone_never_trips_the_breaker(failures: list[Failure], fleet: int) -> None:
    """However many of its jobs fail, as whatever, and however large the cluster is."""
    outcomes = decided(shipped_policy(), failures, fleet)
    assert not any(tripped for found in outcomes.values() for _, _, tripped in found)


@given(failures_of("eve", 60), failures_of("ida", 12))
def test_a_tenant_beyond_its_cap_changes_nothing_for_the_others(eve: list[Failure], ida: list[Failure]) -> None:
    """Ida's plans come out as if Eve's jobs, which have the names and failures of Ida's, had never run."""
    both, alone = decided(shipped_policy(), [*eve, *ida], 2000), decided(shipped_policy(), ida, 2000)
    assert {failure: both[failure] for failure in ida} == alone


def test_25_hostile_jobs_spend_what_is_their_tenants(policy: Policy) -> None:
    """At once, each with a node of its own and a name of its own: 10 launches go, no breaker trips, the rest waits."""
    eve = [Failure(minute, "eve", Action.CORDON_AND_RESUBMIT, False) for minute in range(25)]
    stood = Counter(reason for found in decided(policy, eve, 1000).values() for _, reason, _ in found)
    assert stood == {R.ACT: 10, R.TENANT_CAP: 15}
    small = Counter(reason for found in decided(policy, eve, 10).values() for _, reason, _ in found)
    assert small == {R.ACT: 1, R.TENANT_CAP: 24}


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


@pytest.mark.parametrize(
    ("out", "elsewhere", "trips"),
    [
        pytest.param(17, 0, False, id="one switch"),
        pytest.param(3, 1, False, id="one switch and a node elsewhere"),
        pytest.param(3, 2, True, id="one switch and two nodes elsewhere"),
        pytest.param(20, 0, True, id="more than any place may lose"),
    ],
)
def test_the_breaker_counts_a_place_once(out: int, elsewhere: int, trips: bool) -> None:
    """Of 100 nodes two may go an hour, the nodes of one switch as one of them. A tenant's share counts each node."""
    taken = (*(f"s{n}" for n in range(out)), *(f"e{n}" for n in range(elsewhere)))
    past = tuple(replace(done(n, 60, drained=(node,)), job=f"j{n}") for n, node in enumerate(taken))
    under = dict.fromkeys(("n1", *(f"s{n}" for n in range(20))), ("switch:leaf-07",))
    others = {f"e{n}": (f"switch:leaf-{n}",) for n in range(79)}
    situation = ClusterHistory(past=past, fleet={"east": 100}, places=under | others)
    assert (breaker.decide_trip(LIMITS, plan(), ("n1",), situation, NOW) is not None) is trips
    assert f"{len(taken) + 1} nodes would" in breaker.over_tenant_share(LIMITS, plan(), ("n1",), situation, NOW)


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
    """Only one plan of a failure can be approved. One that is planned again is another one: what became of the first
    stays in its history."""
    first = replace(plan(mode=Mode.APPROVE), key="first")
    later = replace(plan(mode=Mode.APPROVE, action=Action.RESUBMIT), id="later", key="later")
    ruling = guardrails.apply_guardrails(policy, later, ClusterHistory(past=(first,), fleet={"east": 1000}), NOW)
    assert ruling.plan is not None and (ruling.plan.id, ruling.plan.state) == ("later", S.WAITING)
    assert [(one.id, one.state) for one in ruling.others] == [(first.id, S.SUPERSEDED)]
    again = guardrails.apply_guardrails(
        policy, replace(first, id="x"), ClusterHistory(past=(ruling.others[0], ruling.plan)), NOW
    )
    assert again.plan is not None and (again.plan.id, again.plan.state) == ("x", S.WAITING)
    assert again.plan.key == "first-2"


@pytest.mark.parametrize("state", [S.WAITING, S.REFUSED, S.EXPIRED, S.HELD])
def test_the_same_plan_again_is_the_one_that_stands(policy: Policy, state: PlanState) -> None:
    """A person's no is not asked again, and a hold is not lifted by a second diagnosis."""
    first = replace(plan(mode=Mode.APPROVE), state=state)
    assert settle(policy, replace(plan(mode=Mode.APPROVE), id="later"), first) == first
