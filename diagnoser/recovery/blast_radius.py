"""Lists what a plan touches, for whoever decides about it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from diagnoser.model import NodeRun, Plan
from diagnoser.model.taxonomy import Action
from diagnoser.recovery.plan_states import RUNNABLE


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """nodes: that go out of service. checked: nodes that a check tests, of which those that fail go.

    relaunches: whether the job is launched again. neighbours: launches of other jobs that run on these nodes now, as
    far as agents told.
    """

    nodes: tuple[str, ...]
    checked: tuple[str, ...]
    relaunches: bool
    neighbours: tuple[NodeRun, ...]


def blast_radius(plan: Plan, running: Sequence[NodeRun]) -> BlastRadius:
    """running: launches that run on the cluster of the plan now, of any job."""
    affected = touched(plan)
    checked: tuple[str, ...] = affected if not plan.nodes else ()
    neighbours = []
    for run in running:
        if run.attempt.job == plan.job:
            continue
        if not set(affected).isdisjoint(run.nodes):
            neighbours.append(run)
    return BlastRadius(plan.nodes, checked, plan.action in RUNNABLE, tuple(neighbours))


def touched(plan: Plan) -> tuple[str, ...]:
    """Nodes that may go out of service if the plan is approved, the likely ones first."""
    if plan.nodes:
        return plan.nodes
    if plan.action is not Action.CHECK_AND_RESUBMIT:
        return plan.nodes
    return tuple(dict.fromkeys((*plan.suspects, *plan.allocation)))
