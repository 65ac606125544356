"""The life of a plan under any order of events."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from diagnoser.model import Mode, Plan, PlanState, Step
from diagnoser.model.errors import Conflict
from diagnoser.recovery import plan_states
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.recovery.policy import in_mode
from tests.contract.records import plan

LIFE, LEASE = 3600.0, 60.0
OVER = {PlanState.REACHED, PlanState.NOT_REACHED, PlanState.REFUSED}


def waiting() -> Plan:
    return replace(in_mode(plan(), Mode.APPROVE), created=0.0, expires=LIFE)


def reported(*steps: Step) -> PlanReport:
    return PlanReport("", PlanState.SENT, steps)


def step(plan_: Plan, what: str, who: str, now: float) -> Plan:
    """One event; what is not allowed changes nothing."""
    with suppress(Conflict):
        if what == "approve":
            return plan_states.approve(plan_, by=who, comment="", now=now, life=LIFE)
        if what == "refuse":
            return plan_states.refuse(plan_, by=who, comment="", now=now)
        if what == "claim":
            return plan_states.claim(plan_, executor=who, token=f"{who}-{now}", until=now + LEASE, now=now)
        if what == "expire":
            return plan_states.expire(plan_, now) if plan_states.expired(plan_, now) else plan_
        lease = plan_states.check_token(
            plan_, plan_.lease.token if plan_.lease and plan_.lease.executor == who else "stolen"
        )
        if what == "progress":
            return plan_states.progress(plan_, reported(Step(what, 0, time=now)), now + LEASE)
        state = PlanState(what)
        assert lease.executor == who
        return plan_states.end(plan_, PlanReport("", state), now)
    return plan_


EVENTS = st.tuples(
    st.sampled_from(["approve", "refuse", "claim", "progress", "reached", "not_reached", "expire"]),
    st.sampled_from(["x", "y"]),
    st.floats(0.0, 400.0),
)


@given(st.lists(EVENTS, max_size=40))
def test_no_order_of_events_breaks_a_plan(events: list[tuple[str, str, float]]) -> None:
    """Nobody takes over a live lease, what is over stays over, nothing acts without approval, and every change of
    state is in the history."""
    now, one = 0.0, waiting()
    for what, who, passed in events:
        now += passed
        after = step(one, what, who, now)
        if one.state in OVER:
            assert after == one
        if one.lease and one.lease.until > now and after.lease:
            assert after.lease.executor == one.lease.executor
        if after.state is not one.state:
            assert after.history[-1].state is after.state and len(after.history) == len(one.history) + 1
        if after.state in (PlanState.SENT, PlanState.REACHED):
            assert any(change.why == "approved" for change in after.history)
        one = after


STEPS = st.lists(st.integers(0, 3), max_size=12)


@given(STEPS, st.integers(0, 12))
def test_a_report_sent_again_adds_nothing(numbers: list[int], cut: int) -> None:
    """However the steps are cut into reports, repeated or told all over again."""
    steps = [Step(f"command {number}", 0, time=float(place)) for place, number in enumerate(numbers)]
    held = plan_states.claim(
        in_mode(replace(plan(), expires=LIFE), Mode.ACT), executor="x", token="t", until=60.0, now=0.0
    )
    one = held
    for part in (steps[:cut], steps[:cut], steps[cut:], steps[cut:], steps):
        one = plan_states.progress(one, reported(*part), 60.0)
    assert list(one.steps) == steps


def test_a_late_report_of_who_holds_the_plan_counts() -> None:
    """The work was done, though the plan had expired meanwhile."""
    held = plan_states.claim(
        in_mode(replace(plan(), expires=100.0), Mode.ACT), executor="x", token="t", until=60.0, now=0.0
    )
    gone = plan_states.expire(held, 101.0)
    assert gone.state is PlanState.EXPIRED
    done = plan_states.end(gone, PlanReport("t", PlanState.REACHED, requeued="7"), 110.0)
    assert (done.state, done.requeued) == (PlanState.REACHED, "7")
