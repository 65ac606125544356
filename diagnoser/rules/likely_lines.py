"""The line that most likely tells why a run failed, where nothing else names one: a guess, never more.

Each line is read for features that carry over between frameworks: how its record is rated, its place among what its
process printed, whether anything went on below it, how often its shape occurs, its form and its words. A linear model
weighs them. Where nobody says how the run ended, two more ask whether it failed, and whether it completed: by that
line, and by what the log prints last. Their table, ``rules/line_weights.yaml``, is made by ``python -m
tools.likely_lines`` from labelled logs and read here without any library.
"""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field

from diagnoser.model import Evidence, Line, Severity
from diagnoser.model.yaml_loader import StrictModel, load
from diagnoser.rules.left_behind import Processes
from diagnoser.rules.logged_errors import calls_harmless
from diagnoser.rules.statements import without_advice
from diagnoser.structure.progress import COUNT_OF_TOTAL

FILE = "line_weights.yaml"
_READ = 400
"""Characters of a line that are read."""
_SHAPE = 200
"""Characters of a line that tell one shape from another."""
_LAST_WORDS = 9
"""Lines with which a process ends."""
_CLOSING = 6
"""Lines with which a log ends."""
_COUNTED = 12
"""Lines before the end of a log in which the last count of a total stands."""
_SURE = 6.0
"""Log-odds from which a line cannot be surer, or less sure, to tell why a run failed."""


class Shown(StrEnum):
    """What is asked of the likeliest line, or of the end of a log."""

    REPORTED = "reported"  # why the run failed, where somebody else than the log says that it did
    DENIED = "denied"  # whether it failed, where other words say that it ended well
    TELLING = "telling"  # whether it may tell why the run failed, where nothing says how it ended
    FAILED = "failed"  # whether it failed, likewise
    COMPLETED = "completed"  # whether it completed, likewise


_LETTERS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_NUMBER = re.compile(r"\d+")
_FORMS = {
    "head_colon": re.compile(r"^\W{0,3}\w[\w.+/()-]{0,40}(?: [\w.+/()-]{1,40}){0,4}: \S"),
    "capitals": re.compile(r"\b[A-Z]{4,}\b"),
    "ends_colon": re.compile(r":\s*$"),
    "ends_stop": re.compile(r"\.\s*$"),
    "exclaims": re.compile("!"),
    "dots": re.compile(r"\.\.\."),
    "negates": re.compile(r"(?i)\b(?:no|not|cannot|never|none|without|unable|nothing|neither|nor)\b|n't\b"),
    "negative_prefix": re.compile(r"(?i)(?<![a-z])(?:un|in|mis|dis|ab)[a-z]{4}"),
    "past": re.compile(r"[a-z]{3}ed(?![a-z])"),
    "doing": re.compile(r"^\W{0,40}[A-Za-z]{2,20}ing(?![a-z])"),
    "program_colon": re.compile(r"(?:/[\w./+-]{1,200}/)?[a-z][\w.+-]{1,40}: \S"),
    "class": re.compile(r"(?<!\w)(?:[A-Za-z_]\w{0,60}(?:\.|::)){0,9}[A-Z]\w{0,60}(?:Error|Exception|Fault|Failure)\b"),
    "path": re.compile(r"(?:^|[\s'\"=(])/?[\w.-]{1,60}/[\w./-]"),
    "key_value": re.compile(r"\w=\S"),
    "quote": re.compile(r"['\"`]\S"),
    "contrast": re.compile(r"(?i)\b(?:got|expected|instead|found|but)\b"),
    "place_in_file": re.compile(r"\w\.\w{1,5}:\d|\bline \d"),
    "number": _NUMBER,
}
_WARNS = re.compile(r"(?i)\bwarn(?:ing)?\b {0,3}:|\bdeprecated\b")
"""What a line says that calls itself a warning: it shows no failure that nobody else tells of."""
_UNSET = re.compile(r"(?i)(?<!\w)\w{1,40}[=:] ?(?:false|none|null|off)\b")
"""A field that is told to be unset, whatever it is called."""
_ALL_SAY = 0.8
"""Share of the processes that print a shape from which all of them do."""
_TOTAL = re.compile(COUNT_OF_TOTAL)


class EndWeightRows(StrictModel):
    """bias, weights: log-odds that a run ended so, the latter by feature."""

    bias: float
    weights: dict[str, float]


class LineWeightRows(StrictModel):
    """The file. bias, weights: log-odds that a line is the root, the latter by feature. ends: how the run ended. least:
    the probability from which a line, or an end, is named."""

    version: Literal[1]
    least: dict[Shown, Annotated[float, Field(ge=0, le=1)]]
    bias: float
    weights: dict[str, float]
    ends: dict[Literal[Shown.FAILED, Shown.COMPLETED], EndWeightRows] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LikelyEnd:
    """A guess at how a run ended. line: index of the line that tells it best."""

    line: int
    is_failure: bool


