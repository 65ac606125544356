"""Checks what it takes before a node goes: the scheduler gave it to the attempt, and somebody who speaks for it blames
it.

Text that a job prints is written by a tenant: it may describe the job, but it moves no machine. The same question is
asked when a plan is made, when it is claimed, and by the agent before it acts (``agent.executor``).
"""

from collections.abc import Collection, Iterable

from diagnoser.model import Plan, PlanReason

Objection = tuple[PlanReason, str]
"""Why a plan may not take its nodes out, and the same in words."""


def why_not_removable(plan: Plan, allocation: Collection[str]) -> Objection | None:
    """Say why the plan may not take its nodes out; None when it may, or names none.

    allocation: the nodes that the scheduler gave the attempt, as known now.
    """
    if not plan.nodes:
        return None
    if not allocation:
        return PlanReason.ALLOCATION_UNKNOWN, f"no agent reported which nodes launch {plan.attempt} ran on"
    foreign = [node for node in plan.nodes if node not in allocation]
    if foreign:
        listed = ", ".join(foreign)
        return PlanReason.FOREIGN_NODE, f"the scheduler did not give {listed} to launch {plan.attempt} of {plan.job}"
    if plan.unproven:
        listed = ", ".join(plan.unproven)
        why = f"would cordon {listed}, which only the job's own output blames; needs the node's own log or a node check"
        return PlanReason.UNPROVEN, why
    return None


def match_scheduler_names(names: Iterable[str], allocation: Collection[str]) -> tuple[str, ...]:
    """Spell the names as the scheduler does: a log may say ``gpu-017`` for ``gpu-017.cluster.local`` or the reverse.
    A name that fits no node, or several, stays as it is."""
    by_short: dict[str, list[str]] = {}
    for node in allocation:
        by_short.setdefault(_short(node), []).append(node)
    spelled: dict[str, None] = {}
    for name in names:
        alike = by_short.get(_short(name), [])
        if name not in allocation and len(alike) == 1:
            name = alike[0]
        spelled[name] = None
    return tuple(spelled)


def _short(node: str) -> str:
    if node.replace(".", "").isdecimal():
        return node  # an address has no short form
    return node.partition(".")[0]
