"""A plan as the service gives it, checked before anything of it becomes part of an address or an object. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.kubernetes import names
from diagnoser.agent.kubernetes.kinds import Kind, kind_of
from diagnoser.errors import BadInput
from diagnoser.taxonomy import Action

_ID = re.compile(r"[A-Za-z0-9_.@:+=-]{1,250}")
_TYPE = re.compile(r"[a-z0-9_]{1,60}")
_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")
_VARIABLES = {
    "checkpoint": "DIAGNOSER_CHECKPOINT",
    "step": "DIAGNOSER_CHECKPOINT_STEP",
    "skip_from": "DIAGNOSER_SKIP_FROM",
    "skip_to": "DIAGNOSER_SKIP_TO",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plan, checked. attempt: the launch that failed. cause: type of the failure. by: who carries it out."""

    id: str
    action: Action
    job: str
    kind: Kind
    namespace: str
    name: str
    attempt: int
    nodes: tuple[str, ...] = ()
    cause: str = "unknown"
    variables: tuple[tuple[str, str], ...] = ()
    by: str = ""

    @property
    def reason(self) -> str:
        return f"{names.OURS}{self.id}: {self.cause}"

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)

    @property
    def copy(self) -> str:
        """Name of the ConfigMap that holds the workload while there is none."""
        return "diagnoser-" + (re.sub(r"[^a-z0-9-]+", "-", self.id.lower())[-60:].strip("-") or "plan")

    @property
    def copies(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"


def wanted(plan: Mapping[str, Any], cluster: str, cause: str, by: str) -> Wanted:
    """Raises BadInput for a plan that this cluster cannot carry out."""
    word, namespace, name = names.workload_of(plan["job"], cluster)
    if not _ID.fullmatch(plan["id"]):
        raise BadInput("the plan's id has characters that no annotation should have")
    back = plan.get("rollback") or {}
    return Wanted(
        id=plan["id"],
        action=Action(plan["action"]),
        job=plan["job"],
        kind=kind_of(word),
        namespace=namespace,
        name=name,
        attempt=int(plan["attempt"]),
        nodes=tuple(names.valid(node, "node") for node in plan["nodes"]),
        cause=cause if _TYPE.fullmatch(cause) else "unknown",
        variables=_variables(back) if plan["action"] == Action.ROLLBACK_AND_RESUBMIT else (),
        by=by,
    )


def _variables(back: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Raises BadInput. ``$(NAME)`` would be read as a reference to another variable: the dollar is doubled."""
    given = {name: str(back[name]) for name in _VARIABLES if back.get(name) not in (None, "")}
    for name, value in given.items():
        if not _VALUE.fullmatch(value):
            raise BadInput(f"the rollback's {name} has characters that a variable should not have")
    if not given:
        raise BadInput("the plan says to roll back, but not to where")
    return tuple((_VARIABLES[name], value.replace("$(", "$$(")) for name, value in given.items())
