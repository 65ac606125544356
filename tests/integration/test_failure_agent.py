"""The model stage against a real HTTP server: it helps where it can prove it, and never harms."""

import json
import time
from typing import Any

import pytest

from diagnoser.adapters.files import bundled, text, texts
from diagnoser.adapters.openai import OpenAIModel
from diagnoser.failure_agent import CONFIDENCE_MAX, FailureAgent, View, undecided
from diagnoser.llm import prompt
from diagnoser.model import Diagnosis, Evidence, Facts, Job, Line, Stream
from diagnoser.recovery import policy
from diagnoser.taxonomy import Action, Category, FailureType, Outcome
from tests.integration.model_server import Reply, model_server

UNDECIDED = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")
TEXT = "gpu-3 zx81: lane degraded beyond repair, giving up (token hf_aBcDeFgHiJkLmNoPqRsTuVwX)"
LINE = Line(Stream(), 12, TEXT, TEXT)
LOG = Evidence(lines=(LINE,))
VIEW = View(f"12: {TEXT}\n", {12: [LINE]})
FACTS = Facts(Job("j", nodes=("gpu-3", "gpu-4")))
ANSWER = {
    "type": "nvlink_error",
    "cited": [{"line": 12, "quote": "lane degraded beyond repair"}],
    "node": "gpu-3",
    "rank": None,
    "confidence": 0.99,
    "mitigation": "Replace the bridge.",
    "alternative": "unknown",
}


def say(**changes: Any) -> Reply:
    return Reply(json.dumps({**ANSWER, **changes}))


async def consult(*replies: Reply, deadline: float = 5.0) -> tuple[Diagnosis, list[dict[str, Any]]]:
    with model_server(*replies) as server:
        model = OpenAIModel(server.url, "scripted", "", timeout=deadline)
        question = prompt.load("failure_agent/v1", texts(bundled("prompts") / "failure_agent/v1", "*"))
        table = policy.load("policy.yaml", text(bundled("rules") / "policy.yaml"))
        agent = FailureAgent(model, question, table, deadline=deadline, clock=time.monotonic)
        try:
            return await agent.consult(UNDECIDED, LOG, VIEW, FACTS), server.asked
        finally:
            await model.close()


async def test_a_proven_answer_becomes_the_verdict() -> None:
    """Type, line and node come from the model; the action from the table, and never a cordon."""
    found, (asked,) = await consult(say())
    assert (found.type, found.decided_by) == (FailureType.NVLINK_ERROR, "llm:scripted")
    assert found.root_cause is not None
    assert (found.root_cause.line, found.root_cause.node) == (12, "gpu-3")
    assert found.confidence <= CONFIDENCE_MAX
    assert found.recovery.action is Action.CHECK_AND_RESUBMIT
    assert found.model is not None
    assert (found.model.calls, found.model.tokens_in, found.model.failure) == (1, 900, "")
    assert asked["response_format"]["json_schema"]["schema"]["required"]


async def test_secrets_do_not_reach_the_model() -> None:
    """What is sent holds the line, but not the token in it."""
    _, (asked,) = await consult(say())
    sent = json.dumps(asked)
    assert "lane degraded" in sent
    assert "hf_aBcDeF" not in sent


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=500, raw=b"oops"), "model_unavailable"),
        (Reply(status=401, raw=b"{}"), "model_unavailable"),
        (Reply(status=429, raw=b"{}"), "model_unavailable"),
        (Reply(drop=True), "model_unavailable"),
        (Reply(raw=b"not json"), "answer_malformed"),
        (Reply(""), "answer_malformed"),
        (Reply("It was the GPU."), "answer_malformed"),
        (say(type="gremlins"), "answer_malformed"),
        (say(action="cordon_and_resubmit"), "answer_malformed"),
        (Reply("x" * (1 << 20)), "answer_malformed"),
        (say(cited=[{"line": 12, "quote": "the bridge melted"}]), "evidence_not_found"),
        (say(cited=[{"line": 9999, "quote": "lane degraded"}]), "evidence_not_found"),
        (say(cited=[]), "evidence_not_found"),
    ],
)
async def test_any_other_answer_leaves_the_verdict_of_the_rules(reply: Reply, reason: str) -> None:
    """Each fault has its reason on the diagnosis, and changes nothing else."""
    found, _ = await consult(reply)
    assert found.model is not None
    assert found.model.failure == reason
    assert (found.type, found.recovery, found.decided_by) == (UNDECIDED.type, UNDECIDED.recovery, UNDECIDED.decided_by)


async def test_a_late_answer_is_not_waited_for() -> None:
    """After the deadline the rules' verdict stands."""
    started = time.monotonic()
    found, _ = await consult(Reply(wait=3.0), deadline=0.3)
    assert found.model is not None
    assert found.model.failure == "model_timeout"
    assert time.monotonic() - started < 2.5


async def test_an_absent_server_is_told() -> None:
    """Nothing listens: model_unavailable."""
    model = OpenAIModel("http://127.0.0.1:9/v1", "none", "", timeout=2.0)
    question = prompt.load("failure_agent/v1", texts(bundled("prompts") / "failure_agent/v1", "*"))
    table = policy.load("policy.yaml", text(bundled("rules") / "policy.yaml"))
    agent = FailureAgent(model, question, table, deadline=5.0, clock=time.monotonic)
    found = await agent.consult(UNDECIDED, LOG, VIEW, FACTS)
    await model.close()
    assert found.model is not None
    assert found.model.failure == "model_unavailable"


async def test_an_invented_node_is_cut() -> None:
    """A node that the job does not have is not named, and that is noted."""
    found, _ = await consult(say(node="gpu-99"))
    assert found.nodes == ()
    assert any("node" in note for note in found.notes)


async def test_a_model_that_does_not_know_changes_nothing() -> None:
    """`unknown` is an answer: the verdict stays unknown, the use of the model is on record."""
    found, _ = await consult(say(type="unknown"))
    assert found.type is FailureType.UNKNOWN
    assert found.decided_by == UNDECIDED.decided_by
    assert found.model is not None


def test_only_a_failure_without_a_cause_is_undecided() -> None:
    """Where rules decide, or nothing failed, no model is asked."""
    decided = Diagnosis(Outcome.FAILED, Category.SCRIPT, FailureType.KEY_ERROR, 0.9, "rule:x")
    done = Diagnosis(Outcome.COMPLETED, Category.NONE, FailureType.COMPLETED, 0.9, "rule:x")
    assert undecided(UNDECIDED)
    assert not undecided(decided)
    assert not undecided(done)
