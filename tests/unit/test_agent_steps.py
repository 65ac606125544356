"""What to do next for a plan."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.agent.plan import End, Ready, Wait
from diagnoser.agent.slurm import steps
from diagnoser.agent.slurm.records import JobRecord, NodeRecord
from diagnoser.agent.slurm.steps import Do, Tried, View, Wanted
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

IDLE = NodeRecord("n1", frozenset({"IDLE"}))
WANT = Wanted("p1", Action.CORDON_AND_RESUBMIT, 7, 1, ("n1",), "ecc_error")
CHECK = replace(WANT, action=Action.CHECK_AND_RESUBMIT, nodes=())
FAILED = JobRecord(7, "FAILED", nodes=("n1", "n2"), uid=1001, gid=100, name="seven")
AGAIN = replace(FAILED, state="PENDING", restarts=1, nodes=())
REQUEUE = ("scontrol", "requeue", "7")
HOLD = ("scontrol", "requeuehold", "7")
SCRIPT = "/state/7.sh"


def view(job: JobRecord | None, node: NodeRecord = IDLE, copy: JobRecord | None = None) -> View:
    return View(job, copy, {"n1": node, "n2": NodeRecord("n2", frozenset({"IDLE"}))})


def plan(**fields: Any) -> dict[str, Any]:
    given = {"id": "p1", "job": "slurm-east-7", "attempt": 1, "action": "resubmit", "nodes": [], "rollback": None}
    return given | fields


def relaunched(job: JobRecord | None, *tried: Tried, want: Wanted = WANT, copy: JobRecord | None = None) -> steps.Next:
    return steps.relaunch(want, view(job, copy=copy), tried, SCRIPT)


def test_a_node_in_service_is_drained_for_our_reason() -> None:
    """The reason carries the plan, so that whoever takes over sees what has been done."""
    told = ("scontrol", "update", "nodename=n1", "state=drain", "reason=diagnoser p1: ecc_error")
    assert steps.drain(WANT, view(FAILED), ()) == Do(told, drains="n1")
    assert steps.drain(WANT, view(FAILED), (Tried(told, 0),)) is None


def test_a_node_that_is_drained_already_is_left_as_it_is() -> None:
    """By us before we died, or by a person: the reason is theirs."""
    assert steps.drain(WANT, view(FAILED, NodeRecord("n1", frozenset({"IDLE", "DRAIN"}), "see Ida")), ()) is None


def test_a_dead_node_is_drained_too() -> None:
    """Else it would come back into service by itself."""
    assert isinstance(steps.drain(WANT, view(FAILED, NodeRecord("n1", frozenset({"DOWN"}))), ()), Do)


def test_one_unknown_node_stops_all() -> None:
    """Nothing is drained for a plan that is partly about another cluster."""
    found = steps.drain(replace(WANT, nodes=("n1", "n9")), view(FAILED), ())
    assert isinstance(found, End)
    assert (found.reached, "n9" in found.detail) == (False, True)


def test_a_refused_drain_ends_the_plan() -> None:
    """With what Slurm said."""
    told = steps.drain(WANT, view(FAILED), ())
    assert isinstance(told, Do)
    found = steps.drain(WANT, view(FAILED), (Tried(told.command, 1, "Invalid user"),))
    assert found == End(False, "n1 could not be drained: Invalid user")


@pytest.mark.parametrize("state", ["FAILED", "RUNNING", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_a_job_that_failed_or_hangs_is_requeued(state: str) -> None:
    """Slurm ends what still runs."""
    assert relaunched(replace(FAILED, state=state)) == Do(REQUEUE)


def test_nothing_is_requeued_twice() -> None:
    """The number of launches tells, whoever asked for the requeue."""
    found = relaunched(AGAIN)
    assert isinstance(found, End)
    assert (found.reached, found.requeued) == (True, "7")
    assert isinstance(relaunched(FAILED, Tried(REQUEUE, 0)), Wait)
    assert isinstance(relaunched(replace(FAILED, completing=True)), Wait)


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (None, "no more"),
        (replace(FAILED, state="CANCELLED"), "cancelled"),
        (replace(FAILED, state="COMPLETED"), "well"),
        (replace(FAILED, batch=False), "no batch job"),
    ],
)
def test_what_must_not_run_again_does_not(job: JobRecord | None, word: str) -> None:
    """A person's cancel is respected, a job that is gone cannot be found."""
    found = relaunched(job)
    assert isinstance(found, End)
    assert (found.reached, word in found.detail) == (False, True)


