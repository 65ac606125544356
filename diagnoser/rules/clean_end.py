"""Recognises the clean end of a run by where its words stand, not by one wording.

A run that ends well speaks after its last step, and then stops; a truncated or killed log stops without such words. So
a statement (``rules/run_end.yaml``) counts only after the last step; how much it counts for depends on who makes it. A
line in the voice of the training itself, or one that counts the steps that were done, comes from the process that
trained. A bare ``done`` may come from the script around it, which prints it after a crash as well.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from diagnoser.model import Evidence, Line, Progress, Stream, expressions, yaml_loader
from diagnoser.model.errors import Fault, RuleFaults
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.rules.logged_errors import is_logged
from diagnoser.rules.schema import PatternText, Specificity, not_re2

_LONGEST = 1024
"""Characters of a line that are read."""
_OPTIONS = expressions.quiet_options(64 << 20, ignore_case=True)
_HEAD = 160
"""Characters in front of a record in JSON that wrappers may have added."""
_LAST_WORDS = 60
"""Lines before the end of a stream in which a statement about the run may stand."""
_CLOSING = 12
"""Lines before the end of a stream in which words count that do not say what is over."""
_TRAINED = 1
"""More steps of one rank than this show that a log is one of training; each epoch may count anew."""
_MESSAGE = re.compile(r'"(?:event|msg|message|text|log)": ?"((?:[^"\\]|\\.){0,800})')
"""The text of a record in JSON."""
_LEVEL = re.compile(r"^.{0,120}?\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL)\b", re.IGNORECASE)
_STAMP = re.compile(r"^\W?(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d|[A-Z]\d{4} \d\d:\d\d:\d\d)[\d:.,]*")
_NUMBER = re.compile(r"\d[\d,]*")
_COUNTED = re.compile(r"\b(\d{1,12})(?: ?/ ?| +of +)(\d{1,12})\b")
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d{1,9})\b(?! ?\.\d)(?: ?/ ?(\d{1,9}))?", re.IGNORECASE)
_EPOCH_LINES = 200
"""Lines back in which the heading of an epoch is looked for."""
_STATED = re.compile(
    r"\b(?:max|total|num|n)[_ -]?(?:train(?:ing)?[_ -]|optimi[sz]ation[_ -])?(?:steps|iters|iterations|updates?)"
    r"\W{1,4}(\d{1,12})\b|(?:^|\s)--(?:steps|iters|iterations|max-updates?|train-iters)[ =](\d{1,12})\b"
    r"|\btrain[_-]iters\W{1,60}(\d{1,12})\b",
    re.IGNORECASE,
)
"""How many steps the run is to make, as its configuration says."""


class _Examples(StrictModel):
    match: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    no_match: Annotated[tuple[PatternText, ...], Field(min_length=1)]


class _Statements(StrictModel):
    patterns: Annotated[tuple[PatternText, ...], Field(min_length=1)]
    examples: _Examples


class _EndRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    head: PatternText
    run: _Statements
    closing: _Statements
    part: _Statements


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """Where a log says that its run ended well. line: index into ``Evidence.lines``."""

    line: int
    why: str
    specificity: Specificity


class EndTable:
    """A compiled table. It keeps no state between lines and may be shared by threads."""

    def __init__(self, table: _EndRows) -> None:
        self._table = table
        self._run, self._closing, self._part = (
            expressions.search_set((_pattern(table, text) for text in part.patterns), _OPTIONS)
            for part in (table.run, table.closing, table.part)
        )

    def says_end(self, body: str, *, closing: bool) -> bool:
        """Whether the line says that the run is over. closing: it stands where words count that do not say what is."""
        return self.says_run(body) or (closing and self.says_closing(body))

    def says_run(self, body: str) -> bool:
        """Whether the line says that the run is over, and not in failure."""
        return self._says(self._run, body)

    def says_closing(self, body: str) -> bool:
        """Whether the line closes something that it does not name."""
        return self._says(self._closing, body)

    def _says(self, patterns: Any, body: str) -> bool:
        text = message(body)
        return bool(patterns.Match(text)) and not self._part.Match(text)

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        messages = []
        for name, says in (("run", self.says_run), ("closing", self.says_closing), ("part", self._is_part)):
            examples = getattr(self._table, name).examples
            messages += [f"{name}.match: {text!r} is not one" for text in examples.match if not says(text)]
            messages += [f"{name}.no_match: {text!r} is one" for text in examples.no_match if says(text)]
        return [Fault(path, 0, what) for what in messages]

    def _is_part(self, body: str) -> bool:
        return bool(self._part.Match(message(body)))


def load(path: str, text: str, *, tested: bool = False) -> EndTable:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    table, faults = yaml_loader.read(path, text, _EndRows)
    for name in ("run", "closing", "part") if table is not None and not tested else ():
        line = yaml_loader.locate(text, name)
        patterns = getattr(table, name).patterns
        faults += [Fault(path, line, why) for regex in patterns if (why := not_re2(_pattern(table, regex)))]
    if table is None or faults:
        raise RuleFaults(faults)
    return EndTable(table)


def message(body: str) -> str:
    """What a line says: the text of a JSON record, else the line."""
    record = _MESSAGE.search(body[: 4 * _LONGEST]) if _is_record(body) else None
    return (record[1].removesuffix("\\n") if record else body)[:_LONGEST]


def find(evidence: Evidence, table: EndTable, advanced: Callable[[Line], bool]) -> CleanEnd | None:
    """The last line that shows that the run ended well; None where the log just stops.

    advanced: whether any step was made after a line.
    """
    steps = [point for point in evidence.progress if point.step is not None]
    trained = max(Counter(point.rank for point in steps).values(), default=0) > _TRAINED
    traced = evidence.traceback_lines
    for index, left in _last_words(evidence, advanced):
        if index in traced or _is_quoted(evidence.lines, index):
            continue
        body = evidence.lines[index].body
        if table.says_end(body, closing=trained and left < _CLOSING):
            return _stated_end(evidence, index, steps)
    return _at_total(evidence, steps) if trained else None


def _last_words(evidence: Evidence, advanced: Callable[[Line], bool]) -> Iterator[tuple[int, int]]:
    """Lines near the ends of the job's streams with no step after them, the newest first: their indices, and how many
    lines of their stream follow."""
    last_number = {line.stream: line.number for line in sorted(evidence.lines, key=lambda line: line.number)}
    over = set[Stream]()
    for index in range(len(evidence.lines) - 1, -1, -1):
        line = evidence.lines[index]
        left = last_number[line.stream] - line.number
        if not line.stream.from_job or left > _LAST_WORDS or line.stream in over:
            continue
        if not (advanced(line) or _is_frame(line.body)):
            yield index, left
        elif line.is_dated:
            return
        else:
            over.add(line.stream)  # what other streams say may have been said later


def _stated_end(evidence: Evidence, index: int, steps: Sequence[Progress]) -> CleanEnd:
    """The end that a line states: the process that trained is trusted more than a script around it."""
    body = evidence.lines[index].body
    if voice(body) in _voices(evidence, steps) or _counts(body, steps):
        return CleanEnd(index, "the process says so after its last step", Specificity.FAMILY)
    return CleanEnd(index, "the last words of the log say so", Specificity.CLASS)


def _is_frame(body: str) -> bool:
    """After the last words of a process there is no unfinished traceback: that is the start of other last words."""
    return body.startswith("Traceback (most recent call last)")


def _is_quoted(lines: Sequence[Line], index: int) -> bool:
    """Whether the line is source code that a traceback quotes, even one that was cut."""
    return index > 0 and lines[index - 1].body.lstrip().startswith('File "')


def voice(body: str) -> str:
    """The head of a logger's line, in which the numbers are alike; "" for a line without one."""
    if _is_record(body):
        return "{"
    head = _LEVEL.match(body) or _STAMP.match(body)
    return _NUMBER.sub("0", head[0]) if head else ""


