"""The model stage against a real HTTP server: it helps where it can prove it, and never harms."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from diagnoser.adapters.files import bundled, text
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.failure_agent.acceptance import CONFIDENCE_UNJUDGED
from diagnoser.failure_agent.agent import LLMTrigger, reasons_to_ask
from diagnoser.llm.guard import LLMCircuitBreaker
from diagnoser.llm.view import LogView
from diagnoser.model import (
    Advice,
    AskReason,
    Attempt,
    AttemptKey,
    DecisionBasis,
    Diagnosis,
    Facts,
    Job,
    Mode,
    ModelEffect,
    ModelUse,
    PlanState,
    RootCause,
    RulesVerdict,
    Suspect,
)
from diagnoser.model.errors import ModelFailure
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.model.work import Claim
from diagnoser.notifications.routing import AlertRouting
from diagnoser.planning.planner import DecisionPlanner
from diagnoser.recovery import policy
from diagnoser.recovery.plan_states import RUNNABLE
from diagnoser.recovery.policy import PolicyCase, case_of
from tests.integration.consulting import UNDECIDED, Site, line, say, subject
from tests.integration.model_server import NEVER, ModelServer, Reply, in_turn, model_server, refusal

DECIDED = Diagnosis(
    Outcome.FAILED,
    Category.SCRIPT,
    FailureType.KEY_ERROR,
    0.95,
    "rule:x",
    root_cause=RootCause(12, line().text),
    mitigation="Mend the key.",
)


async def consult(
    *replies: Reply, context: int | None = None, **changes: Any
) -> tuple[Diagnosis, list[dict[str, Any]]]:
    with model_server(in_turn(*replies), context) as server:
        async with Site(server, changes) as site:
            return await site.consult(), server.asked


def used(diagnosis: Diagnosis) -> ModelUse:
    assert diagnosis.model is not None
    return diagnosis.model


def stands(diagnosis: Diagnosis, expected: Diagnosis = UNDECIDED) -> bool:
    """Nothing but notes, the use of the model and the wish for a review differs."""
    return replace(diagnosis, model=None, notes=(), needs_review="") == expected


async def test_a_proven_answer_becomes_the_verdict() -> None:
    """Type, line and node come from the model, under their true names; the action is the one that the table has for a
    cause that no stable rule found."""
    found, asked = await consult(say())
    assert (found.type, found.decided_by) == (FailureType.NVLINK_ERROR, "llm:scripted")
    assert found.root_cause is not None
    assert (found.root_cause.line, found.root_cause.node) == (12, "gpu-3")
    assert found.confidence == CONFIDENCE_UNJUDGED
    assert found.mitigation == "Replace the bridge of gpu-3."
    assert found.recovery == Advice(Action.CHECK_AND_RESUBMIT, "broken_node_must_be_found")
    assert (used(found).asked, used(found).effect) == ((AskReason.UNKNOWN,), ModelEffect.DECIDED)
    assert (used(found).calls, used(found).tokens_in, used(found).failure) == (2, 1800, "")
    assert len(asked) == 2
    assert asked[1]["response_format"]["json_schema"]["schema"]["required"]


async def test_what_is_sent_holds_no_secret_and_no_name() -> None:
    """The line is there, but not the token in it, and the node goes by an alias."""
    _, asked = await consult(say())
    sent = json.dumps(asked)
    assert "lane degraded" in sent
    assert "hf_aBcDeF" not in sent
    assert "gpu-3" not in sent
    assert "host-1" in sent


async def test_each_question_has_its_own_marker() -> None:
    """The marker around the log can not be known beforehand."""
    with model_server(in_turn(say())) as server:
        async with Site(server) as site:
            await site.consult()
            await site.consult()
    markers = {asked["messages"][1]["content"].split(" log begins")[0].split()[-1] for asked in server.asked}
    assert len(markers) == 2


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=500, raw=b"oops"), "model_unavailable"),
        (Reply(drop=True), "model_unavailable"),
        (refusal("Incorrect API key provided", 401), "model_denied"),
        (refusal("this key may not use the model", 403), "model_denied"),
        (refusal("The model `scripted` does not exist", 404), "model_not_found"),
        (refusal("busy", 429), "model_rate_limited"),
        (Reply(status=429, raw=b"{}", headers={"Retry-After": "600"}), "model_rate_limited"),
        (refusal("This model's maximum context length is 1024 tokens"), "context_too_small"),
        (Reply(raw=b"not json"), "answer_malformed"),
        (Reply(raw=b"{}"), "answer_malformed"),
        (Reply(raw=b"[]"), "answer_malformed"),
        (Reply(raw=b'{"choices": {"a": 1}, "usage": "much", "model": 7}'), "answer_malformed"),
        (Reply(raw=b'{"choices": [{"message": {"content": [1]}}]}'), "answer_malformed"),
        (Reply(""), "answer_malformed"),
        (Reply("It was the GPU."), "answer_malformed"),
        (Reply("原因是显卡的链路断开了。"), "answer_malformed"),
        (Reply(json.dumps({"тип": "nvlink_error"})), "answer_malformed"),
        (Reply(say().content[:80]), "answer_malformed"),
        (say(type="gremlins"), "answer_malformed"),
        (Reply("x" * (1 << 20)), "answer_malformed"),
        (say(cited=[{"line": 12, "quote": "the bridge melted"}]), "evidence_not_found"),
        (say(cited=[{"line": 9999, "quote": "lane degraded"}]), "evidence_not_found"),
        (say(cited=[]), "evidence_not_found"),
        (say(confidence=0.1), "confidence_too_low"),
    ],
)
async def test_any_other_answer_leaves_the_verdict_of_the_rules(reply: Reply, reason: str) -> None:
    """Each fault has its reason on the diagnosis and in the metrics, costs few calls, and changes nothing else."""
    with model_server(in_turn(reply)) as server:
        async with Site(server) as site:
            found = await site.consult()
    assert used(found).failure == reason
    assert stands(found)
    assert used(found).calls == len(server.asked) <= 5
    assert site.failures(reason) == 1


def test_every_reason_is_counted_from_zero() -> None:
    """All reasons show at /metrics before the first failure."""
    site = Site(ModelServer(""))
    assert [site.failures(reason) for reason in ModelFailure] == [0.0] * len(ModelFailure)


async def test_an_answer_that_cannot_be_read_is_repaired_once() -> None:
    """The model is told what is wrong, in the same conversation, and its second answer counts."""
    found, asked = await consult(say(type="gremlins"), say())
    assert found.type is FailureType.NVLINK_ERROR
    repair = next(one for one in asked if len(one["messages"]) == 4)["messages"]
    assert [message["role"] for message in repair] == ["system", "user", "assistant", "user"]
    assert "type" in repair[3]["content"]
    assert used(found).calls == 3


async def test_three_different_answers_are_no_verdict() -> None:
    """On a split the rules' verdict stands, and the diagnosis says that a person should look."""
    found, asked = await consult(say(), say(type="gpu_lost"), say(type="network_error"))
    assert used(found).failure == "no_agreement"
    assert stands(found)
    assert "network_error" in found.needs_review
    assert len(asked) == 3