def test_a_refused_requeue_becomes_a_submission() -> None:
    """Write the stored script, submit it for the same user without the bad node, then find it by its comment."""
    refused = Tried(REQUEUE, 1, "Requested operation is presently disabled")
    write = relaunched(FAILED, refused)
    assert write == Do(("scontrol", "write", "batch_script", "7", SCRIPT))
    submit = relaunched(FAILED, refused, Tried(write.command, 0))
    assert isinstance(submit, Do)
    assert submit.command[0] == "sbatch"
    assert {"--uid=1001", "--gid=100", "--exclude=n1", "--comment=diagnoser plan p1", "--job-name=seven"} < set(
        submit.command
    )
    assert "--export=DIAGNOSER_PLAN=p1" in submit.command
    assert isinstance(relaunched(FAILED, refused, Tried(write.command, 0), Tried(submit.command, 0)), Wait)
    copy = replace(FAILED, number=9, state="PENDING", comment=WANT.comment)
    assert relaunched(FAILED, refused, copy=copy) == End(True, "submitted anew as job 9: pending", "9")


def test_a_refused_submission_tells_both_refusals() -> None:
    """Why it was not requeued, and why not submitted."""
    refused, write = Tried(REQUEUE, 1, "disabled"), ("scontrol", "write", "batch_script", "7", SCRIPT)
    found = relaunched(FAILED, refused, Tried(write, 1, "no script"))
    assert isinstance(found, End)
    assert "disabled" in found.detail
    assert "no script" in found.detail


def test_a_rollback_is_submitted_before_the_old_job_is_stopped() -> None:
    """So that a death between the two leaves one of them; the new one waits for the end of the old one."""
    want = replace(WANT, action=Action.ROLLBACK_AND_RESUBMIT, nodes=(), variables=(("DIAGNOSER_CHECKPOINT", "/c/9"),))
    runs = replace(FAILED, state="RUNNING")
    write = relaunched(runs, want=want)
    assert isinstance(write, Do)
    submit = relaunched(runs, Tried(write.command, 0), want=want)
    assert isinstance(submit, Do)
    assert {"--dependency=afterany:7", "--export=DIAGNOSER_PLAN=p1,DIAGNOSER_CHECKPOINT=/c/9"} < set(submit.command)
    copy = replace(runs, number=9, state="PENDING", comment=want.comment)
    assert relaunched(runs, want=want, copy=copy) == Do(("scancel", "7"))
    assert isinstance(relaunched(replace(runs, state="CANCELLED"), want=want, copy=copy), End)


def test_a_check_holds_the_job_and_keeps_its_nodes() -> None:
    """Reserve, requeue and hold, check, release; a reservation that is refused does not stop it."""
    reserve = steps.hold(CHECK, view(FAILED), (), "slurm")
    assert isinstance(reserve, Do)
    assert {"nodes=n1,n2", "users=slurm", "flags=ignore_jobs"} < set(reserve.command)
    assert steps.hold(CHECK, view(FAILED), (Tried(reserve.command, 1),), "slurm") == Do(HOLD)
    held = replace(AGAIN, held=True)
    assert steps.hold(CHECK, view(held), (), "slurm") == Ready()
    assert relaunched(held, want=CHECK) == Do(("scontrol", "release", "7"))
    assert isinstance(relaunched(AGAIN, Tried(HOLD, 0), want=CHECK), End)


def test_a_job_that_runs_again_already_is_not_disturbed() -> None:
    """Its nodes are busy: they cannot be checked."""
    found = steps.hold(CHECK, view(replace(AGAIN, state="RUNNING")), (), "slurm")
    assert isinstance(found, End)
    assert not found.reached


def test_a_job_that_waits_is_held_for_the_check() -> None:
    """Slurm requeued it by itself."""
    assert steps.hold(CHECK, view(AGAIN), (), "slurm") == Do(("scontrol", "hold", "7"))


def test_a_plan_is_checked_before_use() -> None:
    """Names go to command lines, and a type to a drain's reason."""
    back = {"checkpoint": "/c/step 4", "step": 4, "skip_from": None, "skip_to": None}
    found = steps.wanted(plan(action="rollback_and_resubmit", rollback=back, nodes=["n1"]), "east", "loss spike!")
    assert (found.job, found.nodes, found.kind) == (7, ("n1",), "unknown")
    assert found.variables == (("DIAGNOSER_CHECKPOINT", "/c/step 4"), ("DIAGNOSER_CHECKPOINT_STEP", "4"))


@pytest.mark.parametrize(
    "bad",
    [
        {"job": "slurm-west-7"},
        {"job": "slurm-east-7;reboot"},
        {"job": "llm-7b"},
        {"id": "p 1"},
        {"nodes": ["-a"]},
        {"action": "rollback_and_resubmit", "rollback": {"checkpoint": "/c,LD_PRELOAD=/tmp/x.so"}},
        {"action": "rollback_and_resubmit"},
    ],
)
def test_a_plan_with_foreign_parts_is_refused(bad: dict[str, Any]) -> None:
    """A job of another cluster, an id or a name that could be an option, a value that ends its variable early."""
    with pytest.raises(BadInput):
        steps.wanted(plan(**bad), "east", "ecc_error")
