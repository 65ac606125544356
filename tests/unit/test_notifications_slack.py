"""Slack messages: verdict first, and nothing from a log gets out of its place."""

import json
from dataclasses import replace
from typing import Any

import pytest

from diagnoser.channels.slack.message import code, escape, slack_message
from diagnoser.model import (
    Advice,
    Diagnosis,
    HangFindings,
    HangSuspect,
    Job,
    PlanChange,
    PlanState,
    Rival,
    RootCause,
    Suspect,
    SuspectKind,
)
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.notifications.alert import Redact, failure_alert, plan_alert
from diagnoser.redaction.redact import redact
from tests.contract.records import plan

LOST = Diagnosis(
    outcome=Outcome.FAILED,
    category=Category.INFRASTRUCTURE,
    type=FailureType.GPU_LOST,
    confidence=0.93,
    decided_by="rule:gpu-lost",
    root_cause=RootCause(41, "NVRM: Xid (PCI:0000:4f:00): 79", rank=12, node="gpu-004", gpu="0000:4f:00"),
    nodes=(Suspect("gpu-004", 0.9, "its GPU is gone"),),
    recovery=Advice(Action.CORDON_AND_RESUBMIT, "a direct signal names the node"),
    mitigation="Reset the GPU and run the field diagnostics.",
)


def texts(message: dict[str, object]) -> str:
    return json.dumps(message, ensure_ascii=False)


def told(verdict: Diagnosis, *, job: str, attempt: int, link: str = "", redact: Redact = str) -> dict[str, Any]:
    """The message about a verdict."""
    return slack_message(failure_alert(verdict, Job(job), attempt, incident="i", id="1", link=link, redact=redact))


def with_line(text: str) -> Diagnosis:
    return replace(LOST, root_cause=RootCause(1, text))


def test_the_verdict_comes_first() -> None:
    """Header and notification text are the sentence that the page begins with, then whose job it is."""
    message = told(LOST, job="llama-70b", attempt=2, link="http://diagnoser/d/1")
    title = "Rank 12 on gpu-004 lost its GPU (Xid 79) (llama-70b, attempt 2)"
    assert message["text"] == title
    blocks = message["blocks"]
    assert isinstance(blocks, list)
    assert blocks[0] == {"type": "header", "text": {"type": "plain_text", "text": title, "emoji": False}}
    assert [block["type"] for block in blocks] == ["header", "section", "section", "section", "context"]


@pytest.mark.parametrize(
    "part",
    [
        "*Rank*\\n12",
        "`gpu-004`",
        "`0000:4f:00`",
        "93%",
        "```NVRM: Xid (PCI:0000:4f:00): 79```",
        "*Line 41 of ",
        "*Next* Cordon the node and resubmit",
        "a direct signal names the node",
        "Reset the GPU",
        "<http://diagnoser/d/1|Open the diagnosis>",
        "`rule gpu-lost`",
    ],
)
def test_what_a_person_needs_is_in_the_message(part: str) -> None:
    """Rank, node, GPU, line, action, mitigation and the link are shown."""
    assert part in texts(told(LOST, job="llama-70b", attempt=2, link="http://diagnoser/d/1"))


