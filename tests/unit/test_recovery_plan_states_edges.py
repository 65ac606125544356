"""The edges of a plan's life: the last moment of each time limit, and what people read when they come too late."""

from dataclasses import replace

import pytest

from diagnoser.model import Mode, NodeProof, Plan, PlanLease, PlanReason, PlanState, ProofKind, Step
from diagnoser.model.errors import Conflict
from diagnoser.model.taxonomy import Action
from diagnoser.recovery import plan_states
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.recovery.policy import in_mode
from tests.contract.records import plan

CREATED, EXPIRES = 1_000.0, 4_600.0
S = PlanState
SENTENCES = {
    S.SENT: "it has been sent already",
    S.REACHED: "it has been carried out",
    S.NOT_REACHED: "it has been tried, and was not reached",
    S.REFUSED: "it has been refused",
    S.EXPIRED: "it has expired",
    S.SUPERSEDED: "a later diagnosis took its place",
    S.HELD: "a guardrail holds it",
    S.ADVISED: "it is advice only",
}


def waiting(**fields: object) -> Plan:
    made = replace(in_mode(plan(), Mode.APPROVE), created=CREATED, expires=EXPIRES, history=(), lease=None)
    return replace(made, **fields)  # type: ignore[arg-type]


def sent(**fields: object) -> Plan:
    return waiting(**({"state": S.SENT, "reason": PlanReason.ACT.value} | fields))


def held_by(executor: str = "slurm", token: str = "t", until: float = 2_000.0) -> PlanLease:
    return PlanLease(executor, token, until)


@pytest.mark.parametrize(("state", "sentence"), SENTENCES.items())
def test_who_comes_too_late_reads_what_became_of_the_plan(state: PlanState, sentence: str) -> None:
    """In one sentence for each state, whether the plan is to be approved, refused, or taken back."""
    late = waiting(state=state, lease=None)
    assert plan_states.why_not_decidable(late, CREATED) == sentence
    for decide in (plan_states.refuse, lambda plan, **more: plan_states.approve(plan, life=60.0, **more)):
        with pytest.raises(Conflict, match=f"^plan {late.id} waits for nobody: {sentence}$"):
            decide(late, by="ida", comment="", now=CREATED)


def test_a_plan_that_an_executor_holds_says_who() -> None:
    """A claim is told by the name of the executor, wherever the plan is asked for."""
    held = sent(lease=held_by("slurm-7"))
    assert plan_states.why_not_decidable(held, CREATED) == "slurm-7 holds it"
    with pytest.raises(Conflict, match=f"^plan {held.id} cannot be claimed: slurm-7 holds it$"):
        plan_states.claim(held, executor="other", token="u", until=3_000.0, now=CREATED)
    with pytest.raises(
        Conflict,
        match=rf"^this token does not hold plan {held.id} \(any more\): slurm-7 holds it; stop and change nothing$",
    ):
        plan_states.check_token(held, "u")


def test_a_waiting_plan_is_told_by_its_state() -> None:
    """Nobody can claim it or report about it."""
    with pytest.raises(Conflict, match=r"cannot be claimed: waiting$"):
        plan_states.claim(waiting(), executor="x", token="t", until=2_000.0, now=CREATED)
    with pytest.raises(Conflict, match=r"is over: waiting; stop and change nothing$"):
        plan_states.progress(waiting(lease=held_by()), PlanReport("", S.SENT), 2_000.0)


@pytest.mark.parametrize(("now", "objection"), [(EXPIRES - 1, ""), (EXPIRES, "its time is over")])
def test_a_decision_is_possible_until_the_plan_expires(now: float, objection: str) -> None:
    """In its last second, and no more with the end of it."""
    assert plan_states.why_not_decidable(waiting(), now) == objection
    if objection:
        with pytest.raises(Conflict, match=r"expired; diagnose or resubmit anew$"):
            plan_states.approve(waiting(), by="ida", comment="", now=now, life=60.0)
    else:
        assert plan_states.approve(waiting(), by="ida", comment="", now=now, life=60.0).state is S.SENT


def test_an_approval_gives_time_and_never_takes_any() -> None:
    """The plan may be claimed for the life that it is given, or as long as it could be anyway."""
    assert plan_states.approve(waiting(), by="ida", comment="", now=4_000.0, life=3_600.0).expires == 7_600.0
    assert plan_states.approve(waiting(), by="ida", comment="", now=1_001.0, life=60.0).expires == EXPIRES
    assert plan_states.approve(waiting(lease=held_by()), by="ida", comment="", now=1_001.0, life=60.0).lease is None


