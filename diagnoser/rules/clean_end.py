"""Recognises the clean end of a run by where its words stand, not by one wording.

A run that ends well speaks after its last step, and then stops; a truncated or killed log stops without such words. So
a statement (``rules/run_end.yaml``) counts only after the last step; how much it counts for depends on who makes it. A
line in the voice of the training itself, or one that counts the steps that were done, comes from the process that
trained. A bare ``done`` may come from the script around it, which prints it after a crash as well.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Literal

from diagnoser.model import Evidence, Line, Mark, Progress, Severity, Stream, Template, expressions
from diagnoser.model.errors import Fault
from diagnoser.model.evidence import numbers_of
from diagnoser.model.yaml_loader import StrictModel
from diagnoser.records.reader import read, without_fields
from diagnoser.rules.left_behind import Process, Processes
from diagnoser.rules.logged_errors import is_logged
from diagnoser.rules.schema import (
    Mistake,
    PatternRow,
    PatternText,
    Specificity,
    example_mistakes,
    load_table,
    row_mistakes,
)
from diagnoser.structure.loops import whole_numbers, words_of
from diagnoser.structure.progress import COUNT_OF_TOTAL

_LONGEST = 1024
"""Characters of a line that are read."""
_OPTIONS = expressions.quiet_options(64 << 20, ignore_case=True)
_HEAD = 160
"""Characters in front of a record in JSON that wrappers may have added."""
_BAR = "%|"
"""Stands in the bars of tqdm."""
_LAST_WORDS = 60
"""Lines before the end of a stream in which a statement about the run may stand."""
_CLOSING = 12
"""Lines before the end of a stream in which words count that do not say what is over."""
_BESIDE = 5
"""Lines from a statement of the end within which a complaint is about it."""
_TRAINED = 1
"""More steps of one rank than this show that a log is one of training; each epoch may count anew."""
_LEVEL = re.compile(r"^.{0,120}?\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL)\b", re.IGNORECASE)
_STAMP = re.compile(r"^\W?(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d|[A-Z]\d{4} \d\d:\d\d:\d\d)[\d:.,]*")
_NO_TROUBLE = re.compile(r"\bignor(?:e[ds]?|ing)\b|\b(?:failed|failures|errors)[ \t:=]{1,16}0\s*$", re.IGNORECASE)
"""What is ignored, or counted as none."""
_NUMBER = re.compile(r"\d[\d,]*")
_WHOLE = re.compile(r"(?<![\d.:])\d[\d,]*(?![\d:]|\.\d)")
"""A number that is no part of a time or of a measure."""
_COUNTED = re.compile(r"\b(\d{1,12})(?: {0,8}/ {0,8}| +of +)(\d{1,12})\b")
_OF_TOTAL = re.compile(COUNT_OF_TOTAL)
_ERROR_MEASURE = re.compile(r"\berror(?=\W{1,4}[-+]?\d{1,12}\.\d)", re.IGNORECASE)
"""The measure that is called so."""
_SMALLEST = 3
"""The smallest total by which a loop is known to have made its last turn."""
_PERCENT = re.compile(r"\b(\d{1,3})%\|")
_EPOCH = re.compile(r"\bepoch\W{0,4}(\d{1,9})\b(?! ?\.\d)(?: ?/ ?(\d{1,9}))?", re.IGNORECASE)
_EPOCH_LINES = 200
"""Lines back in which the heading of an epoch is looked for."""
_ASKED = re.compile(
    r"\b(\d{2,12}) (?:\w{1,20} )?(?:steps|iterations|iters|epochs|rounds|updates|draws)\b"
    r"|\b(?:\w{1,20}_)?(?:steps|iterations|iters|epochs|rounds|updates)\b\W{1,4}(\d{2,12})\b",
    re.IGNORECASE,
)
"""How many steps the run is to make, as the log says in front of the first one."""

_MILD = (Severity.DEBUG, Severity.INFO, Severity.WARNING)
_ROWS = ("run", "closing", "part", "result", "leaving", "passing", "trouble", "beginning")


class _EndRows(StrictModel):
    """The file: see the comments at its top."""

    version: Literal[1]
    head: PatternText
    run: PatternRow
    closing: PatternRow
    part: PatternRow
    result: PatternRow
    leaving: PatternRow
    passing: PatternRow
    trouble: PatternRow
    beginning: PatternRow

    @property
    def rows(self) -> dict[str, PatternRow]:
        return {name: getattr(self, name) for name in _ROWS}

    def expanded(self, patterns: Iterable[str]) -> Iterator[str]:
        return (text.replace("{head}", self.head) for text in patterns)


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """Where a log says that its run ended well.

    line: index into ``Evidence.lines``.
    source: name of the source that found it.
    """

    line: int
    why: str
    specificity: Specificity
    source: str = ""


class EndTable:
    """A compiled table. It keeps no state between lines and may be shared by threads."""

    def __init__(self, table: _EndRows) -> None:
        self._table = table
        self._sets = {
            name: expressions.search_set(table.expanded(row.patterns), _OPTIONS) for name, row in table.rows.items()
        }

    def says_end(self, body: str, *, closing: bool) -> bool:
        """Whether the line says that the run is over.

        closing: the line stands where words count that do not say what is over.
        """
        if self.says_run(body):
            return True
        if not closing:
            return False
        return self.says_closing(body)

    def says_last_words(self, body: str) -> bool:
        """Whether the line says that the run, or what it does not name, is over."""
        return self.says_end(body, closing=True)

    def says_run(self, body: str) -> bool:
        """Whether the line says that the run is over, and not in failure."""
        return self._says("run", body)

    def says_closing(self, body: str) -> bool:
        """Whether the line closes something that it does not name."""
        return self._says("closing", body)

    def says_part(self, body: str) -> bool:
        """Whether the line speaks of a part of the run only."""
        return self._matches("part", body)

    def says_result(self, body: str) -> bool:
        """Whether the line tells what came of a run: a figure, an output, how long it took."""
        return self._says("result", body) and not self.says_passing(body)

    def says_leaving(self, body: str) -> bool:
        """Whether the line tells of an orderly way out."""
        return self._says("leaving", body)

    def says_passing(self, body: str) -> bool:
        """Whether the line tells what is also told on the way: a validation, a step, a checkpoint."""
        return self._matches("passing", body)

    def says_trouble(self, body: str) -> bool:
        """Whether the line complains, and of nothing that it calls ignored or counts as none."""
        return self._matches("trouble", body) and not _NO_TROUBLE.search(body[:_LONGEST])

    def complains(self, line: Line) -> bool:
        """Whether the line complains, and its program does not call it information or a warning."""
        return line.severity not in _MILD and self.says_trouble(line.body)

    def says_beginning(self, body: str) -> bool:
        """Whether the line says that something begins."""
        return self._matches("beginning", body)

    def is_on_the_way(self, body: str) -> bool:
        """Whether the line is one that programs print before their end, too: of a part, a step, a complaint."""
        return any(self._matches(row, body) for row in ("part", "passing", "beginning", "trouble"))

    def _says(self, row: str, body: str) -> bool:
        return self._matches(row, body) and not self.says_part(body)

    def _matches(self, row: str, body: str) -> bool:
        return bool(self._sets[row].Match(message(body)))

    def faults(self, path: str) -> list[Fault]:
        """Every example of the table that does not hold."""
        readers = {name: getattr(self, f"says_{name}") for name in _ROWS}
        faults = []
        for name, row in self._table.rows.items():
            for kind, text in example_mistakes(row.examples, readers[name]):
                is_not = {"match": "is not", "no_match": "is"}[kind]
                faults.append(Fault(path, 0, f"{name}.{kind}: {text!r} {is_not} one"))
        return faults


def load(path: str, text: str, *, tested: bool = False) -> EndTable:
    """Raises RuleFaults with every fault of the file. tested: its patterns are known to be of RE2."""
    return EndTable(load_table(path, text, _EndRows, _mistakes, tested=tested))


def _mistakes(table: _EndRows) -> Iterator[Mistake]:
    """The patterns that cannot be used, each with the row that it stands in."""
    for name, row in table.rows.items():
        yield from row_mistakes((name,), table.expanded(row.patterns))


def message(body: str) -> str:
    """What a line says: the text of a JSON record, else the line; without the fields that stand behind it. A measure
    that is called an error is called a loss."""
    records = read(body)
    if records and records[0].texts:
        body = records[0].texts[0]
    return _ERROR_MEASURE.sub("loss", without_fields(body[:_LONGEST]))


@dataclass(frozen=True)
class _Log:
    """A log that may end well.

    advanced: whether any step was made after a line.
    steps: the points of the progress series that count a step.
    processes: those of the job, and how each ended.
    orders: lines that tell a process to end.
    """

    evidence: Evidence
    table: EndTable
    advanced: Callable[[Line], bool]
    steps: Sequence[Progress]
    processes: Processes
    orders: Collection[int]

    @cached_property
    def spoken(self) -> int:
        """How many lines can show that the run had ended well: who is told to end takes leave as well, whether the work
        is done or not."""
        lines = self.evidence.lines
        final = (order for order in self.orders if not self.advanced(lines[order]))
        return min(final, default=len(lines))

    @cached_property
    def trained(self) -> bool:
        """Whether the log is one of training: ranks count steps, a loop prints a measure, or a bar fills."""
        counted = Counter(map(attrgetter("rank"), self.steps))
        if self.processes.found.measured or max(counted.values(), default=0) > _TRAINED:
            return True
        return any("100%|" in line.body for line in self.evidence.job_lines)

    @cached_property
    def loop_ends(self) -> dict[Stream, int]:
        """The last line of each stream in which the program was still in its loop."""
        ends = self.processes.found.ends()
        if self.trained:
            for point in self.steps:
                ends[point.stream] = max(ends.get(point.stream, 0), point.line)
        return ends

    @cached_property
    def asked(self) -> set[int]:
        """How many steps are to be made, as the lines in front of the first one say."""
        begins = [point.line for point in self.steps] or [loop.first for loop in self.processes.found.measured]
        begin, asked = min(begins, default=0), set[int]()
        for line in self.evidence.lines:
            if line.number < begin:
                asked.update(int(match[1] or match[2]) for match in _ASKED.finditer(line.body[:_LONGEST]))
        return asked

    @cached_property
    def done(self) -> frozenset[int]:
        """The newest steps that were made."""
        return frozenset(numbers_of(self.steps[-64:]))


_Source = Callable[[_Log], CleanEnd | None]


def find_clean_end(
    evidence: Evidence,
    table: EndTable,
    advanced: Callable[[Line], bool],
    processes: Processes,
    orders: Collection[int] = (),
) -> CleanEnd | None:
    """The last line that shows that the run ended well; None where the log just stops.

    advanced: whether any step was made after a line.
    processes: those of the job, and how each ended.
    orders: lines that tell a process to end.
    """
    log = _Log(evidence, table, advanced, evidence.steps, processes, orders)
    for name, source in _SOURCES.items():
        end = source(log)
        if end is not None:
            return None if any(belies(log, end) for belies in _BELYING) else _weighed(log, replace(end, source=name))
    return None


def _weighed(log: _Log, end: CleanEnd) -> CleanEnd:
    """The end, as weak as words where nothing shows how other processes that trained ended."""
    if log.processes.speak_for_all(log.evidence.lines[end.line].stream):
        return end
    return replace(end, why=f"{end.why}; not all processes say how they ended", specificity=Specificity.WORD)


def _is_of_most(log: _Log, end: CleanEnd) -> bool:
    """Whether most ranks of the job state their end, and another one falls silent without."""
    return log.processes.most_ended(log.evidence.lines[end.line].stream)


def _is_beside_complaint(log: _Log, end: CleanEnd) -> bool:
    """Whether words that do not say what is over stand beside a complaint: a launcher says how long it took of a run
    that failed as well."""
    here, traced = log.evidence.lines[end.line], log.evidence.traceback_lines
    if end.specificity > Specificity.CLASS:
        return False
    if log.table.says_run(here.body):
        return False
    for index, line in enumerate(log.evidence.lines[: log.spoken]):
        if index in traced:
            continue
        if _is_beside(line, here) and _is_new_complaint(log, line):
            return True
    return False


def _is_beside(line: Line, here: Line) -> bool:
    """Whether two lines of a stream stand side by side."""
    if line.stream != here.stream:
        return False
    return abs(line.number - here.number) <= _BESIDE


def _is_new_complaint(log: _Log, line: Line) -> bool:
    """Whether the line complains, and neither a step nor its own repetition shows that the run lives with that."""
    if log.advanced(line):
        return False
    if log.processes.found.is_turn(line):
        return False
    return log.table.complains(line)


def _is_of_some(log: _Log, end: CleanEnd) -> bool:
    """Whether several processes that nothing tells apart, but not all that were launched, print the line of the end:
    another one stopped. One alone may speak for all.
    """
    line = log.evidence.lines[end.line]
    launched = log.processes.found.launched.get(line.stream, 0)
    for template in log.evidence.templates:
        if template.processes:
            continue
        if not _is_of_shape(line, template):
            continue
        if 1 < template.count < launched and launched % template.count:
            return True
    return False


def _is_of_shape(line: Line, template: Template) -> bool:
    if (line.stream, line.number) in (template.first, template.last):
        return True
    return line.text in template.samples


def _is_beside_short_count(log: _Log, end: CleanEnd) -> bool:
    """Whether another process broke off short of the total that a peer has reached."""
    return any(line.stream == log.evidence.lines[end.line].stream for _, line in broken_off_counts(log.evidence))


def broken_off_counts(evidence: Evidence) -> Iterator[tuple[int, Line]]:
    """The words with which a process broke off short of the total that a peer has reached: the line that counts last,
    or the one behind it, where its last words were said but once.
    """
    counts, spoken = _newest_counts(evidence)
    reached = {(stream, total) for (stream, _), (count, total) in counts.items() if count == total}
    if not reached:
        return
    said = Counter(_words_of_stream(line) for _, line in _lines_of_processes(evidence))
    for process, (count, total) in counts.items():
        _, line = spoken[process][-1]
        if count == total or (line.stream, total) not in reached:
            continue
        if line.severity in _MILD or said[_words_of_stream(line)] > 1:
            continue
        yield next(each for each in spoken[process] if said[_words_of_stream(each[1])] == 1)


def _newest_counts(
    evidence: Evidence,
) -> tuple[dict[Process, tuple[str, str]], dict[Process, list[tuple[int, Line]]]]:
    """How far each process has counted, of which total, and its lines from there on."""
    counts = dict[Process, tuple[str, str]]()
    spoken = defaultdict[Process, list[tuple[int, Line]]](list)
    for index, line in _lines_of_processes(evidence):
        process = line.stream, line.process
        found = [] if _BAR in line.body else _OF_TOTAL.findall(line.body[:_LONGEST])
        if found:
            counts[process] = found[-1]
            spoken[process].clear()
        spoken[process].append((index, line))
    return counts, spoken


def _lines_of_processes(evidence: Evidence) -> Iterator[tuple[int, Line]]:
    for index, line in enumerate(evidence.lines):
        if line.process != -1 and line.body.strip():
            yield index, line


def _words_of_stream(line: Line) -> tuple[Stream, str]:
    return line.stream, words_of(line.body)


_BELYING: tuple[Callable[[_Log, CleanEnd], bool], ...] = (
    _is_of_some,
    _is_of_most,
    _is_beside_complaint,
    _is_beside_short_count,
)
"""Why the end that a source found is none of the run."""


def _last_words(log: _Log) -> CleanEnd | None:
    """The newest line after the last step that says that the run is over."""
    traced = log.evidence.traceback_lines
    for index, left in _last_lines(log):
        if index in traced:
            continue
        if index >= log.spoken:
            continue
        if _is_quoted(log.evidence.lines, index):
            continue
        line = log.evidence.lines[index]
        if not log.table.says_end(line.body, closing=log.trained and left < _CLOSING):
            continue
        if not log.processes.found.is_turn(line):
            return _stated_end(log, index)
    return None


def _last_lines(log: _Log) -> Iterator[tuple[int, int]]:
    """Lines near the ends of the job's streams with no step after them, the newest first: their indices, and how many
    lines of their stream follow."""
    last_numbers, lines = log.evidence.last_numbers, log.evidence.lines
    over = set[Stream]()
    for index in range(len(lines) - 1, -1, -1):
        line = lines[index]
        left = last_numbers[line.stream] - line.number
        if not line.stream.from_job:
            continue
        if left > _LAST_WORDS:
            continue
        if line.stream in over:
            continue
        if not (log.advanced(line) or _is_frame(line.body)):
            yield index, left
            continue
        if line.is_dated:
            return
        over.add(line.stream)  # what other streams say may have been said later


def _stated_end(log: _Log, index: int) -> CleanEnd:
    """The end that a line states: the process that trained is trusted more than a script around it."""
    line = log.evidence.lines[index]
    body = line.body
    if voice(line) in _voices(log):
        return CleanEnd(index, "the process says so after its last step", Specificity.FAMILY)
    if _counts(log, body):
        return CleanEnd(index, "the process says so after its last step", Specificity.FAMILY)
    return CleanEnd(index, "the last words of the log say so", Specificity.CLASS)


def _is_frame(body: str) -> bool:
    """After the last words of a process there is no unfinished traceback: that is the start of other last words."""
    return body.startswith("Traceback (most recent call last)")


def _is_quoted(lines: Sequence[Line], index: int) -> bool:
    """Whether the line is source code that a traceback quotes, even one that was cut."""
    if index <= 0:
        return False
    return lines[index - 1].body.lstrip().startswith('File "')


def voice(line: Line) -> str:
    """The head of a logger's line, in which the numbers are alike; "" for a line without one."""
    in_record = "{"  # none of the fields of a record is part of the message
    if _is_record(line.body):
        return in_record
    head = _LEVEL.match(line.body) or _STAMP.match(line.body)
    if head:
        return _NUMBER.sub("0", head[0])
    return "" if line.severity is None else in_record