class LineRanker:
    """It keeps no state between logs and may be shared by threads."""

    def __init__(self, rows: LineWeightRows) -> None:
        self._rows = rows

    def likeliest(self, evidence: Evidence, dismissed: Collection[int]) -> int | None:
        """Index of the line that likeliest tells why a run failed of which that is known; None where none is likely.

        dismissed: lines of which it is known that they are no cause.
        """
        return self._likeliest_of(evidence, frozenset(range(len(evidence.lines))).difference(dismissed), Shown.REPORTED)

    def likely_end(self, evidence: Evidence, dismissed: Collection[int], processes: Processes) -> LikelyEnd | None:
        """How a run ended of which nobody says it; None where nothing is likely.

        dismissed: lines of which it is known that they are no cause.
        processes: those of the job, and how each ended.
        """
        scores = self._scores(evidence, _last_words(evidence, processes).difference(dismissed))
        if not scores:
            return None
        shown = _end_features(evidence, scores, processes)
        likeliest = max(scores, key=scores.__getitem__)
        if _WARNS.search(evidence.lines[likeliest].body[:_READ]):
            return None
        probability, least = _probability(scores[likeliest]), self._rows.least
        has_failed = probability >= least[Shown.TELLING] and self._is_likely(Shown.FAILED, shown)
        if has_failed or probability >= least[Shown.DENIED]:
            return LikelyEnd(likeliest, is_failure=True)
        if _just_stops(shown):
            return None
        if not self._is_likely(Shown.COMPLETED, shown):
            return None
        return LikelyEnd(_closing_lines(evidence)[-1], is_failure=False)

    def shown(self, evidence: Evidence, dismissed: Collection[int], processes: Processes) -> dict[str, float]:
        """What the models of ends weigh of a log. The arguments are those of ``likely_end``."""
        last = _last_words(evidence, processes).difference(dismissed)
        return _end_features(evidence, self._scores(evidence, last), processes)

    def denies(self, evidence: Evidence, end: int, dismissed: Collection[int], processes: Processes) -> int | None:
        """Index of the likeliest of the last words of all processes, where it outweighs a line that says that the run
        ended well; None without one. What the process of that line printed before, it survived.

        end: index of the line.
        dismissed: lines of which it is known that they are no cause.
        processes: those of the job, and how each ended.
        """
        speaker = evidence.lines[end].speaker
        survived = (index for index, line in enumerate(evidence.lines[: end + 1]) if line.speaker == speaker)
        last = _last_words(evidence, processes).difference(survived, dismissed)
        return self._likeliest_of(evidence, last, Shown.DENIED)

    def _likeliest_of(self, evidence: Evidence, lines: Collection[int], shown: Shown) -> int | None:
        scores = self._scores(evidence, lines)
        index = max(scores, key=scores.__getitem__, default=None)
        if index is None:
            return None
        return index if _probability(scores[index]) >= self._rows.least[shown] else None

    def _is_likely(self, end: Literal[Shown.FAILED, Shown.COMPLETED], shown: Mapping[str, float]) -> bool:
        rows = self._rows.ends.get(end)
        if rows is None:
            return False
        score = rows.bias + sum(rows.weights.get(name, 0.0) * value for name, value in shown.items())
        return _probability(score) >= self._rows.least[end]

    def _scores(self, evidence: Evidence, lines: Collection[int]) -> dict[int, float]:
        """The log-odds of each line that says anything."""
        return {index: self.score(names) for index, names in features(evidence, lines)}

    def score(self, names: Collection[str]) -> float:
        """The log-odds that a line of these features is the root."""
        return self._rows.bias + sum(self._rows.weights.get(name, 0.0) for name in names)