@pytest.mark.parametrize(("comment", "quoted"), [("", ""), ("not now", ": not now")])
def test_history_quotes_who_decided(comment: str, quoted: str) -> None:
    """An approval, a refusal, and the taking back of both; with the comment where there is one."""
    more = {"by": "ida", "comment": comment, "now": 1_001.0}
    approved = plan_states.approve(waiting(), life=60.0, **more)  # type: ignore[arg-type]
    refused = plan_states.refuse(waiting(), **more)  # type: ignore[arg-type]
    taken = [plan_states.revoke_decision(made, **more) for made in (approved, refused)]  # type: ignore[arg-type]
    changes = [made.history[-1] for made in (approved, refused, *taken)]
    assert [change.why for change in changes] == [
        f"approved{quoted}",
        f"refused{quoted}",
        f"approval taken back{quoted}",
        f"refusal taken back{quoted}",
    ]
    assert {change.by for change in changes} == {"ida"} and {change.time for change in changes} == {1_001.0}
    assert [(made.state, made.reason) for made in taken] == [(S.WAITING, PlanReason.TAKEN_BACK)] * 2


def test_what_a_person_vouched_for_is_taken_back_with_the_approval() -> None:
    """Other proofs stay."""
    own, vouched = NodeProof("n1", ProofKind.NODE_LOG, "x"), NodeProof("n1", ProofKind.PERSON, "y", by="ida")
    approved = sent(reason=PlanReason.APPROVED.value, proofs=(own, vouched))
    assert plan_states.revoke_decision(approved, by="ida", comment="", now=1_001.0).proofs == (own,)


@pytest.mark.parametrize(
    ("made", "objection"),
    [
        (sent(reason=PlanReason.APPROVED.value), ""),
        (sent(reason=PlanReason.APPROVED.value, expires=1_001.0), "its time is over"),
        (sent(reason=PlanReason.APPROVED.value, lease=held_by()), "slurm holds it"),
        (sent(), "no person decided about it"),
        (sent(lease=held_by()), "slurm holds it"),
        (waiting(state=S.REFUSED), ""),
        (waiting(state=S.REFUSED, expires=1_001.0), "its time is over"),
        (waiting(state=S.REACHED, expires=1_001.0), "it has been carried out"),
        (waiting(), "waiting"),
    ],
)
def test_what_can_be_taken_back(made: Plan, objection: str) -> None:
    """A person's own decision that nothing has come of, as long as the plan has time."""
    assert plan_states.why_not_revocable(made, 1_001.0) == objection
    if objection:
        with pytest.raises(Conflict, match=f"^plan {made.id} cannot be taken back: {objection}$"):
            plan_states.revoke_decision(made, by="ida", comment="", now=1_001.0)


@pytest.mark.parametrize(
    ("fields", "is_claimable"),
    [
        ({}, True),
        ({"not_before": 1_001.0}, True),
        ({"not_before": 1_001.1}, False),
        ({"expires": 1_001.0}, False),
        ({"expires": 1_001.1}, True),
        ({"lease": held_by(until=1_001.0)}, True),
        ({"lease": held_by(until=1_001.1)}, False),
        ({"action": Action.NOTIFY_USER}, False),
        ({"state": S.WAITING}, False),
    ],
)
def test_when_an_executor_may_claim(fields: dict[str, object], is_claimable: bool) -> None:
    """A plan that is sent, of an action that executors carry out, in its time, with no live lease of another."""
    assert plan_states.claimable(replace(sent(), **fields), 1_001.0) is is_claimable  # type: ignore[arg-type]


def test_a_claim_and_a_takeover_are_noted() -> None:
    """By whom, from whom, and until when the plan is held."""
    first = plan_states.claim(sent(), executor="a", token="t", until=1_060.0, now=1_001.0)
    second = plan_states.claim(first, executor="b", token="u", until=1_130.0, now=1_061.0)
    assert [(change.by, change.why) for change in second.history] == [
        ("a", "claimed"),
        ("b", "taken over from a, whose lease ran out"),
    ]
    assert second.lease == PlanLease("b", "u", 1_130.0) and second.state is S.SENT


