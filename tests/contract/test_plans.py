"""Contract of plans, nodes and breakers: decided under a lock, claimed by one, nothing lost when a rule says no."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import (
    AttemptKey,
    BreakerState,
    ClusterHistory,
    Job,
    Mode,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    Plan,
    PlanLease,
    PlanState,
    TransitionResult,
)
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.plans import PlanTransition
from diagnoser.model.queries import PlanFilter
from diagnoser.recovery import plan_states
from diagnoser.recovery.policy import in_mode
from tests.contract.records import KEY, append, claimed, outbox_message, plan, record, the_claim
from tests.proofs import take

NOW = 1000.0


def acting(job: str = KEY.job, **fields: object) -> Plan:
    """A plan that an executor may claim."""
    made = in_mode(plan(AttemptKey(job), id=f"plan-{job}"), Mode.ACT)
    return replace(made, key=f"key-{job}", created=NOW, expires=NOW + 3600, cluster="east", **fields)  # type: ignore[arg-type]


async def put(store: SqlStore, *made: Plan, rule: PlanTransition | None = None) -> None:
    """Store plans the way a worker does."""
    keys = [AttemptKey(one.job, one.attempt) for one in made]
    await store.logs.append([append(key, fatal=True) for key in keys])
    claims = {claim.attempt.key: claim for claim in await claimed(store, limit=1000)}
    for key, one in zip(keys, made, strict=True):
        await store.work.save_diagnosis(claims[key], record(f"d-{one.id}", claims[key], created=NOW), one, [], rule)


def kept(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
    return TransitionResult(given)


async def test_a_plan_comes_back_as_it_was_given(store: SqlStore) -> None:
    """Every field survives, and the diagnosis shows the same plan."""
    await put(store, acting(family="f", fingerprint="p", suspects=("n1",), progress=("step", 7.0)))
    expected = acting(family="f", fingerprint="p", suspects=("n1",), progress=("step", 7.0))
    assert await store.plans.find(expected.id) == expected
    found = await store.diagnoses.find(f"d-{expected.id}")
    assert found is not None and found.plan == expected
    assert await store.plans.page(PlanFilter(state="sent", job=KEY.job), "", 10) == [expected]
    assert await store.plans.page(PlanFilter(state="waiting"), "", 10) == []


async def test_executors_that_claim_at_once_share_the_plans(store: SqlStore, second: SqlStore) -> None:
    """Of many claims on two replicas no two hold the same plan, and none is left over."""
    await put(store, *(acting(f"job-{number:02}") for number in range(12)))
    asks = (take(one, f"x{n}", "east", NOW, 60.0) for n, one in enumerate([store, second] * 10))
    held = [one for one in await asyncio.gather(*asks) if one]
    more = [one for _ in range(12) if (one := await take(store, "late", "east", NOW, 60.0))]
    assert sorted(one.id for one in held + more) == [f"plan-job-{number:02}" for number in range(12)]
    assert len({one.lease.token for one in held + more if one.lease}) == 12


async def test_a_plan_is_free_again_when_its_lease_ends(store: SqlStore) -> None:
    """Not earlier; the oldest goes first; a plan in its cool-down waits."""
    await put(store, acting("old"), acting("cooling", not_before=NOW + 500))
    first = await take(store, "x", "east", NOW, 60.0)
    assert first is not None and first.job == "old"
    assert await take(store, "y", "east", NOW + 59.0, 60.0) is None
    again = await take(store, "y", "east", NOW + 60.0, 600.0)
    assert again is not None and again.job == "old" and again.lease != first.lease
    cooled = await take(store, "y", "east", NOW + 500.0, 60.0)
    assert cooled is not None and cooled.job == "cooling"


async def test_a_change_that_says_no_changes_nothing(store: SqlStore) -> None:
    """What the rule raises reaches the caller, and the plan is as it was."""
    await put(store, acting())

    def no(given: Plan) -> TransitionResult:
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.plans.change(acting().id, no)
    assert await store.plans.find(acting().id) == acting()
    with pytest.raises(NotFound):
        await store.plans.decide("none", NOW, kept)


async def test_changes_at_once_are_decided_one_after_the_other(store: SqlStore, second: SqlStore) -> None:
    """Of many who approve at once exactly one does."""
    waiting = in_mode(acting(), Mode.APPROVE)
    await put(store, waiting)

    def approve(given: Plan) -> TransitionResult:
        return TransitionResult(
            plan_states.approve(given, by="maria", comment="", now=NOW, life=60.0), messages=(outbox_message("told"),)
        )

    tries = await asyncio.gather(
        *(one.plans.change(waiting.id, approve) for one in (store, second) * 4), return_exceptions=True
    )
    assert sum(isinstance(one, TransitionResult) for one in tries) == 1
    assert sum(isinstance(one, Conflict) for one in tries) == 7
    assert [one.message.key for one in await store.outbox.messages()] == ["told"]


async def test_decisions_of_a_cluster_see_each_other(store: SqlStore, second: SqlStore) -> None:
    """Two diagnoses that are saved at once on two replicas: the later one's rails know the earlier plan."""
    keys = [AttemptKey(f"job-{number}") for number in range(6)]
    await store.logs.append([append(key, fatal=True) for key in keys])
    claims = await claimed(store)
    seen: list[int] = []

    def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
        seen.append(len(situation.past))
        return TransitionResult(given)

    async def save(number: int) -> None:
        made, claim = acting(claims[number].attempt.key.job), claims[number]
        await (store, second)[number % 2].work.save_diagnosis(
            claim, record(f"d{number}", claim, created=NOW), made, [], rule
        )

    await asyncio.gather(*map(save, range(6)))
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]


