"""A rule from the shape of one line."""

from dataclasses import replace

import pytest
import re2
import yaml

from diagnoser.learning import rule_context, template_rules, validation
from diagnoser.learning.rule_context import LabelledCase, RuleContext
from diagnoser.llm.view import Pseudonymizer
from diagnoser.model import (
    AttemptKey,
    Diagnosis,
    Evidence,
    Facts,
    Feedback,
    FeedbackVerdict,
    Job,
    Line,
    Rejected,
    Stream,
    Symptom,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.redaction.redact import redact
from diagnoser.rules.schema import Blame

CONTEXT = RuleContext(FailureType.NVLINK_ERROR, "", (), ("step 1 loss 2.0",), (), Blame.NONE, "", "host-")


def draft(line: str) -> template_rules.RuleDraft | None:
    return template_rules.from_shape(replace(CONTEXT, line=line))


@pytest.mark.parametrize(
    ("line", "again", "other"),
    [
        (
            "[2026-03-02 11:00:02] optical lane 4 of host-3 lost carrier lock, errno=71",
            "[2027-01-09 23:10:59] optical lane 112 of host-17 lost carrier lock, errno=71",
            "[2026-03-02 11:00:02] optical lane 4 of host-3 lost carrier lock, errno=5",
        ),
        (
            "quantix.HbmRefreshError: stack 3 of device 0x1f missed refresh window at /data/x/y.bin",
            "quantix.HbmRefreshError: stack 14 of device 0xbeef missed refresh window at /scratch/z",
            "quantix.HbmRefreshError: stack 3 of device 0x1f opened refresh window at /data/x/y.bin",
        ),
        (
            "feeder: shard 8f14e45f-ceea-467f-9575-6a1d3a2f0c11 from https://s3.corp/b?x=1 fails its merkle proof",
            "feeder: shard 00aabbcc-ceea-467f-9575-6a1d3a2f0c11 from https://mirror/other fails its merkle proof",
            "feeder: shard 8f14e45f-ceea-467f-9575-6a1d3a2f0c11 from https://s3.corp/b?x=1 has its merkle proof",
        ),
    ],
)
def test_what_varies_is_open_and_what_is_said_stays(line: str, again: str, other: str) -> None:
    """Times, hosts, numbers, ids, paths and addresses may differ; words and error codes may not."""
    made = draft(line)
    assert made is not None
    (pattern,) = made.patterns
    assert re2.search(pattern, line) and re2.search(pattern, again) and not re2.search(pattern, other)
    assert all(anchor in line and anchor in again and not any(map(str.isdigit, anchor)) for anchor in made.anchors)


@pytest.mark.parametrize(
    "line", ["RuntimeError: failed", "process exited with error code 3", "12345 67", "", "Error: 0x1f at /a/b/c"]
)
def test_a_line_without_words_of_its_own_makes_no_rule(line: str) -> None:
    """What any failure prints cannot tell this one."""
    assert draft(line) is None


def test_any_line_makes_a_file_that_can_be_read_back() -> None:
    """Quotes, colons, control signs, other scripts: the text is YAML, and its example is the line."""
    line = "mesh: \"ring\" #2 said '{broken}: yes' – длинная очередь \\d+ [x](y) *lost* phase lock"
    made = draft(line)
    assert made is not None
    text = template_rules.rule_text("learned_x", replace(CONTEXT, line=line), made)
    gate, ruleset = validation.compiles("learned_x", text, "nvlink_error")
    assert gate.passed and ruleset is not None, gate.reason
    assert yaml.safe_load(text)["examples"]["match"] == [line]


def test_counter_examples_are_the_healthy_lines_that_look_most_alike() -> None:
    """The nearest first, each once, and none that the rule itself matches."""
    line = "optical lane 4 lost carrier lock"
    near = rule_context.nearest(line, ["step 1 loss 2", "optical lane 4 has carrier lock", "step 2 loss 1", line], 2)
    assert near == ("optical lane 4 has carrier lock", "step 2 loss 1")
    made = template_rules.RuleDraft("t", ("carrier lock",), ("carrier lock",))
    text = template_rules.rule_text("learned_x", replace(CONTEXT, line=line, healthy=near), made)
    assert yaml.safe_load(text)["examples"]["no_match"] == ["step 2 loss 1"]


def test_text_for_a_rule_names_no_secret_and_no_host() -> None:
    """Known nodes by aliases; what only looks like a host as well; placeholders are one word."""
    hidden = Pseudonymizer(redact, ["gpu-017"])
    told = rule_context.hidden("gpu-017 asked db-14.corp, 10.0.0.9, https://a:b@c/d and mia@corp.com", hidden)
    cut = rule_context.hidden("x" * (rule_context.LONGEST - 20) + " hf_aBcDeFgHiJkLmNoPqRsTuVwX", hidden)
    assert "hf_" not in cut and len(cut) <= rule_context.LONGEST
    assert told == "host-1 asked host-0, host-2, https://<url-password>c/d and <e-mail>"


def test_a_learned_rule_claims_no_more_than_it_may() -> None:
    """Stable maturity, an action, another role, type or id, and explaining everything are refused."""
    made = draft("optical lane 4 lost carrier lock")
    assert made is not None
    text = template_rules.rule_text("learned_x", replace(CONTEXT, line="optical lane 4 lost carrier lock"), made)
    assert validation.compiles("learned_x", text, "nvlink_error")[0].passed
    for change in (
        ("maturity: sandbox", "maturity: stable"),
        ("maturity: sandbox", "maturity: sandbox\naction: cordon_and_resubmit"),
        ("role: root", "role: benign"),
        ("id: learned_x", "id: learned_y"),
        ("type: nvlink_error", "type: ecc_error"),
        ("specificity: message", "specificity: message\nexplains: [all]"),
        ("lock", "lo(ck"),
    ):
        assert not validation.compiles("learned_x", text.replace(*change), "nvlink_error")[0].passed, change


def lines(*texts: str) -> tuple[Line, ...]:
    return tuple(Line(Stream(), number, text, text, rank=3) for number, text in enumerate(texts, 1))


def case(diagnosis: Diagnosis, kept: tuple[Line, ...], node: str | None = None) -> LabelledCase:
    said = Feedback("f", "d", 1.0, FeedbackVerdict.CORRECTED, "maria", FailureType.NVLINK_ERROR, 1, node)
    record = DiagnosisRecord("d", AttemptKey("j"), 1, 0.0, True, diagnosis, None, (said,))
    facts = Facts(Job("j", nodes=("gpu-7",), rank_nodes={3: "gpu-7"}))
    return LabelledCase(record, facts, Evidence(lines=kept))


UNKNOWN = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")


def test_a_rule_explains_what_came_after_its_root_in_its_case() -> None:
    """Symptoms and later candidates of other types; not what came before, nor its own type, nor ends."""
    followed = replace(
        UNKNOWN,
        symptoms=(Symptom(5, "x", FailureType.NCCL_TIMEOUT_ERROR),),
        rejected=(
            Rejected(7, "x", FailureType.CONNECTION_ERROR, "came after the root"),
            Rejected(8, "x", FailureType.NVLINK_ERROR, "came after the root"),
            Rejected(9, "x", FailureType.CANCELLED, "came after the root"),
            Rejected(9, "x", FailureType.KEY_ERROR, "training went on after it"),
        ),
    )
    kept = lines("optical lane lost carrier lock", "noise")
    made = rule_context.from_case(case(followed, kept), kept[0], (), redact)
    assert made.explains == (FailureType.NCCL_TIMEOUT_ERROR, FailureType.CONNECTION_ERROR)


@pytest.mark.parametrize(("node", "blame"), [("gpu-7", Blame.SELF), ("gpu-8", Blame.NONE), (None, Blame.NONE)])
def test_a_line_speaks_of_its_own_rank_only_where_that_is_known(node: str | None, blame: Blame) -> None:
    """The person named the node of the rank that prints it; another one, or none, blames nobody by itself."""
    kept = lines("optical lane lost carrier lock")
    assert rule_context.from_case(case(UNKNOWN, kept, node), kept[0], (), redact).blame is blame