def _is_record(body: str) -> bool:
    return '{"' in body[:_HEAD]


def _voices(log: _Log) -> set[str]:
    """Heads of the lines in which training reports its steps."""
    numbers = set(map(attrgetter("line"), log.steps))
    voices = set[str]()
    for line in log.evidence.lines:
        if line.number in numbers:
            voices.add(voice(line))
    return voices - {""}


def _counts(log: _Log, body: str) -> bool:
    """Whether the line names the number of steps that were made."""
    if not log.done:
        return False
    highest, interval = max(log.done), _interval(log.done)
    for text in _WHOLE.findall(_STAMP.sub("", message(body))):
        if highest <= int(text.replace(",", "")[:15]) <= highest + interval:
            return True
    return False


def _interval(done: Iterable[int]) -> int:
    """Steps between two that are printed."""
    ordered = sorted(done)
    return ordered[-1] - ordered[-2] if len(ordered) > 1 else 1


def _total(log: _Log) -> CleanEnd | None:
    """The last step, if it is the last of the total that the log counts to or states, and the log ends soon after."""
    return _total_of_steps(log) or _total_of_loops(log)


def _total_of_steps(log: _Log) -> CleanEnd | None:
    """The last step of the progress series, if it is the last of the total."""
    last = max(log.steps, key=attrgetter("line"), default=None)
    if last is None:
        return None
    step, lines = last.steps_made, log.evidence.lines
    if step <= _TRAINED:
        return None
    index = _index_of(lines, last.line)
    if index is None:
        return None
    if not _ends_soon(log, index):
        return None
    if log.processes.is_behind(index, step):
        return None
    if any(_counts_to(line, step) for line in lines[max(0, index - _CLOSING) :]):
        return CleanEnd(index, f"step {step} is the last of the total", Specificity.CLASS)
    if step in log.asked:
        return CleanEnd(index, f"step {step} is the last one that was asked for", Specificity.CLASS)
    return None