async def test_an_answer_may_say_more_and_less_than_it_was_asked() -> None:
    """Further fields are ignored, an action among them; thoughts before the answer too."""
    thoughts = Reply("<think>Is {it} the lane?</think>So:\n" + say(action="cordon_and_resubmit").content)
    found, asked = await consult(thoughts)
    assert found.type is FailureType.NVLINK_ERROR
    assert found.recovery.action is Action.CHECK_AND_RESUBMIT
    assert len(asked) == 2


async def test_a_second_look_decides_between_two() -> None:
    """Two of three are enough."""
    found, asked = await consult(say(), say(type="gpu_lost"), say())
    assert (found.type, found.needs_review) == (FailureType.NVLINK_ERROR, "")
    assert len(asked) == 3
    assert "claims begin" in asked[2]["messages"][1]["content"]


async def test_equal_types_need_no_equal_nodes() -> None:
    """A node that one answer names stands, two different ones are left out; neither costs a call."""
    found, asked = await consult(say(), say(node=None))
    assert (found.type, len(asked)) == (FailureType.NVLINK_ERROR, 2)
    assert found.root_cause is not None and found.root_cause.node == "gpu-3"
    found, asked = await consult(say(), say(node="gpu-4"))
    assert (found.type, len(asked)) == (FailureType.NVLINK_ERROR, 2)
    assert found.root_cause is not None and found.root_cause.node is None


