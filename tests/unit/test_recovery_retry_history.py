"""How far a launch came, by the best measure there is, and what counts as further."""

from dataclasses import replace

import pytest

from diagnoser.model import Attempt, AttemptKey, Compression, Event, EventKind, Job, Plan, PlanState
from diagnoser.recovery import retry_history
from tests.contract.records import plan
from tests.serving import ECC

ATTEMPT = Attempt(AttemptKey("j", 1), 1000.0, last_line=1500.0)
SAVED = Event(EventKind.CHECKPOINT, 1100.0, step=400)
READ = replace(ECC, compression=Compression(lines_in=777, bytes_in=1, lines_out=1, bytes_out=1))


def test_progress_is_measured_by_the_best_there_is() -> None:
    """Training steps, else checkpoint events, else elapsed time, else lines of log."""
    with_checkpoints = replace(ATTEMPT, events=(replace(SAVED, step=200), SAVED, replace(SAVED, step=None)))
    assert retry_history.progress(replace(READ, step=512), with_checkpoints) == ("step", 512.0)
    assert retry_history.progress(READ, with_checkpoints) == ("checkpoint", 400.0)
    assert retry_history.progress(READ, ATTEMPT) == ("seconds", 500.0)
    assert retry_history.progress(READ, replace(ATTEMPT, ended=1600.0)) == ("seconds", 600.0)
    assert retry_history.progress(READ, replace(ATTEMPT, last_line=0.0)) == ("lines", 777.0)


@pytest.mark.parametrize(
    ("now", "before", "further"),
    [
        (("step", 101.0), ("step", 100.0), True),
        (("step", 100.0), ("step", 100.0), False),
        (("checkpoint", 401.0), ("checkpoint", 400.0), True),
        (("seconds", 140.0), ("seconds", 100.0), False),
        (("seconds", 151.0), ("seconds", 100.0), True),
        (("lines", 149.0), ("lines", 100.0), False),
        (("lines", 151.0), ("lines", 100.0), True),
        (("step", 900.0), ("seconds", 100.0), False),
    ],
)
def test_what_varies_by_itself_must_be_clearly_more(
    now: tuple[str, float], before: tuple[str, float], further: bool
) -> None:
    """Steps and checkpoints are exact; time and volume are not, and different measures cannot be compared."""
    assert retry_history.is_further(now, before) == further


def failed(attempt: int) -> Plan:
    """A plan for a launch, carried out."""
    made = replace(plan(AttemptKey("j", attempt)), cluster="east", tenant="ida", suspects=("n1", "n2"))
    return replace(made, state=PlanState.REACHED, created=1.0)


def test_a_launch_without_a_step_hides_no_progress() -> None:
    """It died before its first one: those around it show that the training goes on."""
    launches = [("step", 100.0), ("seconds", 9.0), ("step", 200.0), ("seconds", 9.0)]
    earlier = [replace(failed(number), progress=progress) for number, progress in enumerate(launches)]
    assert retry_history.launches_without_progress(replace(failed(9), progress=("step", 300.0)), earlier) == 1
    assert retry_history.launches_without_progress(replace(failed(9), progress=("step", 200.0)), earlier) == 3


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        ({}, True),
        ({"state": PlanState.REFUSED}, True),
        ({"state": PlanState.SUPERSEDED}, False),
        ({"tenant": "ida"}, False),
        ({"tenant": ""}, False),
        ({"cluster": "west"}, False),
        ({"suspects": ("n2", "n1")}, False),
        ({"suspects": ()}, False),
        ({"created": 0.0}, False),
        ({"job": "j9", "attempt": 9}, False),
    ],
)
def test_another_tenants_suspicion_is_of_the_same_node_within_a_week(other: dict[str, object], counts: bool) -> None:
    """First suspects only, in one cluster, of plans that stand."""
    week = retry_history.SUSPICION_SECONDS
    ours = replace(failed(9), job="j9", tenant="ida")
    theirs = replace(replace(failed(1), tenant="eve", job="j1"), **other)  # type: ignore[arg-type]
    assert retry_history.suspected_by_others(ours, [theirs], week) == ((theirs,) if counts else ())
    for unknown in (replace(ours, tenant=""), replace(ours, suspects=())):
        assert retry_history.suspected_by_others(unknown, [theirs], week) == ()


def test_launches_of_one_training_are_one_family() -> None:
    """By label, else by name without its numbers, else by id; never nothing."""
    assert retry_history.family(Job("slurm-east-7", name="llama-70b_run12")) == retry_history.family(
        Job("x", name="llama-70b_run13")
    )
    assert retry_history.family(Job("7", name="a", labels={"family": "pretrain"})) == "pretrain"
    assert retry_history.family(Job("1234")) == "1234"


def test_a_failure_is_known_by_its_type_and_shape() -> None:
    """Other numbers and addresses are the same failure; another type is not."""
    assert ECC.root_cause is not None
    other = replace(ECC, root_cause=replace(ECC.root_cause, text=ECC.root_cause.text.replace("48112", "9")))
    assert retry_history.fingerprint(other) == retry_history.fingerprint(ECC)
    assert retry_history.fingerprint(replace(ECC, root_cause=None)) != retry_history.fingerprint(ECC)