def _total_of_loops(log: _Log) -> CleanEnd | None:
    """The last turn of the last process to end, where each of them made the last turn of the total."""
    last, asked, lines = dict[object, int](), dict[object, int](), log.evidence.lines
    before = dict[object, set[int]]()
    for index, line in enumerate(lines):
        if not log.processes.found.is_turn(line, measured=True):
            continue
        if _OF_TOTAL.search(line.body[:_LONGEST]):
            last[line.speaker] = index
        shape, numbers = (line.speaker, words_of(line.body)), set(whole_numbers(line.body))
        if numbers - before.get(shape, numbers):
            asked[line.speaker] = index
        before[shape] = numbers
    if last:
        return _at_last_turns(log, last, lambda index: _is_last_of_total(lines[index]))
    total = log.asked
    return _at_last_turns(log, asked, lambda index: not total.isdisjoint(whole_numbers(lines[index].body)))


def _at_last_turns(log: _Log, turns: Mapping[object, int], is_last: Callable[[int], bool]) -> CleanEnd | None:
    """The end at the last turn of all, where the newest turn of each process is its last one."""
    if not turns:
        return None
    if len(turns) < len({*log.processes.loops, *log.processes.steps}):
        return None
    if not all(map(is_last, turns.values())):
        return None
    index = max(turns.values())
    if not _ends_soon(log, index):
        return None
    if not _is_calm(log, range(index, max(log.spoken, index + 1))):
        return None
    return CleanEnd(index, "the last turn of the loop is the last of the total", Specificity.CLASS)


