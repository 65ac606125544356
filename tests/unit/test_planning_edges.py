"""What leaves with a plan, word for word, and what a person reads where a check proved nothing."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from diagnoser.model import (
    AttemptKey,
    ClusterHistory,
    Mode,
    NodeActor,
    NodeCheck,
    NodeEvent,
    NodeEventKind,
    PairResult,
    Plan,
    PlanLease,
    PlanReason,
    PlanState,
    ProofKind,
    Rollback,
)
from diagnoser.model.alerts import decode
from diagnoser.model.errors import Conflict
from diagnoser.model.evaluations import Score, ScoreDrop
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.planning.planner import _recovery_message, alert_key, verdict_key
from diagnoser.planning.transitions import CheckRequest, NodeAnswer
from diagnoser.recovery import node_check
from diagnoser.recovery.node_query import Answer
from diagnoser.recovery.plan_states import PlanReport
from tests.contract.records import plan
from tests.serving import ECC, UNSURE, plan_commands

NOW, LEASE = 1_000_000.0, PlanLease("slurm-1", "t", 2_000_000.0)
NODES = ("n1", "n2", "n3", "n4")


def made(**fields: object) -> Plan:
    values = {
        "mode": Mode.ACT,
        "state": PlanState.SENT,
        "action": Action.CHECK_AND_RESUBMIT,
        "nodes": (),
        "cluster": "east",
        "tenant": "red",
        "allocation": NODES,
        "lease": LEASE,
        "created": NOW,
        "expires": NOW + 3_600.0,
    }
    return replace(plan(), **(values | fields))  # type: ignore[arg-type]


def record(diagnosis: Any) -> DiagnosisRecord:
    return DiagnosisRecord("d-1", AttemptKey("j", 2), 3, NOW, True, diagnosis)


def test_the_webhook_s_copy_of_a_plan() -> None:
    """Every field, with the root line redacted: receivers act on it."""
    back = Rollback(checkpoint="/ckpt/4000", step=4_000)
    sent = made(action=Action.CORDON_AND_RESUBMIT, nodes=("n1",), reason="may_act", rollback=back)
    message = _recovery_message(sent, record(ECC), lambda text: f"<{text[:7]}>")
    assert ECC.root_cause is not None
    assert (message.key, message.target, message.created, message.expires) == (sent.key, "webhook", NOW, NOW + 3_600.0)
    assert orjson.loads(message.body) == {
        "type": "recovery.plan",
        "timestamp": datetime.fromtimestamp(NOW, UTC).isoformat(),
        "data": {
            "plan": sent.id,
            "key": sent.key,
            "job": sent.job,
            "attempt": sent.attempt,
            "cluster": "east",
            "action": "cordon_and_resubmit",
            "nodes": ["n1"],
            "rollback": orjson.loads(orjson.dumps(back)),
            "reason": "may_act",
            "expires": datetime.fromtimestamp(NOW + 3_600.0, UTC).isoformat(),
            "diagnosis": {
                "id": "d-1",
                "outcome": ECC.outcome,
                "category": ECC.category,
                "type": ECC.type,
                "confidence": ECC.confidence,
                "decided_by": ECC.decided_by,
                "root_line": f"<{ECC.root_cause.text[:7]}>",
                "rank": 12,
                "node": "hgx-04",
            },
        },
    }


def test_the_webhook_s_copy_of_a_plan_without_a_root() -> None:
    """Line, rank and node are null then."""
    told = orjson.loads(_recovery_message(made(), record(replace(ECC, root_cause=None)), str).body)["data"]["diagnosis"]
    assert (told["root_line"], told["rank"], told["node"]) == (None, None, None)


@pytest.mark.parametrize(
    ("webhook", "fields", "is_told"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"state": PlanState.WAITING}, False),
        (True, {"state": PlanState.ADVISED, "action": Action.NOTIFY_USER}, True),
        (True, {"state": PlanState.ADVISED, "action": Action.NOTIFY_USER, "mode": Mode.OBSERVE}, False),
    ],
)
def test_which_plans_the_webhook_hears_of(webhook: bool, fields: dict[str, object], is_told: bool) -> None:
    """Those that may act now, and in mode act also those that only a person can carry out."""
    planner = plan_commands(webhook=webhook).planner
    assert bool(planner.announce(made(**fields), record(ECC))) is is_told
    assert planner.announce(made(**fields), None) == ()


def test_a_verdict_that_says_the_same_is_told_once() -> None:
    """The key is the same for the same outcome, type and action; not for one that needs a person's eyes, nor for
    a hang further on."""
    first, again = record(ECC), replace(record(ECC), id="d-2")
    hung = replace(ECC, outcome=Outcome.HUNG)
    others = [
        record(hung),
        record(replace(hung, step=7)),
        record(UNSURE),
        record(replace(ECC, needs_review="two types are close")),
        replace(first, attempt=AttemptKey("j", 3)),
    ]
    assert verdict_key(first) == verdict_key(again) and len(verdict_key(first)) == 24
    assert len({verdict_key(first), *map(verdict_key, others)}) == 6
    assert alert_key("k", "slack") == "alert-k-slack"


def test_an_approval_vouches_for_what_nothing_proves() -> None:
    """With whose word it is."""
    waits = made(state=PlanState.WAITING, reason=PlanReason.UNPROVEN.value, nodes=("n1",), lease=None)
    approved = plan_commands().approve(waits, None, "ida", "saw it smoke", NOW).plan
    assert approved is not None
    assert [(proof.node, proof.kind, proof.text, proof.by, proof.time) for proof in approved.proofs] == [
        ("n1", ProofKind.PERSON, "approved: saw it smoke", "ida", NOW)
    ]


FIRST_ROUND = ((PairResult(("n1", "n4"), False),),)
"""Of a check whose second round runs: n4 passed elsewhere meanwhile."""


def check_of(suspects: tuple[str, ...] = ()) -> NodeCheck:
    return node_check.begin(NODES, suspects)


def judged(before: Plan, results: list[PairResult], history: ClusterHistory, vouched: bool = True) -> Any:
    """What the last results of a check make of the plan."""
    assert before.check is not None
    return plan_commands().check_results(before, history, "t", before.check.round, results, NOW, vouched=vouched)


def all_pass(check: NodeCheck) -> list[PairResult]:
    return [PairResult(group, True, 1.0) for group in check.groups]


def suspected(job: str, tenant: str, node: str = "n1") -> Plan:
    return replace(made(job=job, tenant=tenant, suspects=(node,), lease=None, created=NOW - 60.0), id=job)


@pytest.mark.parametrize(
    ("past", "reason", "why"),
    [
        ((), PlanReason.UNPROVEN, "nothing proves that n1 is at fault: only what the job printed says so"),
        (
            (suspected("a", "blue"),),
            PlanReason.SUSPECTED_AGAIN,
            "urgent: nothing proves that n1 is at fault: only what the job printed says so, "
            "but a job of another tenant suspected it, too",
        ),
        (
            (suspected("a", "blue"), suspected("b", "green"), suspected("b", "green")),
            PlanReason.SUSPECTED_AGAIN,
            "urgent: nothing proves that n1 is at fault: only what the job printed says so, "
            "but 2 jobs of other tenants suspected it, too",
        ),
        (
            (suspected("a", "red"),),
            PlanReason.UNPROVEN,
            "nothing proves that n1 is at fault: only what the job printed says so",
        ),
    ],
)
def test_a_suspect_that_nothing_proves_waits_for_a_person(past: tuple[Plan, ...], reason: PlanReason, why: str) -> None:
    """People are told, and urgently where the job of another tenant suspected the same node; no job is named."""
    check = check_of(("n1",))
    before = made(check=check, suspects=("n1",), unproven_suspects=("n1",))
    result = judged(before, all_pass(check), ClusterHistory(past=past))
    after = result.plan
    assert (after.state, after.reason, after.nodes, after.lease) == (PlanState.WAITING, reason, ("n1",), None)
    assert (after.history[-1].why, after.history[-1].by, after.history[-1].time) == (why, "diagnoser", NOW)
    assert result.messages, "nobody is told"


def test_a_suspect_that_a_person_handles_is_not_asked_about() -> None:
    """Whoever cordoned it decides about it; the job is free to run again."""
    check = check_of(("n1",))
    mark = NodeEvent("east", "n1", NodeEventKind.CORDONED, NodeActor.PERSON, NOW - 60.0)
    before = made(check=check, suspects=("n1",), unproven_suspects=("n1",))
    after = judged(before, all_pass(check), ClusterHistory(marks={"n1": mark})).plan
    assert (after.state, after.nodes) == (PlanState.SENT, ())


def test_a_faulty_node_that_a_person_handles_is_left_to_them() -> None:
    """The check may find it faulty: it is not the plan's, and history says whose it is."""
    check = replace(check_of(), round=2, groups=(("n1", "n3"),), healthy=("n3", "n4"), open=("n1",), rounds=FIRST_ROUND)
    mark = NodeEvent("east", "n1", NodeEventKind.CORDONED, NodeActor.PERSON, NOW - 60.0)
    failing = [PairResult(("n1", "n3"), False, 1.0)]
    free = judged(made(check=check), failing, ClusterHistory(fleet={"east": 1000})).plan
    theirs = judged(made(check=check), failing, ClusterHistory(marks={"n1": mark}, fleet={"east": 1000})).plan
    assert free.nodes == ("n1",) and [proof.kind for proof in free.proofs] == [ProofKind.CHECK]
    assert theirs.nodes == () and theirs.proofs == ()
    assert "left to the person who handles them: n1" in theirs.history[-1].why


