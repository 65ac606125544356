"""What history says about a proposed rule."""

from dataclasses import replace

import pytest

from diagnoser.learning import template_rules, validation
from diagnoser.learning.rule_context import LabelledCase
from diagnoser.learning.validation import RuleHistory, ValidationCheck
from diagnoser.model import Diagnosis, Evidence, Template
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules.schema import Rule
from tests.unit.test_learning_template_rules import CONTEXT, UNKNOWN, case, draft, lines

LINE = "optical lane 4 lost carrier lock"
HIT, OTHER = lines(LINE), lines("optical lane 4 has carrier lock")
RIGHT = replace(UNKNOWN, type=FailureType.NVLINK_ERROR)
WRONG = replace(UNKNOWN, type=FailureType.ECC_ERROR)


@pytest.fixture
def rule() -> Rule:
    made = draft(LINE)
    assert made is not None
    text = template_rules.rule_text("learned_x", replace(CONTEXT, line=LINE), made)
    _, ruleset = validation.compiles("learned_x", text, "nvlink_error")
    assert ruleset is not None
    return ruleset.rules[0]


def replayed(rule: Rule, before: Diagnosis, after: Diagnosis, given: LabelledCase) -> tuple[bool, str]:
    """Whether the confirmed cases let the rule pass, and why, when its verdict on one would change like this."""
    history = RuleHistory(rule, lambda _, with_rule: after if with_rule else before)
    history.a_confirmed(given)
    (gate,) = [gate for gate in history.gates() if gate.name == ValidationCheck.REPLAY]
    return gate.passed, gate.reason


def test_a_confirmed_case_may_only_become_right(rule: Rule) -> None:
    """From undecided to the confirmed cause is a gain; any other change of a verdict refuses the rule."""
    given = case(UNKNOWN, HIT)  # confirmed as nvlink_error
    assert replayed(rule, UNKNOWN, RIGHT, given) == (
        True,
        "no verdict of 1 confirmed cases gets worse, 1 become right",
    )
    assert replayed(rule, UNKNOWN, UNKNOWN, given)[0]
    assert not replayed(rule, RIGHT, WRONG, given)[0]
    passed, why = replayed(rule, UNKNOWN, WRONG, given)
    assert not passed and why == "j/1 (nvlink_error) would become ecc_error instead of unknown"


def test_a_case_that_the_rule_does_not_touch_is_not_replayed(rule: Rule) -> None:
    """A rule can change a verdict only where it hits."""

    def never(given: LabelledCase, with_rule: bool) -> Diagnosis:
        raise AssertionError("replayed without need")

    history = RuleHistory(rule, never)
    history.a_confirmed(case(UNKNOWN, OTHER))
    assert validation.passed(history.gates())


def test_a_hit_in_a_healthy_log_is_told_with_its_line(rule: Rule) -> None:
    """Also when the compressor keeps the line only as a sample of its shape."""
    sample = Template(LINE, 9, (HIT[0].stream, 1), (HIT[0].stream, 9), frozenset(), (LINE,))
    for evidence in (Evidence(lines=HIT), Evidence(lines=OTHER, templates=(sample,))):
        history = RuleHistory(rule, lambda _, __: UNKNOWN)
        history.completed(replace(case(UNKNOWN, OTHER), evidence=evidence))
        healthy = history.gates()[0]
        assert (healthy.name, healthy.passed) == (ValidationCheck.HEALTHY, False)
        assert LINE in healthy.reason
    history = RuleHistory(rule, lambda _, __: UNKNOWN)
    history.of_other_type(case(UNKNOWN, HIT))
    assert [gate.passed for gate in history.gates()] == [True, False, True]


def test_a_pattern_that_takes_whatever_holds_its_anchor_is_refused(rule: Rule) -> None:
    """Few words alone do not make a failure; the anchor's own words may be enough when they tell."""
    assert validation.specific(rule, LINE).passed
    wide = rule.model_copy(update={"anchors": ("carrier lock",), "patterns": (".*carrier.*",)})
    assert "takes any line" in validation.specific(wide, LINE).reason
    vague = rule.model_copy(update={"anchors": ("error: failed",)})
    assert "only words that any failure prints" in validation.specific(vague, LINE).reason
