"""The policy table."""

from dataclasses import replace

import pytest

from diagnoser.adapters.files import bundled, text
from diagnoser.model import Advice, AttemptKey, Diagnosis, Mode, PlanState, Suspect
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from diagnoser.recovery.policy import Policy, PolicyCase, load

GPU_LOST = PolicyCase(FailureType.GPU_LOST, Category.INFRASTRUCTURE, 0.95, node_named=True, stable=True)
DIAGNOSIS = Diagnosis(
    Outcome.FAILED,
    Category.INFRASTRUCTURE,
    FailureType.GPU_LOST,
    0.95,
    "rule:x",
    nodes=(Suspect("gpu-1", 0.9, "it says so"), Suspect("gpu-2", 0.1, "")),
    recovery=Advice(Action.CORDON_AND_RESUBMIT, "broken_node_named"),
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load("policy.yaml", text(bundled("rules") / "policy.yaml"))


def test_a_named_broken_node_is_cordoned(policy: Policy) -> None:
    """Sure, stable and named: the node leaves the pool."""
    assert policy.advise(GPU_LOST).action is Action.CORDON_AND_RESUBMIT


@pytest.mark.parametrize("weaker", [{"node_named": False}, {"stable": False}, {"confidence": 0.5}])
def test_nothing_less_than_all_of_it_cordons(policy: Policy, weaker: dict[str, object]) -> None:
    """Without the node, without a rule or in doubt, nodes are checked first."""
    assert policy.advise(replace(GPU_LOST, **weaker)).action is Action.CHECK_AND_RESUBMIT  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind in FailureType if category_of(kind) is not Category.INFRASTRUCTURE])
def test_only_infrastructure_can_be_cordoned(policy: Policy, kind: FailureType) -> None:
    """However sure the verdict, script, framework and unknown causes never take a node away."""
    case = PolicyCase(kind, category_of(kind), 1.0, node_named=True, stable=True)
    assert policy.advise(case).action is not Action.CORDON_AND_RESUBMIT


def test_a_rule_can_ask_for_less_than_the_table(policy: Policy) -> None:
    """A rule that knows better (an access denied by the store) turns a resubmit into a word to the user."""
    case = PolicyCase(FailureType.S3_STORAGE_ERROR, Category.INFRASTRUCTURE, 0.9, True, True, Action.NOTIFY_USER)
    assert policy.advise(case).action is Action.NOTIFY_USER
    assert policy.advise(replace(case, hint=None)).action is Action.RESUBMIT


@pytest.mark.parametrize("kind", FailureType)
def test_a_sandbox_rule_moves_nothing(policy: Policy, kind: FailureType) -> None:
    """Whatever its type, its confidence and the action that it asks for: a person is told, or nobody."""
    for hint in (None, *Action):
        case = PolicyCase(kind, category_of(kind), 1.0, node_named=True, stable=False, sandbox=True, hint=hint)
        assert policy.advise(case).action in (Action.NONE, Action.NOTIFY_USER)


@pytest.mark.parametrize("kind", FailureType)
def test_a_guess_is_looked_at_first(policy: Policy, kind: FailureType) -> None:
    """Below even odds no node goes and nothing is launched again unchecked, whatever a rule asks for."""
    safe = (Action.NONE, Action.NOTIFY_USER, Action.CHECK_AND_RESUBMIT)
    for hint in (None, *Action):
        case = PolicyCase(kind, category_of(kind), 0.49, node_named=True, stable=True, hint=hint)
        assert policy.advise(case).action in safe


def test_every_verdict_has_an_action_and_a_reason(policy: Policy) -> None:
    """The table leaves no type without a row."""
    rows = {row.id for row in policy.table.rows}
    for kind in FailureType:
        advice = policy.advise(PolicyCase(kind, category_of(kind), 0.5, False, False))
        assert advice.reason in rows


def test_explain_says_why_earlier_rows_did_not_apply(policy: Policy) -> None:
    """The last row told applies; each one before has a reason."""
    told = policy.explain(GPU_LOST)
    assert told[-1] == ("broken_node_named", "")
    assert all(why for _, why in told[:-1])


def test_the_default_plan_only_advises(policy: Policy) -> None:
    """Observe is the default: the plan names the first suspect and is not sent."""
    plan = policy.plan("p1", AttemptKey("j", 2), DIAGNOSIS, 100.0)
    assert plan is not None
    assert (plan.mode, plan.state, plan.nodes) == (Mode.OBSERVE, PlanState.ADVISED, ("gpu-1",))
    assert plan.expires == 100.0 + 3600


def test_the_same_decision_has_the_same_key(policy: Policy) -> None:
    """A plan decided twice is one plan; another attempt's is another."""
    first = policy.plan("p1", AttemptKey("j", 2), DIAGNOSIS, 100.0)
    again = policy.plan("p2", AttemptKey("j", 2), DIAGNOSIS, 900.0)
    other = policy.plan("p3", AttemptKey("j", 3), DIAGNOSIS, 100.0)
    assert first is not None and again is not None and other is not None
    assert first.key == again.key != other.key


def test_nothing_to_do_is_no_plan(policy: Policy) -> None:
    """A completed job gets no plan."""
    sound = replace(DIAGNOSIS, recovery=Advice(Action.NONE, "no_fault"))
    assert policy.plan("p1", AttemptKey("j"), sound, 100.0) is None


def test_a_faulty_table_tells_all_its_faults() -> None:
    """A doubled row, a hinted action without its condition and a last row with conditions are told together."""
    document = """
version: 1
defaults: {}
rows:
  - {id: a, when: {}, action: none}
  - {id: a, when: {types: [gpu_lost]}, action: hinted}
"""
    with pytest.raises(RuleFaults) as error:
        load("p.yaml", document)
    assert [fault.line for fault in error.value.faults] == [6, 6, 6]


LABELLED = """
version: 1
defaults: {mode: observe, retries: 3}
rows:
  - {id: debug_jobs, when: {labels: {qos: [debug, test]}}, action: notify_user, retries: 0, cool_down_minutes: 5}
  - {id: rest, when: {}, action: check_and_resubmit, mode: act}
"""


@pytest.mark.parametrize(
    ("labels", "row", "why"),
    [
        ({"qos": "test"}, "debug_jobs", ""),
        ({"qos": "high"}, "rest", "label qos is high"),
        ({}, "rest", "label qos is not set"),
    ],
)
def test_a_row_may_ask_for_labels_of_the_job(labels: dict[str, str], row: str, why: str) -> None:
    """One of the values of every label it names; the explanation says which label did not fit."""
    policy = load("policy.yaml", LABELLED)
    case = replace(GPU_LOST, labels=labels)
    assert policy.advise(case).reason == row
    assert policy.explain(case)[0] == ("debug_jobs", why)


def test_rows_have_retries_and_cool_downs_of_their_own() -> None:
    """What a row does not say comes from the defaults, also for a row that is gone."""
    policy = load("policy.yaml", LABELLED)
    assert [policy.retries(row) for row in ("debug_jobs", "rest", "gone")] == [0, 3, 3]
    assert [policy.cool_down(row) for row in ("debug_jobs", "rest")] == [300.0, 0.0]
