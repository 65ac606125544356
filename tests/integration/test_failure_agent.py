"""The model stage against a real HTTP server: it helps where it can prove it, and never harms."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from diagnoser.failure_agent.agent import CONFIDENCE_MAX, LLMTrigger, Need, need
from diagnoser.llm.view import LogView
from diagnoser.model import Advice, Diagnosis, ModelUse, Rejected, RootCause, Suspect
from diagnoser.model.errors import ModelFailure
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
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
    """Nothing but notes and the use of the model differs."""
    return replace(diagnosis, model=None, notes=()) == expected


async def test_a_proven_answer_becomes_the_verdict() -> None:
    """Type, line and node come from the model, under their true names; the action stays, and the table's is told."""
    found, asked = await consult(say())
    assert (found.type, found.decided_by) == (FailureType.NVLINK_ERROR, "llm:scripted")
    assert found.root_cause is not None
    assert (found.root_cause.line, found.root_cause.node) == (12, "gpu-3")
    assert found.confidence <= CONFIDENCE_MAX
    assert found.mitigation == "Replace the bridge of gpu-3."
    assert found.recovery == UNDECIDED.recovery
    assert any("check_and_resubmit" in note for note in found.notes)
    assert (used(found).calls, used(found).tokens_in, used(found).failure) == (2, 1800, "")
    assert len(asked) == 2
    assert asked[0]["response_format"]["json_schema"]["schema"]["required"]


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
        (say(action="cordon_and_resubmit"), "answer_malformed"),
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
    assert any("needs review" in note for note in found.notes)
    assert len(asked) == 3


async def test_a_third_answer_decides_between_two() -> None:
    """Two of three are enough; the same type on another node is another answer."""
    found, asked = await consult(say(), say(node=None), say())
    assert found.type is FailureType.NVLINK_ERROR
    assert len(asked) == 3


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
    with model_server(in_turn(*[Reply(status=500, raw=b"")] * 2, say())) as server:
        async with Site(server, {"llm_breaker_failures": 2, "llm_breaker_seconds": 3600.0}) as site:
            assert used(await site.consult()).failure == "model_unavailable"
            refused = await site.consult()
            assert (used(refused).failure, used(refused).calls) == ("breaker_open", 0)
            assert len(server.asked) == 2
            site.ahead = 3600.0
            assert (await site.consult()).type is FailureType.NVLINK_ERROR


async def test_a_server_that_hangs_is_left_alone_too() -> None:
    """Questions that nobody waited for to the end count as failures."""
    with model_server(in_turn(Reply(wait=NEVER))) as server:
        async with Site(server, {"llm_breaker_failures": 2, "llm_deadline_seconds": 2.0}) as site:
            reasons = [used(await site.consult()).failure for _ in range(2)]
    assert reasons == ["model_timeout", "breaker_open"]


async def test_one_diagnosis_has_a_bound_of_tokens() -> None:
    """No further question once the next one could pass 40k tokens."""
    found, asked = await consult(
        *(replace(say(type=kind), tokens=19_000) for kind in ("gpu_lost", "ecc_error", "os_error"))
    )
    assert len(asked) == 2
    assert used(found).tokens_in + used(found).tokens_out <= 40_000
    assert stands(found)


@pytest.mark.parametrize("seed", range(12))
async def test_no_consultation_passes_its_bounds(seed: int) -> None:
    """Whatever a server answers, in any order: at most 5 calls, 40k tokens, and the deterministic action."""
    chance = random.Random(seed)
    kinds = ["nvlink_error", "gpu_lost", "key_error", "unknown"]
    pool = [
        *(replace(say(type=kind), tokens=size) for kind in kinds for size in (900, 9_000)),
        Reply("prose", tokens=9_000),
        Reply(status=429, raw=b"{}", headers={"Retry-After": "0"}),
        refusal("response_format is not supported"),
        refusal("maximum context length exceeded"),
        Reply(status=500, raw=b""),
    ]
    long = subject(line(), line("step 7 of 9 loss 2.1 " * 1_000, 13))
    with model_server(in_turn(*chance.choices(pool, k=12))) as server:
        async with Site(server, {"llm_breaker_failures": 99}) as site:
            found = await site.consult(long)
    assert used(found).calls == len(server.asked) <= 5
    assert used(found).tokens_in + used(found).tokens_out <= 40_000
    assert found.recovery == UNDECIDED.recovery


async def test_a_busy_server_is_asked_again_when_it_said_so() -> None:
    """429 with a short Retry-After costs a wait and not the answer."""
    busy = Reply(status=429, raw=b"{}", headers={"Retry-After": "1"})
    found, asked = await consult(busy, busy, say(), llm_breaker_failures=9)
    assert found.type is FailureType.NVLINK_ERROR
    assert len(asked) == 4


@pytest.mark.parametrize(
    "limit",
    [
        {"llm_tokens_per_hour": 9000},
        {
            "llm_cost_per_hour": 0.01,
            "llm_price_per_million_input_tokens": 1.0,
            "llm_price_per_million_output_tokens": 3.0,
        },
    ],
)
async def test_a_spent_budget_stops_the_questions(limit: dict[str, Any]) -> None:
    """Tokens or cost of the hour are used up: nothing is sent, and the diagnosis says why."""
    with model_server(in_turn(say())) as server:
        async with Site(server, limit) as site:
            reasons = [used(await site.consult()).failure for _ in range(8)]
    assert (reasons[0], reasons[-1]) == ("", "budget_spent")
    assert len(server.asked) < 16