async def test_a_late_answer_is_not_waited_for() -> None:
    """After the deadline the rules' verdict stands, though the server has not answered yet."""
    found, _ = await consult(Reply(wait=NEVER), llm_deadline_seconds=0.3)
    assert used(found).failure == "model_timeout"
    assert stands(found)


async def test_an_absent_server_is_told() -> None:
    """Nothing listens: model_unavailable."""
    async with Site(ModelServer("http://127.0.0.1:9/v1"), {"llm_deadline_seconds": 60.0}) as site:
        assert used(await site.consult()).failure == "model_unavailable"


async def test_a_server_that_keeps_failing_is_left_alone_and_tried_again() -> None:
    """The breaker opens after failures in a row, sends nothing while open, and one answer closes it."""
    with model_server(in_turn(Reply(status=500, raw=b""), say())) as server:
        async with Site(server, breaker=LLMCircuitBreaker(1, 3600.0)) as site:
            assert used(await site.consult()).failure == "model_unavailable"
            refused = await site.consult()
            assert (used(refused).failure, used(refused).calls) == ("breaker_open", 0)
            assert len(server.asked) == 1
            site.ahead = 3600.0
            assert (await site.consult()).type is FailureType.NVLINK_ERROR


async def test_a_server_that_hangs_is_left_alone_too() -> None:
    """Questions that nobody waited for to the end count as failures."""
    with model_server(in_turn(Reply(wait=NEVER))) as server:
        async with Site(server, {"llm_deadline_seconds": 2.0}, breaker=LLMCircuitBreaker(1)) as site:
            reasons = [used(await site.consult()).failure for _ in range(2)]
    assert reasons == ["model_timeout", "breaker_open"]


async def test_one_diagnosis_has_a_bound_of_tokens() -> None:
    """No further question once the next one could pass 64k tokens."""
    found, asked = await consult(
        *(replace(say(type=kind), tokens=30_000) for kind in ("gpu_lost", "ecc_error", "os_error"))
    )
    assert len(asked) == 2
    assert used(found).tokens_in + used(found).tokens_out <= 64_000
    assert stands(found)


@pytest.mark.parametrize("seed", range(12))
async def test_no_consultation_passes_its_bounds(seed: int) -> None:
    """Whatever a server answers, in any order: at most 8 calls, 64k tokens, and an action that the table has."""
    chance = random.Random(seed)
    kinds = ["nvlink_error", "gpu_lost", "key_error", "unknown"]
    pool = [
        *(replace(say(type=kind), tokens=size) for kind in kinds for size in (900, 9_000)),
        Reply("prose", tokens=9_000),
        Reply(status=429, raw=b"{}", headers={"Retry-After": "0"}),
        refusal("maximum context length exceeded"),
        Reply(status=500, raw=b""),
    ]
    long = subject(line(), line("step 7 of 9 loss 2.1 " * 1_000, 13))
    with model_server(in_turn(*chance.choices(pool, k=12))) as server:
        async with Site(server, breaker=LLMCircuitBreaker(99)) as site:
            found = await site.consult(long)
    assert used(found).calls == len(server.asked) <= 8
    assert used(found).tokens_in + used(found).tokens_out <= 64_000
    assert found.recovery.action in (UNDECIDED.recovery.action, POLICY.advise(case_of(found)).action)


async def test_a_busy_server_is_asked_again_when_it_said_so() -> None:
    """429 with a short Retry-After costs a wait and not the answer."""
    busy = Reply(status=429, raw=b"{}", headers={"Retry-After": "1"})
    found, asked = await consult(busy, busy, say())
    assert found.type is FailureType.NVLINK_ERROR
    assert len(asked) == 4


async def test_a_spent_budget_stops_the_questions() -> None:
    """The tokens of the hour are used up: nothing is sent, and the diagnosis says why."""
    with model_server(in_turn(say())) as server:
        async with Site(server, {"llm_tokens_per_hour": 9000}) as site:
            reasons = [used(await site.consult()).failure for _ in range(8)]
    assert (reasons[0], reasons[-1]) == ("", "budget_spent")
    assert len(server.asked) < 16