def test_a_diagnosis_without_a_cause_has_no_empty_parts() -> None:
    """What is not known is left out instead of shown as None."""
    bare = Diagnosis(Outcome.HUNG, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:silence")
    message = told(bare, job="llama-70b", attempt=1)
    assert message["text"] == "The job hangs, and no rule knows why (llama-70b, attempt 1)"
    assert "None" not in texts(message)
    assert "*Line" not in texts(message)
    assert "Open" not in texts(message)


def test_a_guess_is_called_one() -> None:
    """An answer below even odds is no cause."""
    guess = replace(LOST, confidence=0.4, rivals=(Rival(FailureType.ECC_ERROR, 7, 0.3),))
    message = told(guess, job="llama-70b", attempt=1)
    assert message["text"] == (
        "The job failed, and the cause is unknown, most likely gpu lost (40%) or ecc error (30%) (llama-70b, attempt 1)"
    )


@pytest.mark.parametrize("attack", ["<!channel>", "<@U123>", "<https://evil.example|Slack>", "&lt;!here&gt;"])
def test_log_text_can_neither_mention_nor_link(attack: str) -> None:
    """Control characters of Slack's markup are escaped wherever text comes from outside."""
    verdict = replace(
        with_line(attack), mitigation=attack, nodes=(Suspect(attack, 1.0, ""),), recovery=Advice(Action.NONE, attack)
    )
    message = told(verdict, job="job", attempt=1)
    assert attack not in texts(message)
    assert texts(message).count(escape(attack)) == 6
    assert attack not in str(told(LOST, job=attack, attempt=1)["text"])


def test_a_line_cannot_leave_its_code_block() -> None:
    """Backticks are shown as a look-alike, and terminal codes as blanks."""
    assert "`" not in code("``` *bold* ```")
    assert code("a\x1b[31mb\tc\nd") == "a [31mb c\nd"


@pytest.mark.parametrize("char", ["x", "&", "<", "`", "\U0001f4a5"])
def test_long_text_fits_the_limits_of_slack(char: str) -> None:
    """3,000 characters a section, 2,000 a field, 150 a header, after escaping, and no escape is cut in two."""
    long = char * 20_000
    verdict = replace(
        with_line(long),
        mitigation=long,
        recovery=Advice(Action.NONE, long),
        decided_by=long,
        nodes=tuple(Suspect(long, 1.0, "") for _ in range(9)),
    )
    message = told(verdict, job=long, attempt=1)
    blocks = message["blocks"]
    assert isinstance(blocks, list)
    header, facts, *sections = blocks
    assert len(header["text"]["text"]) <= 150
    assert all(len(field["text"]) <= 2000 for field in facts["fields"])
    assert len(facts["fields"]) <= 10
    for section in sections:
        shown = section["text"]["text"]
        assert len(shown) <= 3000
        assert shown.count("&") == shown.count(";")


def test_stragglers_and_silences_are_told() -> None:
    """The notes of a diagnosis stand below its cause, escaped and few enough for Slack."""
    slow = "Rank 3 on <gpu-3> is a straggler"
    message = told(replace(LOST, notes=(slow,)), job="j", attempt=1)
    assert "\N{BULLET} Rank 3 on &lt;gpu-3&gt; is a straggler" in texts(message)
    many = told(replace(LOST, notes=50 * ("<" * 1000,)), job="j", attempt=1)
    assert all(len(str(block)) <= 3100 for block in many["blocks"])


def test_secrets_are_masked_before_the_chat_sees_them() -> None:
    """The mask that is passed in sees all log text."""
    message = told(
        with_line("token=abc123"), job="job", attempt=1, redact=lambda text: text.replace("abc123", "[masked]")
    )
    assert "abc123" not in texts(message)
    assert "token=[masked]" in texts(message)


def test_what_an_executor_reports_is_masked_and_escaped() -> None:
    """Its words reach a chat without secrets, and can neither link nor mention."""
    why = "drain failed: token=s3cr3ts3cr3t <!channel>"
    failed = replace(plan(), history=(PlanChange(1.0, PlanState.NOT_REACHED, "slurm", why),))
    message = texts(slack_message(plan_alert(failed, redact=redact)))
    assert "s3cr3t" not in message
    assert "<!channel>" not in message
    assert "drain failed" in message


def test_a_verdict_that_needs_review_says_so() -> None:
    """With the reason, escaped and masked like all that comes from a log or a model."""
    asked = replace(LOST, needs_review="the model says <!channel> with hf_aBcDeFgHiJkLmNoPqRsTuVwX")
    body = texts(told(asked, job="j", attempt=1, redact=redact))
    assert "*Needs review* the model says &lt;!channel&gt; with &lt;token&gt;" in body
    assert "Needs review" not in texts(told(LOST, job="j", attempt=1))


def test_a_hang_says_who_holds_up_how_many() -> None:
    """In the title and with what the runtime recorded, which has no line; a hostile node name stays text."""
    suspect = HangSuspect(12, SuspectKind.BEHIND, "15 ranks wait for it", 0.95, "gpu-017<!here>")
    hung = replace(
        LOST,
        outcome=Outcome.HUNG,
        root_cause=RootCause(0, "rank 12: 15 ranks wait for it", 12, "gpu-017", source="flight_recorder"),
        hang=HangFindings((suspect,), waiting=15),
    )
    message = told(hung, job="llama-70b", attempt=2)
    assert message["text"] == (
        "The job hangs: rank 12 on gpu-017&lt;!here&gt; holds up 15 ranks (llama-70b, attempt 2)"
    )
    body = texts(message)
    assert "*Flight recorder*\\n```rank 12: 15 ranks wait for it```" in body
    assert "Line 0" not in body
    elsewhere = replace(hung, root_cause=RootCause(41, "NVRM: Xid 79", rank=3))
    assert told(elsewhere, job="j", attempt=1)["text"] == (
        "The job hangs. Rank 3 on gpu-004 lost its GPU (j, attempt 1)"
    )