def test_a_check_that_nobody_vouches_for_asks_a_person() -> None:
    """Its pairs ran in what the job brings along."""
    check = replace(check_of(), round=2, groups=(("n1", "n3"),), healthy=("n3", "n4"), open=("n1",), rounds=FIRST_ROUND)
    before = made(job="k8s:lab:job:ns:x", check=check)
    result = judged(before, [PairResult(("n1", "n3"), False, 1.0)], ClusterHistory(fleet={"east": 1000}), False)
    assert (result.plan.state, result.plan.reason, result.plan.nodes) == (PlanState.WAITING, "unproven", ("n1",))
    assert "its pairs failed in the job's own image" in result.plan.history[-1].why


@pytest.mark.parametrize(
    ("history", "reason", "why", "trips"),
    [
        (
            ClusterHistory(past=(made(job="o", tenant="blue", nodes=("x",)),), open=frozenset({"east"})),
            PlanReason.BREAKER,
            "the breaker of east is open",
            [],
        ),
        (
            ClusterHistory(past=(made(job="o", tenant="blue", nodes=("x",)),)),
            PlanReason.BREAKER,
            "2 nodes would be taken out within one hour; the limit is 1",
            ["east"],
        ),
        (
            ClusterHistory(past=(made(job="o", nodes=("x",)),), open=frozenset({"east"})),
            PlanReason.TENANT_CAP,
            "2 nodes would be taken out by tenant red within one hour; the limit is 1",
            [],
        ),
    ],
    ids=["open", "trips", "tenant"],
)
def test_a_verdict_beyond_the_breaker_waits(
    history: ClusterHistory, reason: PlanReason, why: str, trips: list[str]
) -> None:
    """An open breaker, which does not trip again, one that this verdict trips, or the tenant's share: a person
    approves, and is told why."""
    check = replace(check_of(), round=2, groups=(("n1", "n3"),), healthy=("n3", "n4"), open=("n1",), rounds=FIRST_ROUND)
    result = judged(made(check=check), [PairResult(("n1", "n3"), False, 1.0)], replace(history, fleet={"east": 10}))
    after = result.plan
    assert (after.state, after.reason, after.lease, after.nodes) == (PlanState.WAITING, reason, None, ("n1",))
    assert (after.history[-1].why, after.history[-1].by) == (why, "diagnoser")
    assert [trip.scope for trip in result.trips] == trips
    assert result.messages, "nobody is told"