def _is_last_of_total(line: Line) -> bool:
    """Whether all counts of a line have reached their totals, and one of them is no small one."""
    counts = [(int(step), int(total)) for step, total in _OF_TOTAL.findall(line.body[:_LONGEST])]
    if max(counts, default=(0, 0))[1] < _SMALLEST:
        return False
    return all(step == total for step, total in counts)


def _ends_soon(log: _Log, index: int) -> bool:
    """Whether the log ends soon after a step, without an exception, and the step is one of the last epoch."""
    if max(log.evidence.last_numbers.values()) - log.evidence.lines[index].number > _LAST_WORDS:
        return False
    if _raises_after(log.evidence, index):
        return False
    return not _in_earlier_epoch(log.evidence.lines[: index + 1])


def _results(log: _Log) -> CleanEnd | None:
    """What a program says that it only says once it has left its loop: results, what it wrote, how long it took.

    A log that was cut ends within the loop; one of a crash ends in a complaint.
    """
    for stream, number in log.loop_ends.items():
        tail = [index for index in _tail_of(log.evidence, stream, number) if index < log.spoken]
        if not tail:
            continue
        if not _has_left_loop(log, stream, number):
            continue
        if not _is_calm(log, tail):
            continue
        for index in tail:
            if _tells_result(log, log.evidence.lines[index]):
                return CleanEnd(index, "the program left its loop and says what came of it", Specificity.CLASS)
    return None