@pytest.mark.parametrize("status", [400, 500])
async def test_a_server_without_schemas_is_asked_for_json(status: int) -> None:
    """The refusal is remembered: the next question goes out right at once."""

    def stern(asked: dict[str, Any]) -> Reply:
        if asked.get("response_format", {"type": "json_object"})["type"] != "json_object":
            return refusal("Unsupported response_format type: json_schema", status)
        return say()

    with model_server(stern) as server:
        async with Site(server) as site:
            first, second = await site.consult(), await site.consult()
    assert first.type is second.type is FailureType.NVLINK_ERROR
    assert used(first).calls <= 5
    assert used(second).calls == 2
    assert server.asked[-1]["response_format"]["schema"]["required"]


async def test_a_server_that_takes_no_format_at_all_is_asked_without() -> None:
    """The prompt alone asks for JSON; finding that out costs no call."""

    def plain(asked: dict[str, Any]) -> Reply:
        return refusal("response_format is not supported") if "response_format" in asked else say()

    with model_server(plain) as server:
        async with Site(server) as site:
            first, second = await site.consult(), await site.consult()
    assert used(first).calls == used(second).calls == 2
    assert first.type is second.type is FailureType.NVLINK_ERROR


async def test_the_view_fits_what_the_server_says() -> None:
    """The view shrinks to the server's length of a question less prompt and answer; below a minimum nothing is sent."""
    sizes: list[int] = []
    whole = subject()

    def view(size: int) -> LogView:
        sizes.append(size)
        return whole.view(size)

    asked = replace(whole, view=view)
    with model_server(in_turn(say()), context=6000) as server:
        async with Site(server) as site:
            assert (await site.consult(asked)).type is FailureType.NVLINK_ERROR
    assert 300 <= sizes[0] < 5000
    found, sent = await consult(say(), context=1024)
    assert (used(found).failure, used(found).calls, sent) == ("context_too_small", 0, [])


async def test_a_refused_length_is_tried_with_half() -> None:
    """Where the server counts more tokens than expected, a smaller view is sent."""
    long = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
    found, asked = await consult(refusal(long), say())
    assert found.type is FailureType.NVLINK_ERROR
    assert len(asked) == 3


async def test_an_invented_node_or_rank_is_cut() -> None:
    """What the job does not have is not named, that is noted, and confidence falls."""
    with model_server(in_turn(say(node="gpu-99", rank=77, confidence=0.9))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(line(), line("step 3", 3, rank=0)))
    assert found.nodes == ()
    assert found.root_cause is not None
    assert found.root_cause.rank is None
    assert found.confidence < 0.9 * 0.8
    assert sum("not of this job" in note for note in found.notes) == 2


async def test_a_model_that_does_not_know_changes_nothing() -> None:
    """`unknown` is an answer: the verdict stays unknown, the use of the model is on record."""
    found, _ = await consult(say(type="unknown", category="unknown", cited=[]))
    assert stands(found)
    assert used(found).failure == ""


@pytest.mark.parametrize(("stated", "judged", "said"), [(0.99, 0.85, 0.85), (0.7, 0.85, 0.7), (0.99, 0.2, 0.2)])
async def test_a_model_is_as_sure_as_people_found_it_right(stated: float, judged: float, said: float) -> None:
    """By the site's judged cases for the model that answered, and never surer than it says itself."""
    confidences = {"scripted": judged, "another": 0.9}
    with model_server(in_turn(say(confidence=stated))) as server:
        async with Site(server) as site:
            heard = await site.agent.consult(subject(), (AskReason.UNKNOWN,), confidences)
    assert (heard.type, heard.confidence) == (FailureType.NVLINK_ERROR, said)


@pytest.mark.parametrize("kind", ["key_error", "nvlink_error", "unknown"])
async def test_an_explanation_never_changes_a_verdict(kind: str) -> None:
    """Where nothing is in doubt the verdict stands, whatever the model says; that it differs is for a person to see."""
    with model_server(in_turn(say(type=kind))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=DECIDED), AskReason.EXPLANATION)
    assert stands(found, DECIDED)
    assert bool(found.needs_review) is (kind == "nvlink_error")
    assert bool(found.notes) is (kind != "nvlink_error")


HEURISTIC = replace(DECIDED, decided_by="heuristic:words", confidence=0.8, doubts=(AskReason.UNSURE,))
CONTESTED = replace(DECIDED, doubts=(AskReason.UNSURE,))
RESUBMIT = Advice(Action.RESUBMIT, "transient_service")