def _probability(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def features(evidence: Evidence, chosen: Collection[int] | None = None) -> Iterator[tuple[int, frozenset[str]]]:
    """What the model weighs of each line that says anything. chosen: of these lines only; None: of all."""
    log = _LogFacts(evidence)
    for printed in log.by_speaker.values():
        below = 0
        for place in reversed(range(len(printed))):
            index = printed[place]
            if chosen is None or index in chosen:
                names = [*log.of_record(index), *log.of_run(index), *log.of_shape(index), *_of_place(place, below)]
                names += [*log.of_neighbours(printed, place), *_of_text(evidence.lines[index].body)]
                yield index, frozenset(names)
            below += log.is_statement(index)


def _end_features(evidence: Evidence, scores: Mapping[int, float], processes: Processes) -> dict[str, float]:
    """What the end of a log shows of how its run ended.

    scores: of the last lines of each process, the log-odds that they tell why it failed.
    processes: those of the job, and how each ended.
    """
    shown = {"likeliest": _bounded(max(scores.values(), default=-_SURE)), f"trained:{processes.trained}": 1.0}
    silent = [score for index, score in scores.items() if processes.fell_silent(index)]
    if silent:
        shown |= {"silent": 1.0, "likeliest_of_silent": _bounded(max(silent))}
    closing = _closing_lines(evidence)
    for index in closing[-_CLOSING:]:
        read = words(_UNSET.sub("", evidence.lines[index].body[:_READ]))
        shown |= dict.fromkeys((f"closing:{word}" for word in read), 0.3)
    shown |= _of_last_line(evidence, closing[-1:])
    return shown | _of_newest_total(evidence, closing)


def _of_last_line(evidence: Evidence, last: Sequence[int]) -> dict[str, float]:
    """What the model of lines sees of the last one, but for its words, and whether it is a step. last: its index."""
    shown = dict[str, float]()
    for _, names in features(evidence, last):
        shown |= {f"last:{name}": 0.5 for name in names if not name.startswith("word:")}
    steps = {(point.stream, point.line) for point in evidence.progress[-_COUNTED:]}
    for line in map(evidence.lines.__getitem__, last):
        if (line.stream, line.number) in steps:
            shown["last:a_step"] = 1.0
    return shown


def _of_newest_total(evidence: Evidence, closing: Sequence[int]) -> dict[str, float]:
    """Whether the newest count that stands beside its total has reached it."""
    for index in reversed(closing):
        for step, total in _TOTAL.findall(evidence.lines[index].body[:_READ])[-1:]:
            has_reached = int(step) + 1 >= int(total)
            return {"total:reached" if has_reached else "total:short": 1.0}
    return {}


def _just_stops(shown: Mapping[str, float]) -> bool:
    """Whether a process stopped within its loop, as far as is seen: it fell silent, the last count is short of its
    total, or the last line is one of many, and no count has reached its total."""
    if not shown.keys().isdisjoint(("silent", "total:short")):
        return True
    if "total:reached" in shown:
        return False
    if "last:a_step" in shown:
        return True
    if "last:repeats_itself" not in shown:
        return False
    return not shown.keys().isdisjoint(("last:shape:to_4", "last:shape:over_4"))


def _bounded(score: float) -> float:
    return max(-1.0, min(1.0, score / _SURE)) * 2


def _closing_lines(evidence: Evidence) -> list[int]:
    """The last lines of the log that say anything."""
    spoken = (index for index, line in enumerate(evidence.lines) if line.body.strip())
    return list(deque(spoken, maxlen=_COUNTED))


def _last_words(evidence: Evidence, processes: Processes) -> frozenset[int]:
    """The last lines of each process but those after which it is seen to train on: it was not ended by them."""
    printed: dict[object, deque[int]] = defaultdict(lambda: deque(maxlen=_LAST_WORDS))
    for index, line in enumerate(evidence.lines):
        if line.body.strip():
            printed[line.speaker].append(index)
    last = chain.from_iterable(printed.values())
    return frozenset(index for index in last if not processes.outlived(index, evidence.lines[index]))


def words(text: str) -> list[str]:
    """The words of a text in order, in lower case and without single letters; a capital begins a word within a name."""
    return [word.lower() for word in _LETTERS.findall(text) if len(word) > 1]


def _is_weighed(body: str) -> bool:
    """Whether a line says anything, gives no advice, and calls no error harmless."""
    if not body.strip():
        return False
    if without_advice(body) != body:
        return False
    return not calls_harmless(body)


class _LogFacts:
    """What a log shows about each of its lines. Lines are indices."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._lines = evidence.lines
        self.by_speaker: dict[object, list[int]] = defaultdict(list)
        for index, line in enumerate(evidence.lines):
            if _is_weighed(line.body):
                self.by_speaker[line.speaker].append(index)
        self._shapes = list(map(shape_of, evidence.lines))
        self._raised = {trace.raised: number for number, trace in enumerate(evidence.tracebacks)}
        self._causes = {trace.cause for trace in evidence.tracebacks} - {-1}
        self._exits = {report.line for report in evidence.exits}
        self._last = max((printed[-1] for printed in self.by_speaker.values()), default=-1)

    @cached_property
    def _frames(self) -> frozenset[int]:
        """Lines of tracebacks but for those that say what was raised."""
        return self._evidence.traceback_lines - self._raised.keys()

    @cached_property
    def _first_errors(self) -> Mapping[object, int]:
        """The first line of each process that its program calls an error, or worse."""
        first: dict[object, int] = {}
        for speaker, printed in self.by_speaker.items():
            for index in reversed(printed):
                if self._lines[index].severity in (Severity.ERROR, Severity.CRITICAL):
                    first[speaker] = index
        return first

    @cached_property
    def _progress(self) -> Mapping[object, int]:
        """The number of the last line in which a process tells how far it is."""
        last: dict[object, int] = {}
        for point in self._evidence.progress:
            speaker = point.stream, point.process
            last[speaker] = max(last.get(speaker, 0), point.line)
        return last

    @cached_property
    def _printed(self) -> Counter[tuple[object, str]]:
        """How often a process prints a shape."""
        return Counter((line.speaker, shape) for line, shape in zip(self._lines, self._shapes, strict=True))

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(self._shapes)

    @cached_property
    def _sayers(self) -> Counter[str]:
        """How many processes print a shape."""
        return Counter(shape for _, shape in self._printed)

    def is_statement(self, index: int) -> bool:
        """Whether the line is no detail of one above it."""
        if index in self._frames:
            return False
        return not self._lines[index].is_indented

    def of_record(self, index: int) -> Iterator[str]:
        """The rating of the line, and its part in a traceback or a report."""
        yield f"severity:{_severity(self._lines[index])}"
        if self._lines[index].is_indented:
            yield "indented"
        if index in self._frames:
            yield "in_traceback"
        if index in self._exits:
            yield "exit_report"
        first = self._first_errors.get(self._lines[index].speaker, math.inf)
        if index >= first:
            yield "first_error" if index == first else "below_error"
        number = self._raised.get(index)
        if number is None:
            return
        yield "raised"
        if number in self._causes:
            yield "raised:cause"
        elif self._evidence.tracebacks[number].cause >= 0:
            yield "raised:from_another"

    def of_run(self, index: int) -> Iterator[str]:
        """Whether the process or its peers went on."""
        line = self._lines[index]
        last = self._progress.get(line.speaker, 0)
        if last > line.number:
            yield "progress_below"
        elif last:
            yield "progress_above"
        elif self._progress:
            yield "progress_of_others"
        if self.by_speaker[line.speaker][-1] < self._last:
            yield "others_outlive"

    def of_shape(self, index: int) -> Iterator[str]:
        """How usual such a line is."""
        shape = self._shapes[index]
        yield f"shape:{_step(self._counts[shape], (1, 2, 4))}"
        if self._printed[self._lines[index].speaker, shape] > 1:
            yield "repeats_itself"
        sayers, speakers = self._sayers[shape], len(self.by_speaker)
        if sayers > 1:
            yield "said_by_all" if sayers >= _ALL_SAY * speakers else "said_by_some"

    def of_neighbours(self, printed: Sequence[int], place: int) -> Iterator[str]:
        """What its process printed right before and after it."""
        if place > 0:
            above = printed[place - 1]
            yield f"above:{_severity(self._lines[above])}"
            if above in self._frames:
                yield "above:in_traceback"
        if place + 1 == len(printed):
            yield "below:nothing"
            return
        below = printed[place + 1]
        if self._lines[below].body[:1].isspace():
            yield "below:indented"
        if below in self._evidence.traceback_lines:
            yield "below:in_traceback"


def shape_of(line: Line) -> str:
    """The words of a line, in which the numbers are alike."""
    return " ".join(_NUMBER.sub("#", line.body[:_SHAPE]).split())


def _severity(line: Line) -> str:
    return "none" if line.severity is None else line.severity.name.lower()


def _of_place(place: int, below: int) -> Iterator[str]:
    """Where the line stands in what its process printed. below: statements that follow it."""
    yield f"place:{_step(place, (0, 2))}"
    yield f"statements_below:{_step(below, (0, 1, 3, 9, 29))}"


def _of_text(body: str) -> Iterator[str]:
    """The form of the line, and its words."""
    text = _UNSET.sub("", body[:_READ])
    for name, pattern in _FORMS.items():
        if pattern.search(text):
            yield f"form:{name}"
    read = words(text)
    yield f"length:{_step(len(read), (1, 3, 6, 12, 25))}"
    yield from (f"word:{word}" for word in read)


def _step(number: int, steps: Sequence[int]) -> str:
    """The first of the steps that a number does not exceed."""
    return next((f"to_{step}" for step in steps if number <= step), f"over_{steps[-1]}")


def load_ranker(path: str, text: str) -> LineRanker:
    """Raises RuleFaults with every fault of the file."""
    return LineRanker(load(path, text, LineWeightRows))
