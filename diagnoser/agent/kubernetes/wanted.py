"""A plan as the service gives it, checked before anything of it becomes part of an address or an object. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.agent.kubernetes import names
from diagnoser.agent.kubernetes.kinds import Kind, kind_of
from diagnoser.agent.plan import checked_id, checked_type, rollback_variables
from diagnoser.model.taxonomy import Action

_VALUE = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")


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
    return Wanted(
        id=checked_id(plan),
        action=Action(plan["action"]),
        job=plan["job"],
        kind=kind_of(word),
        namespace=namespace,
        name=name,
        attempt=int(plan["attempt"]),
        nodes=tuple(names.valid(node, "node") for node in plan["nodes"]),
        cause=checked_type(cause),
        variables=_variables(plan) if plan["action"] == Action.ROLLBACK_AND_RESUBMIT else (),
        by=by,
    )


def _variables(plan: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Raises BadInput. ``$(NAME)`` would be read as a reference to another variable: the dollar is doubled."""
    return tuple((name, value.replace("$(", "$$(")) for name, value in rollback_variables(plan, _VALUE))
