"""What an exception says when no rule knows its message: the taxonomy's "exception class rule" as a table,
``rules/exceptions.yaml``, and what its status code, its subject and the place where it was raised say beside it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from diagnoser.model import expressions
from diagnoser.model.choice import only
from diagnoser.model.errors import Fault
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.exception_words import RaisedException
from diagnoser.rules.schema import Mistake, PatternText, Role, load_table, row_mistakes
from diagnoser.rules.statements import without_advice

_ERRNO = re.compile(r"\[Errno (\d+)\]|\bcode: (\d+), kind:")
_STATUS = re.compile(r"\(?([A-Z]\w{4,24})(?:: |\) )")
"""A status code in front of the message: ``NOT_FOUND: `` (absl, gRPC, XLA, TensorFlow), ``(NotFound) `` (Paddle)."""
_CLASS_SEPARATOR = re.compile(r"\.|::")
_LONGEST = 2048
"""Characters of a message that are read."""
_MIN_PREFIX = 4
"""Fewest characters from which a class name is completed where the log was truncated within it."""


class _Example(StrictModel):
    exception: str
    message: str
    frames: tuple[str, ...] = ()
    type: FailureType
    role: Role


class _Context(StrictModel):
    """An exception of a type in ``of`` is of ``type`` where a frame or the message matches.

    depth: how many of the innermost frames are asked. unless: searched in frames and message alike; one match vetoes.
    """

    type: FailureType
    of: Annotated[tuple[FailureType, ...], Field(min_length=1)]
    frames: tuple[PatternText, ...] = ()
    message: tuple[PatternText, ...] = ()
    unless: tuple[PatternText, ...] = ()
    depth: Annotated[int, Field(ge=1)] = 1


Names = tuple[str, ...]


class _Action(StrictModel):
    """What an exception of this type and message asks for, other than the policy table says for the type."""

    type: FailureType
    action: Action
    message: Annotated[tuple[PatternText, ...], Field(min_length=1)]


class ExceptionRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    classes: dict[FailureType, Names]
    suffixes: dict[str, FailureType]
    errnos: dict[FailureType, tuple[int, ...]]
    strerrors: dict[FailureType, Names] = Field(default_factory=dict)
    runtimes: dict[FailureType, tuple[PatternText, ...]] = Field(default_factory=dict)
    modules: dict[FailureType, Names]
    statuses: dict[FailureType, Names] = Field(default_factory=dict)
    contexts: tuple[_Context, ...] = ()
    actions: tuple[_Action, ...] = ()
    carriers: tuple[PatternText, ...] = ()
    elsewhere: tuple[PatternText, ...] = ()
    roles: dict[Role, Names]
    control_flow: Names
    uninformative: Names
    launchers: Names
    examples: Annotated[tuple[_Example, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ExceptionReading:
    """What a class (and an errno) says.

    generic: the class alone says next to nothing.
    stated: an errno, a status, the module or the place says it, not the class.
    """

    type: FailureType
    role: Role
    generic: bool = False
    stated: bool = False


class ExceptionTable:
    """It keeps no state between exceptions and may be shared by threads."""

    def __init__(self, table: ExceptionRows) -> None:
        self._table = table
        self._types = _inverted(table.classes)
        self._statuses = _inverted(table.statuses)
        self._errnos = _inverted(table.errnos)
        self._roles = _inverted(table.roles)

    def read(self, exception: str, message: str, frames: Sequence[str] = ()) -> ExceptionReading:
        """exception: dotted class as printed; message: what follows it; frames: of its traceback, outermost first."""
        name = _class_name(exception)
        role = self.role(exception, message)
        stated = self._stated(name, exception, message)
        kind = stated or self._by_class(name, message) or FailureType.RUNTIME_ERROR
        by_context = self.in_context(kind, f"{exception}: {message}", frames)
        if by_context:
            return ExceptionReading(by_context, role, stated=True)
        if stated:
            return ExceptionReading(stated, role, stated=True)
        return ExceptionReading(kind, role, generic=self._is_generic(name, message))

    def _stated(self, name: str, exception: str, message: str) -> FailureType | None:
        """What an errno, the module or a status says, or the words of a system where the class says nothing."""
        stated = self._by_errno(message) or self._by_module(exception) or self.by_status(message)
        if stated or not self._is_generic(name, message):
            return stated
        return self._by_words(message)

    def _by_words(self, message: str) -> FailureType | None:
        """What the operating system, or the runtime of a language, says in its own words."""
        return self.by_strerror(message) or self.by_runtime(message)

    def raised(self, exception: str, message: str, frames: Sequence[str] = ()) -> RaisedException:
        """The exception as the classifier weighs it. exception: "" where the language prints no class."""
        if not exception:
            stated = self._by_words(message)
            return RaisedException("", message, frames, stated, is_stated=stated is not None)
        reading = self.read(exception, message, frames)
        is_known = _class_name(exception) in self._types
        return RaisedException(
            exception, message, frames, reading.type, reading.generic, is_stated=reading.stated, is_known=is_known
        )

    def _is_generic(self, name: str, message: str) -> bool:
        """Whether the class alone says next to nothing."""
        return name in self._table.uninformative or self._by_class(name, message) is None

    def in_context(self, kind: FailureType, message: str, frames: Sequence[str]) -> FailureType | None:
        """The type of an exception that reads as ``kind``, where its subject or the place says another; else None.

        A value that does not fit is a ValueError anywhere, but a checkpoint that does not fit where one is restored.
        """
        message = without_advice(message[:_LONGEST])
        for context in self._contexts:
            if context.holds(kind, message, frames):
                return context.type
        return None

    def by_status(self, message: str) -> FailureType | None:
        """The type that a status code in front of the message says; None without one that says more than its class."""
        status = _STATUS.match(message)
        return self._statuses.get(status[1]) if status else None

    def by_strerror(self, message: str) -> FailureType | None:
        """The type that the operating system's own words say at the end of a message; None without them."""
        end = message[:_LONGEST].rstrip(" .)'\"")
        for kind, texts in self._table.strerrors.items():
            if end.endswith(texts):
                return kind
        return None

    def by_runtime(self, message: str) -> FailureType | None:
        """The type that the runtime of a language without classes of errors words so; None without such words."""
        for kind, patterns in self._table.runtimes.items():
            if _any_of(patterns).search(message[:_LONGEST]):
                return kind
        return None

    def action(self, kind: FailureType, message: str) -> Action | None:
        """What the message asks for, as a file that is cut asks for the one before it; None: what the policy says."""
        for row in self._table.actions:
            if row.type is not kind:
                continue
            if _any_of(row.message).search(message[:_LONGEST]):
                return row.action
        return None

    def is_carrier(self, exception: str, message: str) -> bool:
        """Whether it only quotes another error, which is printed below it."""
        return bool(self._carriers.search(f"{exception}: {message}"[:_LONGEST]))

    def is_control_flow(self, exception: str) -> bool:
        return _class_name(exception) in self._table.control_flow

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        faults = []
        for example in self._table.examples:
            reading = self.read(example.exception, example.message, example.frames)
            if (reading.type, reading.role) != (example.type, example.role):
                text = f"{example.exception} ({example.message})"
                faults.append(Fault(path, 0, f"examples: {text} reads as {reading.type}, {reading.role}"))
        return faults

    def _by_errno(self, message: str) -> FailureType | None:
        numbers = _ERRNO.search(message[:200])
        return self._errnos.get(int(next(filter(None, numbers.groups())))) if numbers else None

    def _by_module(self, exception: str) -> FailureType | None:
        for kind, names in self._table.modules.items():
            if exception.startswith(names):
                return kind
        return None

    def _by_class(self, name: str, message: str) -> FailureType | None:
        return self._types.get(name) or self._by_suffix(name) or self._by_start(name, message)

    def _by_suffix(self, name: str) -> FailureType | None:
        for suffix, kind in self._table.suffixes.items():
            if name.endswith(suffix):
                return kind
        return None

    def _by_start(self, name: str, message: str) -> FailureType | None:
        """The type where the log was truncated within the name of the class, if only one fits."""
        if len(name) < _MIN_PREFIX:
            return None
        if message.strip():
            return None
        return only({kind for full_name, kind in self._types.items() if full_name.startswith(name)})

    def role(self, exception: str, message: str) -> Role:
        """What an exception of this class is in the story of a failure."""
        name = _class_name(exception)
        if self._elsewhere.search(message[:_LONGEST]):
            return Role.WRAPPER
        if name != "CalledProcessError":
            return self._roles.get(name, Role.ROOT)
        if self._launcher.match(message):
            return Role.WRAPPER
        return self._roles.get(name, Role.ROOT)

    @cached_property
    def _contexts(self) -> tuple["_CompiledContext", ...]:
        return tuple(map(_CompiledContext, self._table.contexts))

    @cached_property
    def _carriers(self) -> Any:
        return _any_of(self._table.carriers)

    @cached_property
    def _elsewhere(self) -> Any:
        return _any_of(self._table.elsewhere)

    @cached_property
    def _launcher(self) -> re.Pattern[str]:
        return re.compile(f"Command '.*?(?:{'|'.join(map(re.escape, self._table.launchers))})")


