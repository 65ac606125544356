"""What a job file promises and asks for: read, shown, and heeded for this job alone."""

import json
from dataclasses import replace

import orjson
import pytest

from diagnoser.agent.kubernetes.parsing import _labels
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.agent.slurm import reconcile
from diagnoser.agent.slurm.parsing import JobRecord, parse_jobs
from diagnoser.localize.hang_detection import ExpectedSilence, agreed_silence
from diagnoser.model import Job, MetricEvent, MetricEventKind, Progress, Stage
from diagnoser.model.job_contract import JobContract, contract_of, labels_of
from diagnoser.model.taxonomy import Action
from diagnoser.notifications.alert import metric_alert
from diagnoser.wording.phrases import contract_terms

FULL = {"owner": "ml-platform", "notify": "llm", "first_step_within": "45m", "cadence": "10m", "relaunches": 1}
SPEC = PlanSpec("p1", Action.CORDON_AND_RESUBMIT, "slurm-east-7", 1, ("n1",), "ecc_error")


def with_contract(text: str) -> Job:
    return Job("j", labels={"contract": text, "qos": "high"})


def test_a_contract_is_read_and_said_in_words() -> None:
    job = with_contract(json.dumps(FULL))
    contract = contract_of(job)
    assert contract == JobContract("ml-platform", "llm", 2700.0, 600.0, 1)
    assert labels_of(job) == {**job.labels, "owner": "ml-platform", "notify": "llm"}
    assert "; ".join(contract_terms(contract)).replace("\u00a0", " ") == (
        "owned by ml-platform; alerts carry the label notify: llm; silent for at most 45 min before its first steps; "
        "a step at least every 10 min; launched again at most 1 time after the same failure"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{"ownr": "me"}',
            "there is no field 'ownr' (there are owner, notify, first_step_within, cadence",
        ),
        ('{"cadence": "soon"}', "cadence: 'soon' is no span of time: write 30m, 12h or 90d"),
        ('{"cadence": "3d"}', "cadence: write a span from 1m to 1d"),
        ('{"relaunches": "2"}', "relaunches: Input should be a valid integer"),
        ("[1]", 'it is no JSON object, such as {"cadence": "30m"}'),
        ("{", "it is not JSON"),
        ('{"a":' * 150 + "1" + "}" * 150, "there is no field 'a'"),
        ("[" * 2000, "it has more than 1000 characters"),
    ],
)
def test_a_wrong_contract_counts_for_nothing_and_says_what_is_wrong(text: str, problem: str) -> None:
    """Not even the fields that are right: half a contract is none that somebody wrote."""
    contract = contract_of(with_contract(text))
    assert contract.problem.startswith(problem)
    assert replace(contract, problem="") == JobContract()


@pytest.mark.parametrize(
    ("stage", "in_training", "limits"),
    [
        (Stage.TRAIN, 0.0, (2700.0, 2700.0)),  # before its first steps
        (Stage.TRAIN, 60.0, (600.0, 600.0)),
        (Stage.EVAL, 60.0, (120.0, 300.0)),  # of which the contract says nothing
    ],
)
def test_a_job_is_silent_for_as_long_as_its_contract_says(
    stage: Stage, in_training: float, limits: tuple[float, float]
) -> None:
    """Longer or shorter than its log lets expect."""
    expected = ExpectedSilence(stage, 0.0, 10.0, 120.0, 300.0, in_training)
    agreed = agreed_silence(expected, contract_of(with_contract(json.dumps(FULL))))
    assert agreed is not None
    assert (agreed.suspected, agreed.confirmed) == limits
    assert agreed_silence(expected, JobContract()) == expected


@pytest.mark.parametrize(
    ("comment", "label"),
    [
        ('{"diagnoser": {"cadence": "10m"}}', '{"cadence":"10m"}'),
        ('sweep 7 { "diagnoser": {"cadence": "10m"}}', '{"cadence":"10m"}'),
        ('{"diagnoser": {"cadence": }}', '{"diagnoser": {"cadence": }}'),
        ('{"wandb": "diagnoser"}', ""),
        ("diagnoser", ""),
    ],
)
def test_the_agent_reads_the_contract_in_the_comment_of_a_slurm_job(comment: str, label: str) -> None:
    """What is meant for diagnoser and cannot be read is passed on, so that its owner hears of it."""
    assert slurm_job(comment).labels.get("contract", "") == label


def slurm_job(comment: str) -> JobRecord:
    row = {"job_id": 7, "job_state": "RUNNING", "nodes": "n1", "comment": comment}
    return parse_jobs(orjson.dumps({"jobs": [row]}).decode())[7]


def test_a_job_that_a_plan_submits_keeps_its_contract_and_is_recognised() -> None:
    job = slurm_job('{"diagnoser": {"cadence": "10m"}}')
    copy = slurm_job(reconcile.comment_of_copy(SPEC, job))
    assert copy.labels == job.labels
    assert reconcile.is_copy(copy, SPEC)
    assert not reconcile.is_copy(job, SPEC)
    assert reconcile.is_copy(slurm_job(reconcile.comment_of_copy(SPEC, slurm_job(""))), SPEC)


def test_the_agent_reads_the_contract_in_the_annotation_of_a_workload() -> None:
    """Without what no database stores."""
    annotated = {"annotations": {"diagnoser.io/contract": '{\n"cadence": "10m"\x00}\n'}}
    assert _labels(annotated) == {"contract": '{"cadence": "10m"}'}


def test_an_alert_can_be_routed_by_what_the_contract_names() -> None:
    event = MetricEvent(MetricEventKind.BAD_CONTRACT, Progress(0, -1, 0.0), "why")
    assert metric_alert(with_contract(json.dumps(FULL)), 1, event).labels["notify"] == "llm"
