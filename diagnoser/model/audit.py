"""The audit log: who did what, from where, on which object, and what it was before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from diagnoser.model.access import ANONYMOUS, Credential, Scope
from diagnoser.model.people import Person

TEXT_MOST, ITEMS_MOST, DEPTH_MOST = 300, 10, 3
"""Characters of a text, items of a list or object, and levels of both, that an entry keeps of a value."""

HIDDEN = frozenset({"token", "secret", "hash", "password"})
"""Fields whose values open something, wherever they stand in an object."""


class ActorKind(StrEnum):
    """person: signed in with a password or at the identity provider. agent: a token of a cluster's agent. token: any
    other. command: somebody at the command line of the service. slack: a button in Slack. anonymous: anybody, where
    nobody has to say who they are."""

    PERSON = "person"
    AGENT = "agent"
    TOKEN = "token"  # noqa: S105 - a kind, no secret
    COMMAND = "command"
    SLACK = "slack"
    ANONYMOUS = "anonymous"


class AuditResult(StrEnum):
    """done: it took effect. refused: it was not allowed or not possible. failed: the service broke off."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Actor:
    """address: of the client, or the machine of a command."""

    name: str
    kind: ActorKind
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that was done. id: grows with time; 0 before it is stored. action: the request's method and route, or
    the command. object_kind, object_id: "" where it is about no single object. before, after: the fields that differ,
    None where there was nothing before, or is nothing after it. detail: why it was refused."""

    time: float
    actor: Actor
    action: str
    object_kind: str = ""
    object_id: str = ""
    result: AuditResult = AuditResult.DONE
    detail: str = ""
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    id: int = 0


def actor_of(caller: Credential, address: str) -> Actor:
    if isinstance(caller, Person):
        return Actor(caller.name, ActorKind.PERSON, address)
    if caller is ANONYMOUS:
        return Actor(caller.name, ActorKind.ANONYMOUS, address)
    if caller.name.startswith("slack:"):  # no token and no user can have a name with a colon
        return Actor(caller.name, ActorKind.SLACK, address)
    kind = ActorKind.AGENT if caller.scope in (Scope.AGENT, Scope.INGEST) else ActorKind.TOKEN
    return Actor(caller.name, kind, address)


def changed_fields(
    before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    """The fields of an object that a change touched, as they were and as they are, each cut to what a person reads."""
    if before is None or after is None:
        return _shown(before), _shown(after)
    was: dict[str, object] = {}
    becomes: dict[str, object] = {}
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name):
            continue
        if name in before:
            was[name] = before[name]
        if name in after:
            becomes[name] = after[name]
    return _shown(was), _shown(becomes)


def _shown(fields: Mapping[str, object] | None) -> dict[str, object] | None:
    if fields is None:
        return None
    shown: dict[str, object] = {}
    for name in sorted(fields):
        shown[name] = "(hidden)" if name in HIDDEN else _cut(fields[name], DEPTH_MOST)
    return shown


def _cut(value: object, depth: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MOST else f"{value[:TEXT_MOST]}… ({len(value)} characters)"
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not depth:
        return "…"
    return _cut_fields(value, depth - 1) if isinstance(value, Mapping) else _cut_items(value, depth - 1)


def _cut_fields(fields: Mapping[object, object], depth: int) -> dict[str, object]:
    shown = {}
    for key, value in list(fields.items())[:ITEMS_MOST]:
        shown[str(key)] = "(hidden)" if key in HIDDEN else _cut(value, depth)
    if len(fields) > ITEMS_MOST:
        shown["…"] = f"{len(fields)} in all"
    return shown


def _cut_items(items: Sequence[object], depth: int) -> list[object]:
    shown = [_cut(item, depth) for item in items[-ITEMS_MOST:]]  # what is appended is news
    if len(items) > ITEMS_MOST:
        shown.insert(0, f"… {len(items) - ITEMS_MOST} before")
    return shown