@pytest.mark.parametrize(
    ("fields", "mark", "is_held"),
    [
        ({}, NodeEventKind.CORDONED, True),
        ({"state": PlanState.WAITING}, NodeEventKind.UNCORDONED, True),
        ({"lease": LEASE}, NodeEventKind.CORDONED, False),
        ({"lease": replace(LEASE, until=NOW)}, NodeEventKind.CORDONED, True),
        ({"nodes": ("n2",)}, NodeEventKind.CORDONED, False),
        ({"state": PlanState.REACHED}, NodeEventKind.CORDONED, False),
    ],
)
def test_a_person_at_a_node_holds_its_plans(fields: dict[str, object], mark: NodeEventKind, is_held: bool) -> None:
    """Those that name it and that no executor works on now."""
    values: dict[str, object] = {"nodes": ("n1",), "lease": None, **fields}
    before = made(**values)
    event = NodeEvent("east", "n1", mark, NodeActor.PERSON, NOW)
    result = plan_commands().hold_for_operator(before, event, NOW)
    assert result.plan is not None
    if is_held:
        assert (result.plan.state, result.plan.reason) == (PlanState.HELD, PlanReason.PERSON_HANDLES_NODE)
        assert result.plan.history[-1].why == f"n1 was {mark} by a person: it is left alone"
        assert result.messages
    else:
        assert result.plan == before and result.messages == ()