async def test_a_situation_holds_what_the_rails_look_at(store: SqlStore) -> None:
    """Plans of the cluster, node marks, the fleet by partition, and tripped breakers; other clusters stay out."""
    await store.jobs.register(Job("a", cluster="east", nodes=("n1", "n2"), rank_nodes={0: "n3"}, created=NOW))
    await store.jobs.register(Job("b", cluster="east", nodes=("n3", "n4"), labels={"partition": "gpu"}, created=NOW))
    await store.jobs.register(Job("c", cluster="west", nodes=("w1",), created=NOW))
    await store.nodes.add_event(NodeEvent("east", "n1", NodeEventKind.DOWN, NodeActor.DIAGNOSER, NOW))
    await put(store, acting("x"), replace(acting("w"), cluster="west"))
    trip = BreakerState("east:gpu", True, NOW, "too many")
    await store.plans.change("plan-x", lambda given: TransitionResult(given, trips=(trip,)))
    seen: list[ClusterHistory] = []

    def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
        seen.append(situation)
        return TransitionResult(given)

    await put(store, acting("y"), rule=rule)
    (found,) = seen
    assert [one.id for one in found.past] == ["plan-x"]
    assert (list(found.marks), found.open) == (["n1"], frozenset({"east:gpu"}))
    assert found.fleet == {"east": 4, "east:gpu": 2}


async def history_of(store: SqlStore, new: Plan, now: float) -> list[str]:
    """Ids of the earlier plans that a decision about this one sees, at that time."""
    seen: list[str] = []

    def rule(given: Plan | None, situation: ClusterHistory) -> TransitionResult:
        seen.extend(past.id for past in situation.past)
        return TransitionResult(given)

    await store.logs.append([append(AttemptKey(new.job), fatal=True)])
    (claim,) = [one for one in await claimed(store) if one.attempt.key.job == new.job]
    await store.work.save_diagnosis(claim, record(f"d-{new.id}", claim, created=now), new, [], rule)
    return seen


async def test_a_history_holds_a_week_of_suspicions_of_the_same_node(store: SqlStore) -> None:
    """Also of other failures; the first suspect counts, in the same cluster."""
    day = 86_400.0
    await put(
        store,
        acting("long-ago", fingerprint="f1", suspects=("n1",)),
        replace(acting("same", fingerprint="f2", suspects=("n1", "n2")), created=NOW + 2 * day),
        replace(acting("second", fingerprint="f3", suspects=("n2", "n1")), created=NOW + 2 * day),
        replace(acting("west", fingerprint="f4", suspects=("n1",)), created=NOW + 2 * day, cluster="west"),
        replace(acting("nobody", fingerprint="f5"), created=NOW + 2 * day),
    )
    now = NOW + 7.5 * day
    assert await history_of(store, acting("new", fingerprint="f", suspects=("n1",)), now) == ["plan-same"]
    assert await history_of(store, acting("none", fingerprint="f"), now) == []


