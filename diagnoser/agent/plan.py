"""What the agents of all schedulers read from a plan in the same way, and how carrying one out can go on or end. Pure.

Nothing of a plan becomes part of a command, an address or an object before it was checked.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diagnoser.model.errors import BadInput

ROLLBACK_VARIABLES = {
    "checkpoint": "DIAGNOSER_CHECKPOINT",
    "step": "DIAGNOSER_CHECKPOINT_STEP",
    "skip_from": "DIAGNOSER_SKIP_FROM",
    "skip_to": "DIAGNOSER_SKIP_TO",
}
"""Field of a plan's rollback -> environment variable of the next launch."""
_ID = re.compile(r"[A-Za-z0-9_.@:+=-]{1,250}")
_TYPE = re.compile(r"[a-z0-9_]{1,60}")


@dataclass(frozen=True, slots=True)
class Wait:
    why: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The job is out of the way: its nodes can be checked."""


@dataclass(frozen=True, slots=True)
class End:
    """requeued: the job of the next launch. drained: the plan's nodes that are out for its reason, also where the
    report of that was lost."""

    reached: bool
    detail: str
    requeued: str = ""
    drained: tuple[str, ...] = ()


def checked_id(plan: Mapping[str, Any]) -> str:
    """Raises BadInput for an id that may not stand in a reason."""
    if not _ID.fullmatch(plan["id"]):
        raise BadInput("the plan's id has characters that no reason may have")
    return str(plan["id"])


def checked_type(name: str) -> str:
    """The type of a failure as it may stand in a reason."""
    return name if _TYPE.fullmatch(name) else "unknown"


def rollback_variables(plan: Mapping[str, Any], value: re.Pattern[str]) -> tuple[tuple[str, str], ...]:
    """(variable, value) of a plan that rolls back. value: what a value may be here. Raises BadInput."""
    back = plan.get("rollback") or {}
    given = {name: str(back[name]) for name in ROLLBACK_VARIABLES if back.get(name) not in (None, "")}
    for name, text in given.items():
        if not value.fullmatch(text):
            raise BadInput(f"the rollback's {name} has characters that an environment variable may not have here")
    if not given:
        raise BadInput("the plan says to roll back, but not to where")
    return tuple((ROLLBACK_VARIABLES[name], text) for name, text in given.items())
