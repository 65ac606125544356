"""Exceptions as languages and tools print them in lines of their own: R, Julia, Rust, Go, Octave, MATLAB, the JVM, Node
and programs on top of them. The forms are data, ``rules/exception_lines.yaml``."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from diagnoser.model import Anchor, expressions
from diagnoser.model.errors import Fault
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.schema import Mistake, PatternText, load_table

FILE = "exception_lines.yaml"
ANCHORS = tuple(map(Anchor, ("Execution halted", "goroutine ", "*** MPI_ERR", ".lua:")))
"""What the compressor must let through for the ends of exceptions."""
_LONGEST = 2048
"""Characters of a line that are read."""
_DEEPEST, _ENDING = 64, 4
"""Lines below an exception that are read, and of those the ones within which the runtime says that it ends."""
_GROUPS = ("name", "message", "call")
_CAUSES = "Caused by:"
"""Above a list of causes, the deepest last."""
_ENDS = ("Execution halted", "Stacktrace:", "goroutine ", "note: run with", "Calls:", "called from", "Error in ")
_FRAME = "\tat "
"""How a line begins that belongs to no message."""


class _LineExample(StrictModel):
    lines: tuple[str, ...]
    name: str = ""
    message: str = ""
    call: str = ""
    last: bool = False


class _Form(StrictModel):
    """See the comments at the top of the file.

    anchors: literals; a line without any of them has not this form.
    name: of the class, where the line itself holds none.
    indented_only: of the lines below only a list of causes counts.
    ending: RE2, searched in the line and those below; a match shows that the process ends with the exception.
    """

    id: str
    anchors: Annotated[tuple[str, ...], Field(min_length=1)] = ("",)
    pattern: PatternText
    unless: PatternText | None = None
    name: str = ""
    below: Annotated[int, Field(ge=0, le=4)] = 0
    indented_only: bool = False
    ending: PatternText | None = None
    examples: Annotated[tuple[_LineExample, ...], Field(min_length=1)]


class LineRows(StrictModel):
    version: Literal[1]
    forms: tuple[_Form, ...] = ()


@dataclass(frozen=True, slots=True)
class PrintedException:
    """An exception as printed outside of a traceback.

    name, call: "" where the line shows none.
    offset: how many lines below it stands the cause that it quotes, or all that it says.
    is_last: the runtime prints it so only as it ends the process.
    """

    name: str
    message: str
    call: str = ""
    offset: int = 0
    is_last: bool = False


class ExceptionLines:
    """It keeps no state between lines and may be shared by threads."""

    def __init__(self, table: LineRows) -> None:
        self._forms = table.forms
        self._anchored = expressions.AnchorIndex((form, form.anchors) for form in table.forms)

    @classmethod
    def empty(cls) -> "ExceptionLines":
        """Forms of no language, for a site without the table."""
        return cls(LineRows(version=1))

    def read(self, line: str, below: Iterable[str]) -> PrintedException | None:
        """The exception that a line prints, by the first form that fits. below: what its process prints next."""
        body = line[:_LONGEST]
        for form in self._anchored.rows(body):
            match = _regex(form.pattern).search(body)
            if match is None:
                continue
            if form.unless and _regex(form.unless).search(body):
                continue
            return _printed(form, match, list(islice(below, _DEEPEST)))
        return None

    def faults(self, path: str) -> list[Fault]:
        """Every example of the forms that does not hold."""
        faults = []
        for form in self._forms:
            for example in form.examples:
                read = self.read(example.lines[0], example.lines[1:])
                shown = (read.name, read.message, read.call, read.is_last) if read else None
                if shown != (example.name, example.message, example.call, example.last):
                    faults.append(Fault(path, 0, f"forms.{form.id}: {example.lines[0]!r} reads as {shown}"))
        return faults


def _printed(form: _Form, match: Any, below: Sequence[str]) -> PrintedException:
    groups = match.groupdict("")
    continued = list(_continued(form, below))
    parts = [groups.get("message", ""), *(text for _, text in continued)]
    message = " ".join(filter(None, map(str.strip, parts)))
    offset = _offset(continued, says_nothing=not any(groups.values()))
    is_last = form.ending is not None and any(map(_regex(form.ending).search, (match.string, *below[:_ENDING])))
    return PrintedException(groups.get("name") or form.name, message, groups.get("call", ""), offset, is_last)


def _offset(continued: Sequence[tuple[int, str]], *, says_nothing: bool) -> int:
    """The number of the last line below that is a cause; of the first one, where the line itself says nothing."""
    numbers = [number for number, _ in continued]
    if any(text.startswith(_CAUSES) for _, text in continued):
        return max(numbers)
    return numbers[0] if says_nothing and numbers else 0


@lru_cache(maxsize=256)
def _regex(pattern: str) -> Any:
    return expressions.compiled(pattern)


def _continued(form: _Form, below: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines below that belong to the message, each with its number, counted from 1."""
    left = form.below
    for number, line in enumerate(below, 1):
        if left == 0:
            return
        if line.startswith(_FRAME):
            return
        if line.lstrip().startswith(_ENDS):
            return
        if not line.strip():
            continue
        if form.indented_only and not line.startswith((_CAUSES, "  ")):
            return
        left -= 1
        yield number, line


def load(path: str, text: str, *, tested: bool = False) -> ExceptionLines:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    return ExceptionLines(load_table(path, text, LineRows, _mistakes, tested=tested))


def _mistakes(table: LineRows) -> Iterator[Mistake]:
    """The patterns that cannot be used, each with the row that it stands in."""
    for number, form in enumerate(table.forms):
        for pattern in filter(None, (form.pattern, form.unless, form.ending)):
            why = expressions.fault(pattern, _GROUPS)
            if why:
                yield ("forms", number), why
