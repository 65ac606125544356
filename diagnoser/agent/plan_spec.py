"""A plan as the service gives it, checked before anything of it becomes part of a command, an address or an object.

Pure.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action, FailureType

OURS = "diagnoser "
"""How the reason of every cordon of ours begins."""
PLAN_VARIABLE = "DIAGNOSER_PLAN"
ROLLBACK_VARIABLES = {
    "checkpoint": "DIAGNOSER_CHECKPOINT",
    "step": "DIAGNOSER_CHECKPOINT_STEP",
    "skip_from": "DIAGNOSER_SKIP_FROM",
    "skip_to": "DIAGNOSER_SKIP_TO",
}
"""Field of a plan's rollback -> environment variable of the next launch."""
_REASON = re.compile(rf"{OURS}[^ ]+: ([a-z0-9_]+)")
_ID = re.compile(r"[A-Za-z0-9_.@:+=-]{1,250}")
_TYPE = re.compile(r"[a-z0-9_]{1,60}")


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """job: its id at the service. attempt: number of the launch that failed. variables: for the next launch. copies:
    digests of what agents reported to have stored for the plan, where a scheduler needs that. done: lines of commands
    that agents reported to have run for it."""

    id: str
    action: Action
    job: str
    attempt: int
    nodes: tuple[str, ...] = ()
    failure_type: str = "unknown"
    variables: tuple[tuple[str, str], ...] = ()
    copies: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()

    @property
    def reason(self) -> str:
        """Why its nodes are taken out. It names the plan: whoever takes over sees which plan a cordon belongs to."""
        return f"{OURS}{self.id}: {self.failure_type}"


def failure_type_of(reason: str) -> str:
    """Read from the reason of our cordon which failure it was for; "" where it does not say."""
    match = _REASON.match(reason)
    return match[1] if match else ""


def known_types(failure_type: str) -> tuple[FailureType, ...]:
    """Find the failure type of this name; none where this agent does not know it."""
    return tuple(known for known in FailureType if known == failure_type)


def return_spec(node: str) -> PlanSpec:
    """What is run on a node that a plan took out, before it is given back: of no job."""
    return PlanSpec(f"back_{node[-50:]}", Action.CHECK_AND_RESUBMIT, job="", attempt=0, nodes=(node,))


def parse_plan(
    plan: Mapping[str, Any], failure_type: str, valid_node: Callable[[str], str], value: re.Pattern[str]
) -> PlanSpec:
    """valid_node: a node's name, or BadInput. value: what a variable may hold here. Raises BadInput."""
    if not _ID.fullmatch(plan["id"]):
        raise BadInput("the plan's id has characters that no reason may have")
    variables: tuple[tuple[str, str], ...] = ()
    if plan["action"] == Action.ROLLBACK_AND_RESUBMIT:
        variables = _variables(plan, value)
    if not _TYPE.fullmatch(failure_type):
        failure_type = "unknown"
    return PlanSpec(
        id=plan["id"],
        action=Action(plan["action"]),
        job=plan["job"],
        attempt=int(plan["attempt"]),
        nodes=tuple(map(valid_node, plan["nodes"])),
        failure_type=failure_type,
        variables=variables,
        done=frozenset(step["command"] for step in plan.get("steps") or () if step.get("exit_code") == 0),
    )


def _variables(plan: Mapping[str, Any], value: re.Pattern[str]) -> tuple[tuple[str, str], ...]:
    rollback, variables = plan.get("rollback") or {}, []
    for name, variable in ROLLBACK_VARIABLES.items():
        if rollback.get(name) in (None, ""):
            continue
        text = str(rollback[name])
        if not value.fullmatch(text):
            raise BadInput(f"the rollback's {name} has characters that an environment variable may not have here")
        variables.append((variable, text))
    if not variables:
        raise BadInput("the plan says to roll back, but not to where")
    return tuple(variables)