async def test_a_guess_of_the_rules_gives_way() -> None:
    """Asked because a heuristic decided: two answers and a second look that name another type make the verdict, the
    table makes the action, and the record tells what stood before."""
    with model_server(in_turn(say())) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=replace(HEURISTIC, recovery=RESUBMIT)))
    assert (found.type, found.decided_by, found.needs_review) == (FailureType.NVLINK_ERROR, "llm:scripted", "")
    assert found.recovery == Advice(Action.CHECK_AND_RESUBMIT, "broken_node_must_be_found")
    before = RulesVerdict(FailureType.KEY_ERROR, "heuristic:words", 0.8, line=12, action=Action.RESUBMIT)
    assert (used(found).asked, used(found).effect, used(found).before) == (
        (AskReason.UNSURE,),
        ModelEffect.DECIDED,
        before,
    )
    assert len(server.asked) == 3


async def test_a_contradicted_specific_rule_is_for_a_person_to_see() -> None:
    """The model's type stands where a rule was unsure, and the diagnosis says that somebody has to look."""
    with model_server(in_turn(say())) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=CONTESTED))
    assert (found.type, used(found).effect) == (FailureType.NVLINK_ERROR, ModelEffect.DECIDED)
    assert found.needs_review == "the model says nvlink_error (line 12), rule:x says key_error"


async def test_a_second_look_shows_both_claims_and_the_rules_may_win_it() -> None:
    """The claims stand between markers with their lines, not with who made them; the type that is chosen stands."""
    log = (line("KeyError: 'labels'", 9), line())
    rules = replace(HEURISTIC, root_cause=RootCause(9, log[0].text))
    with model_server(in_turn(say(), say(), say(type="key_error", cited=[{"line": 9, "quote": "KeyError"}]))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(*log, diagnosis=rules))
    first, _, second = (asked["messages"][1]["content"] for asked in server.asked)
    assert second.startswith(first)
    claims = second[len(first) :].split("claims begin\n")[1].split("claims end")[0]
    assert "- key_error, by line 9: KeyError: 'labels'\n- nvlink_error, by line 12: host-1 zx81: lane" in claims
    assert "hf_aBcDeF" not in second
    assert stands(found, rules)
    assert used(found).effect is ModelEffect.AGREED


async def test_a_second_look_that_chooses_neither_is_for_a_person() -> None:
    """The rules' verdict stands, and what the answers were is told."""
    with model_server(in_turn(say(), say(), say(type="gpu_lost"))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=HEURISTIC))
    assert used(found).failure == "no_agreement"
    assert (found.type, found.recovery) == (HEURISTIC.type, HEURISTIC.recovery)
    assert "nvlink_error on gpu-3; gpu_lost on gpu-3" in found.needs_review


async def test_agreement_keeps_the_verdict_and_may_add_the_place() -> None:
    """The rules' words, line and action stay; a node that they did not know is filled in, one that they knew is not."""
    rules = replace(DECIDED, type=FailureType.NVLINK_ERROR, category=Category.INFRASTRUCTURE, recovery=RESUBMIT)
    rules = replace(rules, doubts=(AskReason.UNSURE,))
    placed = replace(rules, root_cause=RootCause(12, line().text, 5, "gpu-4"))
    with model_server(in_turn(say(rank=1))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=rules))
            kept = await site.consult(subject(diagnosis=placed))
    assert found.root_cause is not None
    assert (found.root_cause.rank, found.root_cause.node) == (1, "gpu-3")
    assert (found.decided_by, found.recovery, found.nodes) == (rules.decided_by, RESUBMIT, ())
    assert used(found).effect is ModelEffect.LOCATED
    assert stands(kept, placed)
    assert used(kept).effect is ModelEffect.AGREED


async def test_the_place_of_the_rules_is_kept_until_the_model_shows_a_better_one() -> None:
    """An answer that names neither rank nor node leaves those of the rules; a line that its rank printed outweighs
    them."""
    rules = replace(HEURISTIC, root_cause=RootCause(9, "KeyError: 'labels'", 5, "gpu-4"))
    spoken = line("zx81: lane degraded beyond repair", rank=2)
    cited = [{"line": 12, "quote": "lane degraded beyond repair"}]
    with model_server(in_turn(say(node=None, cited=cited))) as server:
        async with Site(server) as site:
            silent = await site.consult(subject(line("zx81: lane degraded beyond repair"), diagnosis=rules))
            printed = await site.consult(subject(spoken, diagnosis=rules))
    assert silent.root_cause is not None and printed.root_cause is not None
    assert (silent.root_cause.line, silent.root_cause.rank, silent.root_cause.node) == (12, 5, "gpu-4")
    assert (printed.root_cause.rank, printed.root_cause.node) == (2, None)