async def test_a_flood_of_advice_hides_nothing_that_acted(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is more than a decision can look at, what was sent and what was claimed stay in sight, in order."""
    monkeypatch.setattr("diagnoser.adapters.sql.plans.PAST_LIMIT", 3)
    lease = PlanLease("x", "t", NOW)
    await put(
        store,
        acting("sent"),
        replace(acting("expired", drained=("n1",)), state=PlanState.EXPIRED, lease=lease, created=NOW + 1),
        *(
            replace(acting(f"advice-{number}"), state=PlanState.ADVISED, created=NOW + 2 + number)
            for number in range(6)
        ),
    )
    assert await history_of(store, acting("new"), NOW + 60) == ["plan-sent", "plan-expired", "plan-advice-5"]


async def test_a_save_that_fails_leaves_no_plan(store: SqlStore) -> None:
    """The ruling is part of the save's transaction."""
    await store.logs.append([append(fatal=True)])
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record("01", claim), acting(), [], kept)
    with pytest.raises(Conflict):
        await store.work.save_diagnosis(
            claim, record("02", claim), replace(acting(), id="other", key="other"), [], kept
        )
    assert await store.plans.find("other") is None


async def test_only_plans_that_nobody_holds_expire(store: SqlStore) -> None:
    """An executor at work may end its plan late; advice never expires."""
    held, free, advice = acting("held"), acting("free"), in_mode(acting("advice"), Mode.OBSERVE)
    await put(store, held, free, advice)
    assert (await take(store, "x", "east", NOW, 9000.0)) is not None
    assert len(await store.plans.expired(NOW + 3600, 10)) == 1
    assert len(await store.plans.expired(NOW + 9000, 10)) == 2
    assert await store.plans.expired(NOW + 3599, 10) == []


async def test_node_events_keep_their_order(store: SqlStore) -> None:
    """The newest event is the node's state, whatever comes in late; an equal event is one."""
    new = NodeEvent("east", "n1", NodeEventKind.CORDONED, NodeActor.PERSON, NOW, "fan")
    old = NodeEvent("east", "n1", NodeEventKind.DOWN, NodeActor.DIAGNOSER, NOW - 60)
    for mark in (new, old, new):
        await store.nodes.add_event(mark)
    (found,) = await store.nodes.marks("east")
    assert (found.kind, found.feedback) == (NodeEventKind.CORDONED, "node_is_bad")
    assert [event.kind for event in await store.nodes.history("east", "n1", 5)] == [
        NodeEventKind.CORDONED,
        NodeEventKind.DOWN,
    ]
    assert len(await store.nodes.history("east", "n1", 1)) == 1
    assert await store.nodes.history("west", "n1", 5) == []
    assert await store.nodes.marks("west") == []


async def test_a_breaker_is_reset_with_a_comment(store: SqlStore) -> None:
    """Only one that exists."""
    await put(store, acting())
    trip = BreakerState("east", True, NOW, "too many")
    await store.plans.change(acting().id, lambda given: TransitionResult(given, trips=(trip,)))
    closed = BreakerState("east", False, NOW + 60, "two bad GPUs", "maria")
    assert await store.nodes.reset_breaker(closed) == closed
    assert await store.nodes.breakers() == [closed]
    with pytest.raises(NotFound):
        await store.nodes.reset_breaker(replace(closed, scope="none"))


async def test_effects_are_paged_and_tried_again(store: SqlStore) -> None:
    """Only what was given up can be tried again, and it is due at once."""
    await put(store, acting())
    made = tuple(outbox_message(key, created=NOW, expires=NOW + 10) for key in "abc")
    await store.plans.change(acting().id, lambda given: TransitionResult(given, messages=made))
    for due, state in zip(await store.outbox.claim(NOW, 60.0, 3), ("dead", "dead", "sent"), strict=True):
        await store.outbox.record_delivery(due, state, error="HTTP 410" if state == "dead" else "")
    assert [one.message.key for one in await store.outbox.page("dead", "", 1)] == ["a"]
    assert [one.message.key for one in await store.outbox.page("dead", "a", 9)] == ["b"]
    again = await store.outbox.retry("a", NOW + 20, NOW + 3600)
    assert (again.state, again.message.expires, again.error) == ("pending", NOW + 3600, "")
    assert [one.message.key for one in await store.outbox.claim(NOW + 20, 60.0, 9)] == ["a"]
    with pytest.raises(Conflict):
        await store.outbox.retry("c", NOW, NOW)
    with pytest.raises(NotFound):
        await store.outbox.retry("z", NOW, NOW)