@pytest.mark.parametrize(
    ("detail", "reason", "expected"),
    [
        ("it runs", None, (S.REACHED, PlanReason.REACHED, "it runs")),
        ("", None, (S.REACHED, PlanReason.REACHED, "reached")),
        ("", PlanReason.FOREIGN_NODE, (S.NOT_REACHED, PlanReason.FOREIGN_NODE, "foreign node")),
        ("", None, (S.NOT_REACHED, PlanReason.NOT_REACHED, "not reached")),
    ],
)
def test_how_a_plan_ended(detail: str, reason: PlanReason | None, expected: tuple[PlanState, PlanReason, str]) -> None:
    """With the executor's own reason where it gives one; the same report again changes nothing."""
    held = sent(lease=held_by("slurm-7"), requeued="", drained=("n1",))
    report = PlanReport("", expected[0], (Step("x", 0),), detail, ("n1", "n2"), "job-2", reason)
    ended = plan_states.end(held, report, 1_001.0)
    assert (ended.state, ended.reason, ended.history[-1].why) == expected
    assert (ended.history[-1].by, ended.drained, ended.requeued) == ("slurm-7", ("n1", "n2"), "job-2")
    assert plan_states.end(ended, report, 1_001.0) is ended
    other = S.REACHED if expected[0] is S.NOT_REACHED else S.NOT_REACHED
    with pytest.raises(Conflict, match=f"^plan {held.id} is over: {SENTENCES.get(expected[0])}$|slurm-7 holds it$"):
        plan_states.end(ended, replace(report, state=other), 1_001.0)


def test_an_expired_plan_can_still_be_reported_about() -> None:
    """Whoever worked on it knows what became of it."""
    late = waiting(state=S.EXPIRED, lease=held_by())
    ended = plan_states.end(late, PlanReport("", S.REACHED), 5_000.0)
    assert ended.state is S.REACHED


@pytest.mark.parametrize(
    ("made", "is_over"),
    [
        (waiting(), True),
        (waiting(expires=EXPIRES + 1), False),
        (sent(), True),
        (sent(action=Action.NOTIFY_USER), False),
        (sent(lease=held_by(until=EXPIRES)), True),
        (sent(lease=held_by(until=EXPIRES + 1)), False),
        (waiting(state=S.HELD), False),
        (waiting(state=S.ADVISED), False),
    ],
)
def test_what_expires(made: Plan, is_over: bool) -> None:
    """What waits for a person or for an executor, unless one is at work on it."""
    assert plan_states.expired(made, EXPIRES) is is_over


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (waiting(), "nobody approved it in time"),
        (sent(), "its time was over before anybody took it up"),
        (
            sent(lease=held_by("slurm-7"), steps=(Step("x", 0), Step("y", 0))),
            "its time was over after 2 steps of slurm-7",
        ),
    ],
)
def test_why_a_plan_expired(made: Plan, why: str) -> None:
    """People read whether nobody approved it, nobody took it up, or how far it came."""
    over = plan_states.expire(made, EXPIRES)
    assert (over.state, over.reason, over.history[-1].why) == (S.EXPIRED, PlanReason.EXPIRED, why)
    assert over.history[-1].by == plan_states.DIAGNOSER


def test_steps_that_come_again_count_once() -> None:
    """A report may repeat the last steps, or all of them; each is kept once, in order, and cut to a bound."""
    steps = [Step(f"s{number}", 0, time=float(number)) for number in range(5)]
    held = sent(lease=held_by())
    for reported in (steps[:3], steps[1:4], steps, [], steps[4:]):
        held = plan_states.progress(held, PlanReport("", S.SENT, tuple(reported)), 2_000.0)
    assert list(held.steps) == steps
    long = plan_states.progress(held, PlanReport("", S.SENT, (Step("long", 0, "x" * 5_000),)), 2_000.0)
    assert len(long.steps[-1].output) == plan_states.OUTPUT_LENGTH
    many = [Step(f"m{number}", 0) for number in range(plan_states.STEPS_LIMIT + 1)]
    full = plan_states.progress(held, PlanReport("", S.SENT, tuple(many)), 2_000.0)
    assert len(full.steps) == plan_states.STEPS_LIMIT and full.steps[:5] == tuple(steps)


def test_equal_steps_of_one_report_stay_two_when_it_comes_again() -> None:
    """An executor that gives no times tried one command twice."""
    tried = [Step("drain gpu-1", 1), Step("drain gpu-1", 1)]
    held = sent(lease=held_by())
    for _ in range(2):
        held = plan_states.progress(held, PlanReport("", S.SENT, tuple(tried)), 2_000.0)
    assert list(held.steps) == tried


def test_progress_keeps_what_was_reported_before() -> None:
    """Nodes add up, each once; a launch that was reported stays known; the lease is renewed."""
    held = sent(lease=held_by(), drained=(), requeued="")
    once = plan_states.progress(held, PlanReport("", S.SENT, drained=("n2", "n1"), requeued="job-2"), 2_100.0)
    twice = plan_states.progress(once, PlanReport("", S.SENT, drained=("n1", "n3")), 2_200.0)
    assert (twice.drained, twice.requeued) == (("n2", "n1", "n3"), "job-2")
    assert twice.lease and twice.lease.until == 2_200.0