def test_a_check_begins_with_the_nodes_of_the_attempt() -> None:
    """Where nobody told which these are, those that the executor names; suspects only among them."""
    request = CheckRequest(("n2", "n1", "n3", "n4", "n1"), queries=False)
    begun = plan_commands().check_next(made(allocation=(), suspects=("n9", "n3")), ClusterHistory(), "t", request, NOW)
    assert begun.plan is not None and begun.plan.check is not None
    assert begun.plan.allocation == NODES and begun.plan.check.suspects == ("n3",)
    assert begun.plan.history[-1].why == "node check of 5 nodes begun"
    assert begun.plan.lease and begun.plan.lease.until == NOW + 60.0


def test_what_a_report_takes_out_is_an_event_of_each_node() -> None:
    """Once, however often it is reported, and by whom."""
    commands = plan_commands()
    first = commands.report(made(), PlanReport("t", PlanState.SENT, drained=("n1",)), NOW)
    assert first.plan is not None and first.messages == ()
    second = commands.report(first.plan, PlanReport("t", PlanState.REACHED, drained=("n1", "n2")), NOW + 1)
    told = [(event.cluster, event.node, event.kind, event.by, event.reason) for event in second.node_events]
    assert [event.node for event in first.node_events] == ["n1"]
    why = f"plan {first.plan.id} by slurm-1"
    assert told == [("east", "n2", NodeEventKind.CORDONED, NodeActor.DIAGNOSER, why)]
    assert second.messages, "nobody is told how it ended"
    assert second.plan is not None
    again = commands.report(second.plan, PlanReport("t", PlanState.REACHED), NOW + 2)
    assert again.messages == () and again.plan == second.plan


def test_an_approval_is_announced_with_its_diagnosis() -> None:
    """Whoever listens to the webhook may act now; without its diagnosis there is nothing to say."""
    waits = made(state=PlanState.WAITING, action=Action.RESUBMIT, lease=None)
    commands = plan_commands(webhook=True)
    (message,) = commands.approve(waits, record(ECC), "ida", "", NOW).messages
    assert orjson.loads(message.body)["data"]["plan"] == waits.id
    assert commands.approve(waits, None, "ida", "", NOW).messages == ()


def test_results_before_the_first_round_are_refused() -> None:
    """With what to do."""
    with pytest.raises(Conflict, match=r"^the node check of plan plan-1 has not begun: ask for its first round$"):
        plan_commands().check_results(made(check=None), ClusterHistory(), "t", 1, [], NOW)


@pytest.mark.parametrize(("ago", "is_asked"), [(86_399.0, False), (86_400.0, True)])
def test_a_suspect_that_a_person_gave_back_is_left_alone_for_a_day(ago: float, is_asked: bool) -> None:
    """Then it is asked about again."""
    check = check_of(("n1",))
    mark = NodeEvent("east", "n1", NodeEventKind.UNCORDONED, NodeActor.PERSON, NOW - ago)
    before = made(check=check, suspects=("n1",), unproven_suspects=("n1",))
    after = judged(before, all_pass(check), ClusterHistory(marks={"n1": mark})).plan
    assert (after.state is PlanState.WAITING) is is_asked


def test_an_answer_is_judged_by_the_check_s_own_question() -> None:
    """It becomes the proof, with the query that gave it; the pairs are not tested then."""
    types = (FailureType.ECC_ERROR,)
    request = CheckRequest(NODES, types=types, since=NOW - 60.0, queries=True)
    asked = plan_commands().check_next(made(suspects=("n1",)), ClusterHistory(), "t", request, NOW).plan
    assert asked is not None and asked.check is not None
    said = NodeAnswer("n1", "gpu_ecc", Answer(text="1, 00000000:0F:00.0, 3"))
    silent = [
        NodeAnswer(query.node, query.query, Answer(text="", exit_code=None))
        for query in asked.check.queries
        if query.query != "gpu_ecc"
    ]
    history = ClusterHistory(fleet={"east": 1000})
    after = plan_commands().check_results(asked, history, "t", 1, [], NOW, [said, *silent]).plan
    assert after is not None
    told = [(proof.node, proof.kind, proof.text, proof.source, proof.time) for proof in after.proofs]
    assert told == [("n1", ProofKind.QUERY, "1, 00000000:0F:00.0, 3", "gpu_ecc", NOW)]
    assert after.nodes == ("n1",)


