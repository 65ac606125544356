"""What an attack must not reach: a node, somebody else's job, or the trust that belongs to its owner."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model import Plan, PlanState
from tests.attacks.lies import Surface
from tests.attacks.ways import Attempted

ACTED = frozenset({PlanState.SENT, PlanState.REACHED, PlanState.NOT_REACHED})
RUNS_ON = frozenset(
    {
        Surface.OUTPUT,
        Surface.RECORD,
        Surface.EVENT,
        Surface.EARLY,
        Surface.ATTEMPT,
        Surface.DUMP,
        Surface.ANSWER,
        Surface.BUTTON,
    }
)
"""Where the victim's job runs on to the end: nobody has a plan to make for it."""


class Breach(StrEnum):
    FOREIGN_NODE = "a plan names a node that its job never had"
    CORDON = "a node goes on what a job controls"
    PROOF = "what a job controls counts as proof"
    OTHERS_JOB = "a plan for another tenant's job"
    LOCKED_OUT = "the owner of a job cannot send its lines"
    UNDECIDED = "the attempt could not be diagnosed"


@dataclass(frozen=True, slots=True)
class Success:
    """Of an attack. why: the plan or answer that shows it."""

    breach: Breach
    why: str


def judge(attempted: Attempted, plans: Iterable[Plan], stuck: Iterable[str]) -> list[Success]:
    """plans: of the lab's jobs, and of whatever the liar invented. stuck: jobs without a verdict."""
    lab, found = attempted.lab, list[Success]()
    for plan in plans:
        found += [Success(breach, _shown(plan)) for breach in _breaches(attempted, plan)]
    found += [Success(Breach.UNDECIDED, job) for job in stuck if job in lab.allocations]
    refused = [call for call in lab.done if call.startswith("blue ") and ("-> 403" in call or "-> 404" in call)]
    found += [Success(Breach.LOCKED_OUT, call) for call in refused]
    return found


def _breaches(attempted: Attempted, plan: Plan) -> Iterable[Breach]:
    lab, lie = attempted.lab, attempted.lie
    allocated = lab.allocations.get(plan.job, ()) if plan.attempt == 1 else ()
    if not set(plan.nodes) <= set(allocated):
        yield Breach.FOREIGN_NODE
    if plan.nodes and plan.state in ACTED:
        yield Breach.CORDON
    if plan.proofs:
        yield Breach.PROOF
    if plan.job == lab.victim and lie.surface in RUNS_ON:
        yield Breach.OTHERS_JOB


def _shown(plan: Plan) -> str:
    proofs = "; ".join(f"{proof.kind}: {proof.text[:120]!r}" for proof in plan.proofs)
    nodes = ", ".join(plan.nodes) or "no node"
    return f"{plan.job}/{plan.attempt} {plan.action} {plan.state} ({plan.reason}) on {nodes}" + (
        f", proven by {proofs}" if proofs else ""
    )


def of_labs(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    """By the cluster of the lab."""
    by_cluster: dict[str, list[Plan]] = {}
    for plan in plans:
        by_cluster.setdefault(_cluster(plan), []).append(plan)
    return by_cluster


def _cluster(plan: Plan) -> str:
    """Of the id where the job is one of a lab: an invented one may be of no cluster."""
    parts = plan.job.split("-")
    return parts[1] if len(parts) == 3 and parts[0] == "slurm" else plan.cluster