def _is_calm(log: _Log, tail: Sequence[int]) -> bool:
    """Whether nothing in the last words complains, nor begins something at their end."""
    lines = [log.evidence.lines[index] for index in tail]
    if any(map(log.table.complains, lines)):
        return False
    return not log.table.says_beginning(lines[-1].body)


def _tells_result(log: _Log, line: Line) -> bool:
    if log.advanced(line):
        return False
    if log.table.says_result(line.body) or log.table.says_leaving(line.body):
        return True
    return _counts(log, line.body) and not log.table.is_on_the_way(line.body)


def _tail_of(evidence: Evidence, stream: Stream, number: int) -> list[int]:
    """Indices of the lines of a stream behind a line; none of them where they are too many to be last words."""
    tail = []
    for index, line in enumerate(evidence.lines):
        if line.stream != stream:
            continue
        if line.number <= number:
            continue
        if line.mark is Mark.TRACEBACK:
            return []
        if line.number - number > _LAST_WORDS:
            return []
        if line.body.strip():
            tail.append(index)
    return tail


def _has_left_loop(log: _Log, stream: Stream, number: int) -> bool:
    """Whether no count of the loop's last line or of a bar is short of its total, nor an epoch of the epochs."""
    lines = [line for line in log.evidence.lines if line.stream == stream]
    in_loop = [line for line in lines if line.number <= number]
    bars = [line for line in lines if _BAR in line.body]
    return not any(map(_is_short, (*in_loop[-1:], *bars[-1:])))