class _CompiledContext:
    def __init__(self, context: _Context) -> None:
        self.type, self._of, self._depth = context.type, context.of, context.depth
        self._frames, self._message = _any_of(context.frames), _any_of(context.message)
        self._unless = _any_of(context.unless)

    def holds(self, kind: FailureType, message: str, frames: Sequence[str]) -> bool:
        if kind not in self._of:
            return False
        innermost = frames[-self._depth :]
        if not (self._message.search(message) or any(map(self._frames.search, innermost))):
            return False
        return not any(map(self._unless.search, (message, *innermost)))


_Key = TypeVar("_Key", str, int)
_Value = TypeVar("_Value", FailureType, Role)


def _inverted(rows: Mapping[_Value, tuple[_Key, ...]]) -> dict[_Key, _Value]:
    """Each name of each row, and what the row says of it."""
    inverted: dict[_Key, _Value] = {}
    for value, names in rows.items():
        inverted |= dict.fromkeys(names, value)
    return inverted


def _class_name(exception: str) -> str:
    """The class without the modules in front of it."""
    return _CLASS_SEPARATOR.split(exception)[-1]


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> Any:
    """One expression for all patterns; without any it matches nothing."""
    return expressions.compiled("|".join(f"(?:{pattern})" for pattern in patterns) or r"[^\s\S]")


def load(path: str, text: str, *, tested: bool = False) -> ExceptionTable:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    return ExceptionTable(load_table(path, text, ExceptionRows, _mistakes, tested=tested))


def _mistakes(table: ExceptionRows) -> Iterator[Mistake]:
    """The patterns that cannot be used, each with the row that it stands in."""
    lists: list[tuple[tuple[str | int, ...], Names]] = [
        (("carriers",), table.carriers),
        (("elsewhere",), table.elsewhere),
    ]
    lists += ((("runtimes", kind), patterns) for kind, patterns in table.runtimes.items())
    lists += ((("actions", number), row.message) for number, row in enumerate(table.actions))
    for number, context in enumerate(table.contexts):
        lists.append((("contexts", number), (*context.frames, *context.message, *context.unless)))
    for where, patterns in lists:
        yield from row_mistakes(where, patterns)