@pytest.mark.parametrize(("base", "link"), [("", ""), ("https://d.example", "https://d.example/evaluations/run-1")])
def test_a_score_that_fell_is_told_once_for_each_metric(base: str, link: str) -> None:
    """The key names run, checkpoint, task and metric; the link leads to the run where the service knows its address."""
    planner = plan_commands(base_url=base).planner
    keys = set[str]()
    for run, task, metric in (
        ("run-1", "mmlu", "acc"),
        ("run-2", "mmlu", "acc"),
        ("run-1", "arc", "acc"),
        ("run-1", "mmlu", "f1"),
    ):
        score = Score(run, "/ckpt/4000", 4_000, 0.5)
        drop = ScoreDrop("weekly", task, metric, score, 0.6, 0.01)
        (message,) = planner.alert_score_drop(drop, NOW)
        keys.add(message.key)
        if run == "run-1":
            assert decode(message.body).link == link
        assert len(message.key) == len("alert-score-") + 32 + len("-slack")
    assert len(keys) == 4


def test_a_breaker_of_another_cluster_is_no_matter() -> None:
    """Only those of the plan's own cluster and partition hold it."""
    check = replace(check_of(), round=2, groups=(("n1", "n3"),), healthy=("n3", "n4"), open=("n1",), rounds=FIRST_ROUND)
    history = ClusterHistory(fleet={"east": 1000}, open=frozenset({"west"}))
    after = judged(made(check=check), [PairResult(("n1", "n3"), False, 1.0)], history).plan
    assert (after.state, after.nodes) == (PlanState.SENT, ("n1",))


def test_a_plan_that_goes_back_to_no_checkpoint_has_none_to_be_bad() -> None:
    """Whatever state it is in; one that is over stays as it is as well."""
    for before in (made(), made(state=PlanState.REACHED), made(state=PlanState.REACHED, rollback=Rollback("/ckpt/1"))):
        result = plan_commands().hold_bad_checkpoint(before, "a bit flipped", NOW)
        assert result.plan == before and result.messages == ()


@pytest.mark.parametrize(
    ("fields", "unused", "state", "is_told"),
    [
        ({"lease": None}, "", PlanState.HELD, True),
        ({"lease": None, "state": PlanState.WAITING}, "", PlanState.HELD, True),
        ({"lease": None, "state": PlanState.ADVISED}, "", PlanState.ADVISED, False),
        ({}, "", PlanState.SENT, True),
        ({}, "t", PlanState.HELD, True),
        ({"reason": PlanReason.BAD_CHECKPOINT.value}, "", PlanState.SENT, False),
    ],
)
def test_a_bad_checkpoint_withdraws_what_nobody_acts_on(
    fields: dict[str, object], unused: str, state: PlanState, is_told: bool
) -> None:
    """Where an executor has the plan it is only marked, once."""
    before = made(**{"action": Action.ROLLBACK_AND_RESUBMIT, "rollback": Rollback("/ckpt/1"), **fields})
    result = plan_commands().hold_bad_checkpoint(before, "a bit flipped", NOW, unused)
    assert result.plan is not None
    assert (result.plan.state, bool(result.messages)) == (state, is_told)
    if result.plan != before:
        assert result.plan.reason == PlanReason.BAD_CHECKPOINT
        assert result.plan.history[-1].why == "/ckpt/1 was reported bad: a bit flipped"
        assert (result.plan.lease is None) is (state is not PlanState.SENT)


def test_a_check_suspects_no_node_that_the_scheduler_did_not_give() -> None:
    """An executor names a further node, which the plan suspects as well: it is tested, and not asked as a suspect."""
    request = CheckRequest((*NODES, "elsewhere"), types=(FailureType.ECC_ERROR,), since=NOW - 60.0, queries=True)
    plan = made(suspects=("elsewhere", "n1"))
    assert "elsewhere" not in plan.allocation
    begun = plan_commands().check_next(plan, ClusterHistory(), "t", request, NOW).plan
    assert begun is not None and begun.check is not None
    assert begun.check.suspects == ("n1",)
    assert {query.node for query in begun.check.queries} == {"n1"}