def _is_record(body: str) -> bool:
    return '{"' in body[:_HEAD]


def _voices(evidence: Evidence, steps: Sequence[Progress]) -> set[str]:
    """Heads of the lines in which training tells its steps."""
    numbers = {point.line for point in steps}
    return {voice(line.body) for line in evidence.lines if line.number in numbers} - {""}


def _counts(body: str, steps: Sequence[Progress]) -> bool:
    """Whether the line names the number of steps that were made."""
    done = {step for point in steps[-64:] if (step := point.step) is not None}
    if not done:
        return False
    numbers = {int(text.replace(",", "")[:15]) for text in _NUMBER.findall(_STAMP.sub("", message(body)))}
    highest, interval = max(done), _interval(done)
    return any(highest <= number <= highest + interval for number in numbers)


def _interval(done: set[int]) -> int:
    """Steps between two that are printed."""
    ordered = sorted(done)
    return ordered[-1] - ordered[-2] if len(ordered) > 1 else 1


def _at_total(evidence: Evidence, steps: Sequence[Progress]) -> CleanEnd | None:
    """The last step, if it is the last of the total that the log counts to or states, and the log ends soon after."""
    last = max(steps, key=lambda point: point.line)
    end = max(line.number for line in evidence.lines)
    index = next((i for i, line in enumerate(evidence.lines) if line.number == last.line), None)
    if index is None or last.step is None or end - last.line > _LAST_WORDS:
        return None
    if _raises_after(evidence, index) or _in_earlier_epoch(evidence.lines[: index + 1]):
        return None
    if _counts_to(evidence.lines[index], last.step):
        return CleanEnd(index, f"step {last.step} is the last of the total", Specificity.CLASS)
    stated = _stated_totals(evidence.lines[:index])
    return _at_stated_total(index, last.step, steps, stated.pop()) if len(stated) == 1 else None


