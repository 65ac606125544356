"""What an exception's class says when no rule knows its message: the taxonomy's "exception class rule" as a table,
``rules/exceptions.yaml``."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from diagnoser.model import yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import Role

_ERRNO = re.compile(r"\[Errno (\d+)\]|\bcode: (\d+), kind:")
_MIN_PREFIX = 4
"""Fewest characters from which a class name is completed where the log was truncated within it."""


class _Example(StrictModel):
    exception: str
    message: str
    type: FailureType
    role: Role


Names = tuple[str, ...]


class ExceptionRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    classes: dict[FailureType, Names]
    suffixes: dict[str, FailureType]
    errnos: dict[FailureType, tuple[int, ...]]
    modules: dict[FailureType, Names]
    roles: dict[Role, Names]
    control_flow: Names
    uninformative: Names
    launchers: Names
    examples: Annotated[tuple[_Example, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ExceptionReading:
    """What a class (and an errno) says. generic: the class alone says next to nothing."""

    type: FailureType
    role: Role
    generic: bool = False


class ExceptionTable:
    """It keeps no state between exceptions and may be shared by threads."""

    def __init__(self, table: ExceptionRows) -> None:
        self._table = table
        self._types = {name: kind for kind, names in table.classes.items() for name in names}
        self._errnos = {number: kind for kind, numbers in table.errnos.items() for number in numbers}
        self._roles = {name: role for role, names in table.roles.items() for name in names}

    def read(self, exception: str, message: str) -> ExceptionReading:
        """exception: dotted class as printed; message: what follows it."""
        name = exception.rsplit(".", 1)[-1]
        numbers = _ERRNO.search(message[:200])
        kind = self._errnos.get(int(numbers[1] or numbers[2])) if numbers else None
        kind = kind or self._by_module(exception) or self._types.get(name)
        kind = kind or self._by_suffix(name) or self._by_start(name, message)
        generic = name in self._table.uninformative or kind is None
        return ExceptionReading(kind or FailureType.RUNTIME_ERROR, self._role(name, message), generic)

    def is_control_flow(self, exception: str) -> bool:
        return exception.rsplit(".", 1)[-1] in self._table.control_flow

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        readings = [(example, self.read(example.exception, example.message)) for example in self._table.examples]
        return [
            Fault(path, 0, f"examples: {example.exception} ({example.message}) reads as {reading.type}, {reading.role}")
            for example, reading in readings
            if (reading.type, reading.role) != (example.type, example.role)
        ]

    def _by_module(self, exception: str) -> FailureType | None:
        return next((kind for kind, names in self._table.modules.items() if exception.startswith(names)), None)

    def _by_suffix(self, name: str) -> FailureType | None:
        return next((kind for suffix, kind in self._table.suffixes.items() if name.endswith(suffix)), None)

    def _by_start(self, name: str, message: str) -> FailureType | None:
        """The type where the log was truncated within the name of the class, if only one fits."""
        if len(name) < _MIN_PREFIX or message.strip():
            return None
        kinds = {kind for full_name, kind in self._types.items() if full_name.startswith(name)}
        return kinds.pop() if len(kinds) == 1 else None

    def _role(self, name: str, message: str) -> Role:
        if name == "CalledProcessError" and self._launcher.match(message):
            return Role.WRAPPER
        return self._roles.get(name, Role.ROOT)

    @cached_property
    def _launcher(self) -> re.Pattern[str]:
        return re.compile(f"Command '.*?(?:{'|'.join(map(re.escape, self._table.launchers))})")


def load(path: str, text: str) -> ExceptionTable:
    """Raises RuleFaults with every fault of the file."""
    table, faults = yaml_loader.read(path, text, ExceptionRows)
    if table is None:
        raise RuleFaults(faults)
    return ExceptionTable(table)