async def test_a_node_that_only_a_list_names_is_a_node_of_the_job() -> None:
    """It printed nothing, and the scheduler's list says that it is there; a node of another job stays none."""
    log = (line("Nodes: gpu-[01-03,08]", 3), line("rank 7 never arrived at the barrier"))
    cited = [{"line": 12, "quote": "never arrived at the barrier"}]
    for named, node in (("gpu-08", "gpu-08"), ("gpu-02.cluster", "gpu-02"), ("gpu-04", None)):
        with model_server(in_turn(say(node=named, cited=cited))) as server:
            async with Site(server) as site:
                found = await site.consult(subject(*log, facts=Facts()))
        assert found.root_cause is not None
        assert found.root_cause.node == node


def planner(mode: Mode) -> DecisionPlanner:
    return DecisionPlanner(POLICY, lambda now: "id", mode, webhook=True, alerts=NOBODY, base_url="", redact=str)


NOBODY = AlertRouting(load_table(Settings()))
POLICY = policy.load("policy.yaml", text(bundled("rules") / "policy.yaml"))
CLAIM = Claim(Attempt(AttemptKey("j"), 0.0, nodes=("gpu-3", "gpu-4")), Job("j"), "")


@pytest.mark.parametrize("kind", [kind for kind in FailureType if kind is not FailureType.UNKNOWN])
@pytest.mark.parametrize("diagnosis", [UNDECIDED, HEURISTIC, CONTESTED], ids=["unknown", "heuristic", "contested"])
async def test_the_table_alone_chooses_the_action_and_no_node_moves_by_the_word_of_a_model(
    diagnosis: Diagnosis, kind: FailureType
) -> None:
    """Whatever type it proves: the action is the row's for that type without a stable rule and without a named node, no
    plan takes a node out, and even in mode act a person approves each plan that somebody could carry out."""
    suspected = replace(diagnosis, nodes=(Suspect("gpu-4", 0.9, "it says so"),), grounds=DecisionBasis(True, True))
    with model_server(in_turn(say(type=kind, category=category_of(kind), confidence=1.0))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=suspected))
    if found.type is diagnosis.type:
        assert found.recovery == suspected.recovery
        return
    assert found.decided_by == "llm:scripted"
    case = PolicyCase(found.type, found.category, found.confidence, node_named=False, stable=False)
    assert found.recovery == POLICY.advise(case)
    plan = planner(Mode.ACT).decide(CLAIM, found, 1.0).plan
    if plan is not None:
        assert plan.action is not Action.CORDON_AND_RESUBMIT and plan.nodes == ()
        assert plan.state is not PlanState.SENT
        assert (plan.state is PlanState.WAITING) is (plan.action in RUNNABLE)


def doubtful(*reasons: AskReason, **changes: Any) -> Diagnosis:
    return replace(DECIDED, doubts=reasons, **changes)


SOUND = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.9, "rule:x")


@pytest.mark.parametrize(
    ("diagnosis", "undecided", "always"),
    [
        (UNDECIDED, [AskReason.UNKNOWN], [AskReason.UNKNOWN]),
        (DECIDED, [], [AskReason.EXPLANATION]),
        (replace(DECIDED, confidence=0.5), [], [AskReason.EXPLANATION]),
        (doubtful(AskReason.UNSURE), [AskReason.UNSURE], [AskReason.UNSURE]),
        (doubtful(AskReason.UNKNOWN, decided_by="incident:1"), [], [AskReason.EXPLANATION]),
        (SOUND, [], []),
        (replace(SOUND, doubts=(AskReason.UNSURE,)), [AskReason.UNSURE], [AskReason.UNSURE]),
    ],
)
def test_who_is_asked_about(diagnosis: Diagnosis, undecided: list[AskReason], always: list[AskReason]) -> None:
    """What is in doubt is asked about, what is decided only on wish, what a person named or did not fail never."""
    asked = [list(reasons_to_ask(diagnosis, when)) for when in LLMTrigger]
    assert asked == [[], undecided, always]