def _is_short(line: Line) -> bool:
    """Whether the newest counts of a line are short of their totals, or its bar of 100 %."""
    newest = line.body[-_LONGEST:].rpartition("\r")[2]
    if any(int(percent) < 100 for percent in _PERCENT.findall(newest)[-1:]):
        return True
    return any(int(step) + 1 < int(total) for step, total in _OF_TOTAL.findall(newest)[-2:])


def _shared(log: _Log) -> CleanEnd | None:
    """What each of several processes says but once, behind its loop, where no complaint follows."""
    for stream, template in log.processes.shared.items():
        index = _index_of(log.evidence.lines, template.last[1], stream)
        if index is None:
            continue
        if index >= log.spoken:
            continue
        if log.table.says_beginning(template.text):
            continue
        if log.table.says_trouble(template.text):
            continue
        if not _complains_behind(log, stream, template):
            return CleanEnd(index, "every process says so once, behind its loop", Specificity.CLASS)
    return None


def _complains_behind(log: _Log, stream: Stream, template: Template) -> bool:
    """Whether a process complains, or raises, and is not known to say its last words, of this shape, only then."""
    last = log.processes.last_of_shape(template)
    for index, line in enumerate(log.evidence.lines):
        if line.stream != stream:
            continue
        if line.number < template.first[1]:
            continue
        if last.get(log.processes.of[index], 0) > line.number:
            continue
        if _is_loud(line) or log.table.complains(line):
            return True
    return False