@pytest.mark.parametrize("status", [400, 500])
async def test_a_server_without_schemas_is_asked_for_json(status: int) -> None:
    """The refusal is remembered: the next question goes out right at once."""

    def stern(asked: dict[str, Any]) -> Reply:
        if asked["response_format"]["type"] != "json_object":
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
    """The prompt alone asks for JSON; finding that out may use up the first consultation."""

    def plain(asked: dict[str, Any]) -> Reply:
        return refusal("response_format is not supported") if "response_format" in asked else say()

    with model_server(plain) as server:
        async with Site(server) as site:
            first, second = await site.consult(), await site.consult()
    assert used(first).calls <= 5
    assert second.type is FailureType.NVLINK_ERROR


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
    found, asked = await consult(refusal(long), refusal(long), say())
    assert found.type is FailureType.NVLINK_ERROR
    assert len(asked) == 4


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


async def test_a_proven_end_is_an_answer_too() -> None:
    """Somebody or a limit may have ended the run; but a run that failed has not completed, whatever the model says."""
    found, _ = await consult(say(type="time_limit", category="none"))
    assert (found.type, found.outcome, found.category) == (FailureType.TIME_LIMIT, Outcome.TIME_LIMIT, Category.NONE)
    assert found.recovery == UNDECIDED.recovery
    found, _ = await consult(say(type="completed", category="none"))
    assert stands(found)


@pytest.mark.parametrize("kind", ["key_error", "nvlink_error", "unknown"])
async def test_an_explanation_never_changes_a_verdict(kind: str) -> None:
    """Where the rules decided, the model's view is a note, whatever it says."""
    with model_server(in_turn(say(type=kind))) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=DECIDED), Need.EXPLANATION)
    assert stands(found, DECIDED)
    assert len(found.notes) > 0


async def test_a_conflict_is_settled_only_between_the_causes_that_the_rules_saw() -> None:
    """A line that the rules weighed as that type may win; anything else is a note for a person."""
    rival = Rejected(12, line().text, FailureType.NVLINK_ERROR, "came after the root")
    contested = replace(DECIDED, confidence=0.5, rejected=(rival,))
    with model_server(in_turn(say())) as server:
        async with Site(server) as site:
            settled = await site.consult(subject(diagnosis=contested), Need.CONFLICT)
            other = await site.consult(subject(diagnosis=replace(contested, rejected=())), Need.CONFLICT)
    assert settled.type is FailureType.NVLINK_ERROR
    assert settled.recovery == contested.recovery
    assert stands(other, replace(contested, rejected=()))
    assert any("needs review" in note for note in other.notes)


async def test_an_action_on_nodes_keeps_its_nodes() -> None:
    """A node that the model names is never the one that a standing action goes to."""
    rival = Rejected(12, line().text, FailureType.NVLINK_ERROR, "came after the root")
    cordon = Advice(Action.CORDON_AND_RESUBMIT, "broken_node_named")
    suspects = (Suspect("gpu-4", 0.9, "it says so"),)
    contested = replace(DECIDED, confidence=0.5, rejected=(rival,), recovery=cordon, nodes=suspects)
    with model_server(in_turn(say())) as server:
        async with Site(server) as site:
            found = await site.consult(subject(diagnosis=contested), Need.CONFLICT)
    assert (found.type, found.recovery, found.nodes) == (FailureType.NVLINK_ERROR, cordon, suspects)


@pytest.mark.parametrize(
    ("diagnosis", "never", "undecided", "always"),
    [
        (UNDECIDED, None, Need.CAUSE, Need.CAUSE),
        (DECIDED, None, None, Need.EXPLANATION),
        (replace(DECIDED, confidence=0.5), None, None, Need.EXPLANATION),
        (
            replace(DECIDED, confidence=0.8, rejected=(Rejected(3, "x", FailureType.OS_ERROR, "came after the root"),)),
            None,
            Need.CONFLICT,
            Need.CONFLICT,
        ),
        (
            replace(DECIDED, rejected=(Rejected(3, "x", FailureType.OS_ERROR, "explained by the root"),)),
            None,
            None,
            Need.EXPLANATION,
        ),
        (
            replace(
                DECIDED,
                decided_by="incident:1",
                confidence=0.85,
                rejected=(Rejected(3, "x", FailureType.OS_ERROR, "came after the root"),),
            ),
            None,
            None,
            Need.EXPLANATION,
        ),
        (Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.9, "rule:x"), None, None, None),
        (Diagnosis(Outcome.COMPLETED, Category.UNKNOWN, FailureType.UNKNOWN, 0.9, "rule:x"), None, None, None),
    ],
)
def test_who_is_asked_about(
    diagnosis: Diagnosis, never: Need | None, undecided: Need | None, always: Need | None
) -> None:
    """No cause and a conflict are asked about, what is decided only on wish, and what did not fail never."""
    assert [need(diagnosis, when) for when in LLMTrigger] == [never, undecided, always]


async def test_actions_never_come_from_the_model() -> None:
    """Whatever type it proves, the deterministic action stands."""
    for kind in ("gpu_lost", "loss_divergence", "connection_error", "key_error"):
        found, _ = await consult(say(type=kind))
        assert found.recovery.action is Action.NONE