def _at_stated_total(index: int, last: int, steps: Sequence[Progress], total: int) -> CleanEnd | None:
    """The last step, if another one that is printed would be beyond the total."""
    interval = _interval({point.step for point in steps if point.step is not None})
    if not last <= total < last + max(interval, 2):
        return None
    return CleanEnd(index, f"step {last} is the last of the {total} that were asked for", Specificity.CLASS)


def _counts_to(line: Line, last: int) -> bool:
    """Whether the line counts to the last step, as ``300/300`` does."""
    counted = ((int(match[1]), int(match[2])) for match in _COUNTED.finditer(line.text))
    return any(step == total == last for step, total in counted)


def _stated_totals(lines: Iterable[Line]) -> set[int]:
    """How many steps the run is to make, as configurations print it."""
    matches = (match for line in lines for match in _STATED.finditer(line.body[:_LONGEST]))
    return {int(next(filter(None, match.groups()))) for match in matches}


def _raises_after(evidence: Evidence, index: int) -> bool:
    """Whether a traceback follows that the program did not log."""
    logged = {
        line
        for number, trace in enumerate(evidence.tracebacks)
        if is_logged(evidence, trace.raised, number)
        for line in trace.lines
    }
    later = range(index, len(evidence.lines))
    return any(_is_frame(evidence.lines[line].body) and line not in logged for line in later)


def _in_earlier_epoch(lines: Sequence[Line]) -> bool:
    """Whether steps are counted within an epoch that is not known to be the last one."""
    for line in reversed(lines[-_EPOCH_LINES:]):
        epochs = _EPOCH.findall(line.body[:_LONGEST])
        if epochs:
            return all(not total or int(epoch) < int(total) for epoch, total in epochs)
    return False


def _pattern(table: _EndRows | None, text: str) -> str:
    return text.replace("{head}", table.head if table else "")
