"""The audit log, and the call in whose name the store writes it.

Who calls, and from where, is known at the edge; what an object was before is known within the transaction that changes
it. The call travels between them as context, so that no method of the store has to pass it on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from diagnoser.model.audit import Actor


@dataclass(slots=True)
class AuditedCall:
    """A request or command that may change something. actor: None until it is known. entries: how many the store has
    written in its name, each in the transaction of its change. fault: why it was refused, as the caller is told."""

    action: str
    time: float
    address: str = ""
    actor: Actor | None = None
    entries: int = 0
    fault: str = ""


_current: ContextVar[AuditedCall | None] = ContextVar("audited_call", default=None)


def current_call() -> AuditedCall | None:
    """None where nobody calls: what the service does by itself is told by the history of the object."""
    return _current.get()


@contextmanager
def auditing(call: AuditedCall) -> Iterator[AuditedCall]:
    """What the store changes within is written down in the name of this call."""
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)
