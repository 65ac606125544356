"""What to do next for a plan."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.agent.cluster import Attempts, Command, CommandAttempt, Done, Held, NextStep, Run, Wait
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.agent.slurm import reconcile
from diagnoser.agent.slurm.cluster import SlurmCluster
from diagnoser.agent.slurm.commands import Slurm
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.agent.slurm.reconcile import SlurmState
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

SPEC = PlanSpec("p1", Action.CORDON_AND_RESUBMIT, "slurm-east-7", 1, ("n1",), "ecc_error")
CHECK = replace(SPEC, action=Action.CHECK_AND_RESUBMIT, nodes=())
FAILED = JobRecord(7, "FAILED", nodes=("n1", "n2"), uid=1001, gid=100, name="seven")
AGAIN = replace(FAILED, state="PENDING", restarts=1, nodes=())
REQUEUE = Command(("scontrol", "requeue", "7"))
HOLD = Command(("scontrol", "requeuehold", "7"))
SCRIPT = "/state/7.sh"


CLUSTER = SlurmCluster(Slurm(), "east")


def plan(**fields: Any) -> dict[str, Any]:
    given = {"id": "p1", "job": "slurm-east-7", "attempt": 1, "action": "resubmit", "nodes": [], "rollback": None}
    return given | fields


def scontrol(*words: str) -> Command:
    return Command(("scontrol", *words))


def relaunched(
    job: JobRecord | None, *attempts: CommandAttempt, spec: PlanSpec = SPEC, copy: JobRecord | None = None
) -> NextStep:
    return reconcile.relaunch(spec, SlurmState(job, copy, "slurm", SCRIPT), Attempts(attempts))


def held(job: JobRecord, *attempts: CommandAttempt) -> NextStep:
    return reconcile.hold(CHECK, SlurmState(job, None, "slurm"), Attempts(attempts))


@pytest.mark.parametrize("state", ["FAILED", "RUNNING", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_a_job_that_failed_or_hangs_is_requeued(state: str) -> None:
    """Slurm ends what still runs."""
    assert relaunched(replace(FAILED, state=state)) == Run(REQUEUE)


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_job_runs_while_slurm_shows_the_launch_of_the_plan(state: str) -> None:
    """Not one that ends, another launch, or a job whose rollback was submitted already."""
    runs = replace(FAILED, state=state)
    assert reconcile.running(SPEC, SlurmState(runs))
    copy = replace(FAILED, number=9)
    others = [FAILED, replace(runs, completing=True), replace(runs, restarts=1), AGAIN]
    states = [SlurmState(None), SlurmState(runs, copy), *map(SlurmState, others)]
    assert not any(reconcile.running(SPEC, other) for other in states)


def test_nothing_is_requeued_twice() -> None:
    """The number of launches tells, whoever asked for the requeue."""
    found = relaunched(AGAIN)
    assert isinstance(found, Done)
    assert (found.reached, found.requeued) == (True, "slurm-east-7")
    assert isinstance(relaunched(FAILED, CommandAttempt(REQUEUE, 0)), Wait)
    assert isinstance(relaunched(replace(FAILED, completing=True)), Wait)


@pytest.mark.parametrize("state", ["COMPLETING", "REQUEUE_HOLD"])
def test_a_job_whose_nodes_are_still_cleaned_up_is_waited_for(state: str) -> None:
    """Slurm counts the next launch before the one before is gone: it is held already, and has not begun."""
    between = replace(FAILED, state=state, restarts=1, held=True, completing=True)
    assert isinstance(held(between, CommandAttempt(HOLD, 0)), Wait)
    assert isinstance(relaunched(between, CommandAttempt(HOLD, 0), spec=CHECK), Wait)
    assert isinstance(reconcile.put_back(CHECK, SlurmState(between, None, "slurm"), Attempts()), Wait)


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
    assert isinstance(found, Done)
    assert (found.reached, word in found.detail) == (False, True)


def test_a_job_whose_next_link_goes_on_is_not_launched_again() -> None:
    """Two runs of a chain would write the same checkpoints; other jobs of the user, of the same name even, are none."""
    failed = replace(FAILED, ended=500.0)
    link = replace(failed, number=8, state="RUNNING", submitted=10.0, eligible=500.0)
    assert link.goes_on_for(failed)
    others: list[dict[str, Any]] = [
        {"eligible": 10.0},
        {"submitted": 501.0},
        {"folder": "/b"},
        {"state": "FAILED"},
        {"uid": 7},
    ]
    assert not any(replace(link, **other).goes_on_for(failed) for other in others)
    state = SlurmState(failed, None, "slurm", SCRIPT, next_link=link)
    for found in (reconcile.relaunch(SPEC, state, Attempts(())), reconcile.hold(CHECK, state, Attempts(()))):
        assert isinstance(found, Done)
        assert (found.reached, "job 8" in found.detail) == (False, True)


def test_a_refused_requeue_becomes_a_submission() -> None:
    """Write the stored script, submit it for the same user without the bad node, then find it by its comment."""
    refused = CommandAttempt(REQUEUE, 1, "Requested operation is presently disabled")
    write = relaunched(FAILED, refused)
    assert write == Run(scontrol("write", "batch_script", "7", SCRIPT))
    submit = relaunched(FAILED, refused, CommandAttempt(write.command, 0))
    assert isinstance(submit, Run)
    assert submit.command.words[0] == "sbatch"
    assert {"--uid=1001", "--gid=100", "--exclude=n1", "--comment=diagnoser plan p1", "--job-name=seven"} < set(
        submit.command.words
    )
    assert "--export=DIAGNOSER_PLAN=p1" in submit.command.words
    assert isinstance(
        relaunched(FAILED, refused, CommandAttempt(write.command, 0), CommandAttempt(submit.command, 0)), Wait
    )
    copy = replace(FAILED, number=9, state="PENDING", comment=reconcile.mark(SPEC))
    assert relaunched(FAILED, refused, copy=copy) == Done(True, "submitted anew as job 9: pending", "slurm-east-9")


def test_a_task_of_an_array_is_launched_again_alone() -> None:
    """The number of the last task names the whole array; submitted anew, with the arguments of its script, it stays
    that task."""
    task, refused = replace(FAILED, array=7, task=4, arguments=("--lr", "1")), scontrol("requeue", "7_4")
    assert relaunched(task) == Run(refused)
    write = scontrol("write", "batch_script", "7_4", SCRIPT)
    submit = relaunched(task, CommandAttempt(refused, 1, "disabled"), CommandAttempt(write, 0))
    assert isinstance(submit, Run)
    assert submit.command.words[-4:] == ("--array=4", SCRIPT, "--lr", "1")


def test_a_refused_submission_tells_both_refusals() -> None:
    """Why it was not requeued, and why not submitted."""
    refused, write = CommandAttempt(REQUEUE, 1, "disabled"), scontrol("write", "batch_script", "7", SCRIPT)
    found = relaunched(FAILED, refused, CommandAttempt(write, 1, "no script"))
    assert isinstance(found, Done)
    assert "disabled" in found.detail
    assert "no script" in found.detail


def test_a_rollback_is_submitted_before_the_old_job_is_stopped() -> None:
    """So that a death between the two leaves one of them; the new one waits for the end of the old one."""
    spec = replace(SPEC, action=Action.ROLLBACK_AND_RESUBMIT, nodes=(), variables=(("DIAGNOSER_CHECKPOINT", "/c/9"),))
    runs = replace(FAILED, state="RUNNING")
    write = relaunched(runs, spec=spec)
    assert isinstance(write, Run)
    submit = relaunched(runs, CommandAttempt(write.command, 0), spec=spec)
    assert isinstance(submit, Run)
    assert {"--dependency=afterany:7", "--export=DIAGNOSER_PLAN=p1,DIAGNOSER_CHECKPOINT=/c/9"} < set(
        submit.command.words
    )
    copy = replace(runs, number=9, state="PENDING", comment=reconcile.mark(spec))
    assert relaunched(runs, spec=spec, copy=copy) == Run(Command(("scancel", "7")))
    assert isinstance(relaunched(replace(runs, state="CANCELLED"), spec=spec, copy=copy), Done)


def test_a_check_holds_the_job_and_keeps_its_nodes() -> None:
    """Reserve, requeue and hold, check, release; a reservation that is refused does not stop it."""
    reserve = held(FAILED)
    assert isinstance(reserve, Run)
    assert {"nodes=n1,n2", "users=slurm"} < set(reserve.command.words)
    assert held(FAILED, CommandAttempt(reserve.command, 1)) == Run(HOLD)
    waiting, done = replace(AGAIN, held=True), CommandAttempt(HOLD, 0)
    assert held(waiting, done) == Held()
    assert relaunched(waiting, done, spec=CHECK) == Run(scontrol("release", "7"))
    assert isinstance(relaunched(AGAIN, CommandAttempt(HOLD, 0), spec=CHECK), Done)


def test_nodes_on_which_other_jobs_run_are_not_reserved() -> None:
    """Slurm itself refuses a node that another job got meanwhile, unless the failed job still runs: then our own look
    counts, before and after. What is reserved is what is checked."""

    def held_beside(job: JobRecord, busy: str, *attempts: CommandAttempt, reserved: tuple[str, ...] = ()) -> NextStep:
        state = SlurmState(job, None, "slurm", busy=frozenset(busy.split()), reserved=reserved)
        return reconcile.hold(CHECK, state, Attempts(attempts))

    shared = held_beside(FAILED, "n2 n9")
    assert isinstance(shared, Run)
    assert "nodes=n1" in shared.command.words and "flags=ignore_jobs" not in shared.command.words
    assert held_beside(FAILED, "n2", reserved=("n1",)) == Run(HOLD)
    assert held_beside(FAILED, "n1 n2") == Run(HOLD)
    all_nodes = held_beside(FAILED, "")
    assert isinstance(all_nodes, Run)
    assert held_beside(FAILED, "n2", CommandAttempt(all_nodes.command, 1, "Requested nodes are busy")) == shared
    hangs = held_beside(replace(FAILED, state="RUNNING"), "n2")
    assert isinstance(hangs, Run) and {"nodes=n1", "flags=ignore_jobs"} < set(hangs.command.words)
    late = held_beside(replace(FAILED, state="RUNNING"), "n1", CommandAttempt(hangs.command, 0), reserved=("n1",))
    assert late == Run(scontrol("delete", "reservationname=diagnoser_p1"))
    assert held_beside(replace(AGAIN, held=True), "n2", reserved=("n1",)) == Held(("n1",))


def test_a_job_that_runs_again_already_is_not_disturbed() -> None:
    """Its nodes are busy: they cannot be checked."""
    found = held(replace(AGAIN, state="RUNNING"))
    assert isinstance(found, Done)
    assert not found.reached


def test_a_job_that_was_held_for_a_plan_of_nobody_is_released() -> None:
    """As it was; one that a person released meanwhile, or held before the plan, is left alone."""
    release = scontrol("release", "7")
    waiting, check = SlurmState(replace(AGAIN, held=True)), replace(CHECK, done=frozenset({HOLD.line}))
    assert reconcile.put_back(check, waiting, Attempts()) == Run(release)
    for state in (SlurmState(AGAIN), SlurmState(replace(FAILED, held=True)), SlurmState(None)):
        assert isinstance(reconcile.put_back(check, state, Attempts()), Done)
    assert isinstance(reconcile.put_back(check, waiting, Attempts([CommandAttempt(release, 0)])), Done)


def test_a_launch_that_somebody_else_holds_stays_held() -> None:
    """Its user's hold is neither used for a check nor ended after one; the nodes reserved for the plan show that an
    agent, which died before its report, held the job."""
    waiting, release = replace(AGAIN, held=True), scontrol("release", "7")
    assert isinstance(held(waiting), Done)
    steps = [relaunched(waiting, spec=CHECK), reconcile.put_back(CHECK, SlurmState(waiting), Attempts())]
    assert [type(step) for step in steps] == [Done, Done]
    ours = SlurmState(waiting, reserved=("n1",))
    assert reconcile.hold(CHECK, ours, Attempts()) == Held(("n1",))
    assert reconcile.relaunch(CHECK, ours, Attempts()) == Run(release)


@pytest.mark.parametrize(
    "fields", [{"state": "CANCELLED"}, {"state": "COMPLETED"}, {"state": "SUSPENDED"}, {"leader": 6}]
)
def test_what_its_user_ended_or_stopped_is_not_held_for_a_check(fields: dict[str, Any]) -> None:
    """A hold would bring it back; nor does a job that runs no more begin again by a plan whose verdict was a hang."""
    job = replace(FAILED, **fields)
    for step in (held(job), relaunched(job)):
        assert isinstance(step, Done)
        assert not step.reached


def test_a_job_that_waits_is_held_for_the_check() -> None:
    """Slurm requeued it by itself."""
    assert held(AGAIN) == Run(scontrol("hold", "7"))


def test_a_plan_is_checked_before_use() -> None:
    """Names go to command lines, and a type to a drain's reason."""
    back = {"checkpoint": "/c/step 4", "step": 4, "skip_from": None, "skip_to": None}
    found = CLUSTER.spec(plan(action="rollback_and_resubmit", rollback=back, nodes=["n1"]), "loss spike!")
    assert (found.job, found.nodes, found.failure_type) == ("slurm-east-7", ("n1",), "unknown")
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
        CLUSTER.spec(plan(**bad), "ecc_error")


@pytest.mark.parametrize(
    ("dependency", "requeued", "copied"),
    [
        ("afterok:7(failed)", "afterok:7", "afterok:9"),
        ("afterany:3(unfulfilled),afterok:7(failed)", "afterany:3,afterok:7", "afterany:3,afterok:9"),
        ("afterok:7(unfulfilled)", "", "afterok:9"),
        ("afterok:17(failed),afterok:7_*(failed),afternotok:7(failed)", "", ""),
    ],
)
def test_what_waits_for_a_success_waits_for_the_next_launch(dependency: str, requeued: str, copied: str) -> None:
    """Only jobs of the same user that still wait, and name this very job; what else they wait for stays."""
    waiting = replace(FAILED, number=8, state="PENDING", dependency=dependency)
    for copy, renewed in ((None, requeued), (replace(FAILED, number=9), copied)):
        expected = scontrol("update", "jobid=8", f"dependency={renewed}") if renewed else None
        assert reconcile.renewal(waiting, FAILED, copy) == expected
        for another in (replace(waiting, uid=1002), replace(waiting, state="RUNNING")):
            assert reconcile.renewal(another, FAILED, copy) is None
