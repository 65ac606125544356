"""Who may do what: bearer tokens and their scopes."""

from dataclasses import dataclass, field
from enum import StrEnum


class Scope(StrEnum):
    """What a token may do. Each includes those before it.

    execute: what an agent needs: ship logs, report jobs and nodes, carry out plans. write: also what a person decides:
    approve and refuse plans, reset breakers, confirm or correct verdicts.
    """

    READ = "read"
    EXECUTE = "execute"
    WRITE = "write"

    def covers(self, needed: "Scope") -> bool:
        order = tuple(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Token:
    """``name`` identifies the token in logs; ``secret`` is what the caller sends."""

    name: str
    secret: str = field(repr=False)
    scope: Scope
