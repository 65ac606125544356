"""The strip of stages of a recovery plan."""

from dataclasses import replace

import pytest

from diagnoser.model import Attempt, AttemptKey, CheckVerdict, NodeCheck, PlanChange, PlanLease, PlanState, RunStatus
from diagnoser.model.taxonomy import Action
from diagnoser.web.pages.plan_strip import plan_stages
from tests.contract.records import plan

NOW = 1_790_000_000.0
APPROVED = PlanChange(NOW, PlanState.SENT, "ida", "approved: go")
CLAIMED = PlanChange(NOW + 5, PlanState.SENT, "slurm-1", "claimed")
LEASE = PlanLease("slurm-1", "t", NOW + 60)
SENT = replace(
    plan(),
    action=Action.CHECK_AND_RESUBMIT,
    nodes=(),
    drained=(),
    steps=(),
    check=None,
    lease=None,
    requeued="",
    state=PlanState.SENT,
    history=(APPROVED,),
)
HELD = replace(SENT, lease=LEASE, history=(APPROVED, CLAIMED))
CHECKING = replace(HELD, check=NodeCheck(("a", "b"), 1, (("a", "b"),), open=("a",)))
CHECKED = replace(HELD, check=NodeCheck(("a", "b"), 2, (), verdict=CheckVerdict(("b",), reason="b fails twice")))
REACHED = replace(CHECKED, drained=("b",), requeued="job-2", state=PlanState.REACHED)
FAILED = replace(
    HELD,
    state=PlanState.NOT_REACHED,
    history=(APPROVED, CLAIMED, PlanChange(NOW + 9, PlanState.NOT_REACHED, "slurm-1", "no sbatch")),
)
AGAIN = Attempt(AttemptKey("j", 2), NOW + 90)


@pytest.mark.parametrize(
    ("stored", "relaunch", "shown"),
    [
        (replace(SENT, state=PlanState.WAITING, history=()), None, "*Waits for approval"),
        (replace(SENT, state=PlanState.EXPIRED), None, "!Expired"),
        (SENT, None, "+Approved *Waits for an agent -Nodes checked -Nodes out -Resubmitted -Runs again"),
        (CHECKING, None, "+Approved +Claimed *Checking nodes -Nodes out -Resubmitted -Runs again"),
        (CHECKED, None, "+Approved +Claimed +Nodes checked -Nodes out -Resubmitted -Runs again"),
        (REACHED, None, "+Approved +Claimed +Nodes checked +Nodes out +Resubmitted -Runs again"),
        (REACHED, AGAIN, "+Approved +Claimed +Nodes checked +Nodes out +Resubmitted +Attempt 2"),
        (FAILED, None, "+Approved +Claimed !Nodes checked !Nodes out !Not resubmitted !Runs again"),
        (replace(SENT, state=PlanState.ADVISED), None, ""),
        (replace(SENT, action=Action.NOTIFY_USER), None, ""),
    ],
)
def test_the_strip_shows_how_far_a_plan_came(stored, relaunch, shown) -> None:  # type: ignore[no-untyped-def]
    """+ is done, * is where it stands, - is open, ! went wrong; what nobody carries out has no strip."""
    signs = {"done": "+", "current": "*", "open": "-", "failed": "!"}
    assert " ".join(signs[stage.progress] + stage.label for stage in plan_stages(stored, relaunch, None)) == shown


def test_stages_name_who_and_what() -> None:
    """The person with the comment, the agent with the time, the nodes, and the step that the new launch is at."""
    details = {stage.label: (stage.detail, stage.time) for stage in plan_stages(REACHED, AGAIN, RunStatus(step=120))}
    assert details["Approved"] == ("by ida: go", NOW)
    assert details["Claimed"] == ("slurm-1", NOW + 5)
    assert details["Nodes checked"][0] == "b fails twice"
    assert details["Nodes out"][0] == "b"
    assert details["Attempt 2"] == ("runs, step 120", NOW + 90)
