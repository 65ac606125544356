"""Finds proofs that a node is at fault: one table for the log that it ships and for its answers to queries. Pure.

The table is ``rules/node_proofs.yaml``. A pattern is tried at the start of a sender's own message, behind the head of
the record; what a process can choose in a message of the kernel is blanked first. What only a rule matches is a
suspicion.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import re2
from pydantic import Field, StringConstraints

from diagnoser.dialects import system_log
from diagnoser.dialects.system_log import KERNEL, SystemRecord
from diagnoser.model import DAEMON, KERNEL_SOURCES, expressions, yaml_loader
from diagnoser.model.errors import BadInput, Fault
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.yaml_loader import StrictModel

BLANK = "\0"
"""Stands for a character that a process chose: no rule asks for it, and no log holds it."""
_LONGEST = 4096
"""Characters of a message that are read; the kernel's own buffer holds a quarter of them."""

_Text = Annotated[str, StringConstraints(min_length=1)]
_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
_Anchored = Annotated[str, StringConstraints(pattern=r"^\^")]


class _Examples(StrictModel):
    proves: Annotated[tuple[_Text, ...], Field(min_length=1)]
    proves_nothing: Annotated[tuple[_Text, ...], Field(min_length=1)]


class ProofPattern(StrictModel):
    """A row of the table; its comments say what each field means."""

    id: _Id
    pattern: _Anchored
    faults: Annotated[tuple[FailureType, ...], Field(min_length=1)]
    sender: _Text = KERNEL
    explains: tuple[FailureType, ...] = ()
    decoded: bool = False
    reference: _Text
    examples: _Examples

    @property
    def is_raw(self) -> bool:
        """Whether it is about messages as the kernel writes them."""
        return self.sender == KERNEL and not self.decoded


class _BlankedExample(StrictModel):
    line: _Text
    blanked: Annotated[tuple[_Text, ...], Field(min_length=1)]


class FreeField(StrictModel):
    """A form in which the kernel prints what a process can choose: the groups of the pattern."""

    pattern: _Text
    examples: Annotated[tuple[_BlankedExample, ...], Field(min_length=1)]


class NodeProofTable(StrictModel):
    version: Literal[1] = 1
    parts: Mapping[_Id, _Text] = Field(default_factory=dict)
    proofs: tuple[ProofPattern, ...] = ()
    free_fields: tuple[FreeField, ...] = ()

    def in_log(self, source: str, text: str, fault: FailureType) -> bool:
        """Tell whether a line of a node's log proves this fault. source: of its stream, which somebody vouches for."""
        record = system_log.read_record(text)
        for row in self._matches(text[record.start :]):
            if fault not in row.faults:
                continue
            if _is_of(row.sender, source, record):
                return True
        return False

    def in_answer(self, text: str, types: Collection[FailureType]) -> bool:
        """Tell whether a line of the kernel, in an answer to a query about failures of these types, proves a fault."""
        record = system_log.read_record(text)
        if not record.is_of_kernel:
            return False
        for row in self._matches(text[record.start :]):
            if not row.is_raw:
                continue
            if is_about(row.explains, types):
                return True
        return False

    def blanked(self, text: str) -> str:
        """Give the line with blanks, as long as before, for what a process can choose in its message."""
        start = system_log.read_record(text).start
        return text[:start] + self._blanked(text[start:])

    def _matches(self, message: str) -> Iterator[ProofPattern]:
        message = self._blanked(message[:_LONGEST])
        for row, pattern in self._compiled:
            if pattern.search(message):
                yield row

    def _blanked(self, message: str) -> str:
        characters = list(message)
        for pattern in self._free:
            for match in pattern.finditer(message):
                for group in range(1, pattern.groups + 1):
                    start, end = match.span(group)  # (-1, -1) of a group without a match
                    characters[start:end] = BLANK * (end - start)
        return "".join(characters)

    @cached_property
    def _compiled(self) -> list[tuple[ProofPattern, Any]]:
        return [(row, re2.compile(self.filled(row.pattern))) for row in self.proofs]

    @cached_property
    def _free(self) -> list[Any]:
        return [re2.compile(self.filled(form.pattern)) for form in self.free_fields]

    def filled(self, pattern: str) -> str:
        for name, part in self.parts.items():
            pattern = pattern.replace(f"{{{name}}}", part)
        return pattern


NO_PROOFS = NodeProofTable()


def is_about(listed: Collection[FailureType], types: Collection[FailureType]) -> bool:
    """Tell whether a row is about failures of one of these types. listed: types of the row, empty for all."""
    return not listed or not set(types).isdisjoint(listed)


def _is_of(sender: str, source: str, record: SystemRecord) -> bool:
    """Tell whether a record is a message of this sender, as far as its stream vouches for that."""
    if sender != KERNEL:
        return source == DAEMON and record.sender in ("", sender)
    if source not in KERNEL_SOURCES:
        return False
    return record.is_of_kernel


def load(path: str, text: str, *, tested: bool = False) -> NodeProofTable:
    """Read the table of a file. Raises RuleFaults with every fault.

    tested: its patterns and examples are known to hold.
    """
    if tested:
        return yaml_loader.load(path, text, NodeProofTable)
    return yaml_loader.load(path, text, NodeProofTable, partial(_faults, path, text))


def _faults(path: str, text: str, table: NodeProofTable) -> Iterator[Fault]:
    """Find faults. Examples are the proof of a row: they are tried once all patterns can be compiled."""
    wrong = list(_pattern_faults(table))
    if not wrong:
        wrong = list(_example_faults(table))
    for where, why in wrong:
        yield Fault(path, yaml_loader.locate(text, *where), why)


_Mistake = tuple[tuple[str, int], str]


def _pattern_faults(table: NodeProofTable) -> Iterator[_Mistake]:
    seen = set[str]()
    for index, row in enumerate(table.proofs):
        if row.id in seen:
            yield ("proofs", index), f"id '{row.id}' is taken"
        seen.add(row.id)
        if why := _uncompiled(table.filled(row.pattern)):
            yield ("proofs", index), f"{row.id}: {why}"
    for index, form in enumerate(table.free_fields):
        pattern = table.filled(form.pattern)
        if why := _uncompiled(pattern):
            yield ("free_fields", index), why
        elif not re2.compile(pattern).groups:
            yield ("free_fields", index), "a pattern needs a group: what is blanked"


def _uncompiled(pattern: str) -> str:
    try:
        expressions.compiled(pattern)
    except BadInput as error:
        return str(error)
    return ""


def _example_faults(table: NodeProofTable) -> Iterator[_Mistake]:
    for index, row in enumerate(table.proofs):
        for line in row.examples.proves:
            if row not in table._matches(line):
                yield ("proofs", index), f"{row.id}: example '{line[-80:]}' proves nothing"
        for line in row.examples.proves_nothing:
            if proving := next(table._matches(line), None):
                yield ("proofs", index), f"{row.id}: example '{line[-80:]}' proves a fault, by '{proving.id}'"
    for index, form in enumerate(table.free_fields):
        for example in form.examples:
            blanked = _blanked_parts(table, example.line)
            if blanked != example.blanked:
                yield ("free_fields", index), f"in '{example.line[:80]}' is blanked: {', '.join(blanked) or 'nothing'}"


def _blanked_parts(table: NodeProofTable, line: str) -> tuple[str, ...]:
    """List what is blanked in a line, from left to right."""
    parts = [""]
    for old, new in zip(line, table._blanked(line), strict=True):
        if new == BLANK:
            parts[-1] += old
        elif parts[-1]:
            parts.append("")
    return tuple(filter(None, parts))