def _is_loud(line: Line) -> bool:
    """Whether the line is part of a traceback, or its program calls it an error or worse."""
    if line.mark is Mark.TRACEBACK:
        return True
    return line.severity not in (None, *_MILD)


def _reported(log: _Log) -> CleanEnd | None:
    """The last report of a process's end, where all are of code 0 and no exception left a program. Who was told to end
    may leave with 0 as well: then something must say after the order that the work is done."""
    reports = log.evidence.exits
    if set(map(attrgetter("code"), reports)) != {0}:
        return None
    if any(map(attrgetter("left_program"), log.evidence.tracebacks)):
        return None
    last = max(map(attrgetter("line"), reports))
    if log.advanced(log.evidence.lines[last]):
        return None
    said = log.evidence.lines[log.spoken : last]
    if log.orders and not any(log.table.says_end(line.body, closing=True) for line in said):
        return None
    return CleanEnd(last, "its process is reported to have ended with code 0", Specificity.CODE)


_SOURCES: Mapping[str, _Source] = {
    "reported": _reported,
    "last words": _last_words,
    "total": _total,
    "results": _results,
    "shared": _shared,
}
"""The surest first; the next one is asked where all before know no end."""


def _index_of(lines: Sequence[Line], number: int, stream: Stream | None = None) -> int | None:
    """The index of the line of a number. stream: that it is of, None for any."""
    for index, line in enumerate(lines):
        if line.number == number and stream in (None, line.stream):
            return index
    return None


def _counts_to(line: Line, last: int) -> bool:
    """Whether the line counts to the last step, as ``300/300`` does."""
    return any(int(step) == int(total) == last for step, total in _COUNTED.findall(line.text))


def _raises_after(evidence: Evidence, index: int) -> bool:
    """Whether a traceback follows that the program did not log."""
    logged = set[int]()
    for number, trace in enumerate(evidence.tracebacks):
        if is_logged(evidence, trace.raised, number):
            logged.update(trace.lines)
    behind = set(range(index, len(evidence.lines))) - logged
    return any(_is_frame(evidence.lines[later].body) for later in behind)


def _in_earlier_epoch(lines: Sequence[Line]) -> bool:
    """Whether steps are counted within an epoch that is not known to be the last one."""
    for line in reversed(lines[-_EPOCH_LINES:]):
        epochs = _EPOCH.findall(line.body[:_LONGEST])
        if epochs:
            return all(not total or int(epoch) < int(total) for epoch, total in epochs)
    return False
