"""Which processes of a job ended well, where each of them speaks for itself, and which one its peers left behind.

An end holds for the process that prints it. A peer that states none may have ended well too: often only rank 0 speaks,
and not every line is kept. It stopped where its steps are short of those of peers that state their end, or where
several of these do and it made no steps that reach theirs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter

from diagnoser.model import Evidence, Line, Severity, Stream, Template
from diagnoser.model.choice import single
from diagnoser.structure.loops import Loop, Loops, find_loops, whole_numbers, words_of

_PEERS = 2
"""Processes that must state their end before the silence of another one says anything."""
_LAST_WORDS = 4
"""Kept lines of a process, the last ones, in which it states its end, or complains."""
_TURNS = 3
"""Lines of a process from which a shape is its loop's."""
_MOST = 2
"""Part of the turns of a process by which a peer that trains beside it has ended long before."""
_TRAINED = 1
"""More steps of a process than this show that it trained."""
_SHORT = 2
"""Steps by which a process may be behind its peers as they end."""
_SHOWN_LATE = ("w", "h")
"""How the labels begin of prefixes that were learned, and of hosts that a parallel shell puts in front."""
_BY_PID = "p"
"""How the labels begin of processes that are told by their pids."""
_MILD = (Severity.DEBUG, Severity.INFO, Severity.WARNING)
Process = tuple[Stream, int | str]
"""The stream, and who prints into it as far as the log tells: see ``Line.process``."""
Says = Callable[[str], bool]
_Alias = Mapping[int | str, int]


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a job that train side by side.

    of: the process of each line, None where the log does not tell it from others.
    steps: the last step of each that counts some, or the last count of its loop.
    loops: for each process, the shapes of the loops that it prints.
    greetings: for each process, the shapes of the lines that it and its peers print once.
    ends: number of the line in which each states its end. complaints: those whose last words complain.
    unnamed: how many lines of each stream state the end of a process that is not known.
    complained: whether the last words of the job complain.
    trained: whether any process counts steps, or prints a measured loop.
    turns: numbers of the first and the last line of the loop of each, as far as they are known.
    shared: for each stream, the last shape that each of its processes prints but once, behind its loop.
    silent: those that state no end, came less far than a peer, and last printed what none that came further prints.
    raised: those that state no end, and whose last words an exception is that left its program.
    found: the loops of the log.
    """

    lines: tuple[Line, ...] = ()
    of: tuple[Process | None, ...] = ()
    steps: Mapping[Process, int] = field(default_factory=dict)
    loops: Mapping[Process, frozenset[str]] = field(default_factory=dict)
    greetings: Mapping[Process, frozenset[str]] = field(default_factory=dict)
    ends: Mapping[Process, int] = field(default_factory=dict)
    complaints: frozenset[Process] = frozenset()
    unnamed: Mapping[Stream, int] = field(default_factory=dict)
    complained: bool = False
    trained: bool = False
    turns: Mapping[Process, tuple[int, int]] = field(default_factory=dict)
    shared: Mapping[Stream, Template] = field(default_factory=dict)
    silent: frozenset[Process] = frozenset()
    raised: frozenset[Process] = frozenset()
    found: Loops = field(default_factory=Loops)

    def known(self, stream: Stream) -> AbstractSet[Process]:
        """The processes that the log tells apart in a stream."""
        return _in_stream(stream, filter(None, self.of))

    def left_behind(self, index: int) -> bool:
        """Whether the process that printed a line states no end after it, though its peers state theirs."""
        process = self._process_at(index)
        if process is None:
            return False
        return self._stopped(process, self.lines[index].number)

    def fell_silent(self, index: int) -> bool:
        """Whether the process that printed a line stopped, for all that is seen, while a peer trained on."""
        return self._process_at(index) in self.silent or self.left_behind(index)

    def outlived(self, index: int, line: Line) -> bool:
        """Whether the process that printed a line trained on or states its end; each one, where the line names none."""
        process = self._process_at(index)
        all_ended = line.stream in self.shared and self.shared[line.stream].first[1] > line.number
        if process is None:
            return all_ended or self.found.all_went_on(line, _TURNS)
        if process not in {*self.loops, *self.steps}:
            return self._all_end_behind(line)
        if self.ends.get(process, 0) > line.number or self.found.went_on(line, 0):
            return True
        return all_ended

    def _all_end_behind(self, line: Line) -> bool:
        """Whether each of several processes, and so who printed a line, states its end behind it."""
        known = self.known(line.stream)
        if len(known) < _PEERS or not known <= self.ends.keys():
            return False
        return min(map(self.ends.__getitem__, known)) > line.number

    def unfinished(self, stream: Stream) -> bool:
        """Whether a process that trained, or complained before it could, stopped before its peers ended."""
        processes = {*self.loops, *self.steps, *self.raised, *(self.complaints & self.greetings.keys())}
        return any(map(self._stopped, _in_stream(stream, processes)))

    def speak_for_all(self, stream: Stream) -> bool:
        """Whether every process that trained in the stream states its end or made as many steps as those that do."""
        trained = _in_stream(stream, {*self.loops, *self.steps})
        reached = self._furthest(trained) - _SHORT
        silent = [process for process in trained - self.ends.keys() if self.steps.get(process, -1) < reached]
        return len(silent) <= self.unnamed.get(stream, 0)

    def most_ended(self, stream: Stream) -> bool:
        """Whether most ranks that print into the stream state their end, and another one neither does nor made as many
        steps. Where only few speak for the job, it is one of each node."""
        ranks = {process for process in self.known(stream) if isinstance(process[1], int)}
        ended = ranks & self.ends.keys()
        if len(ended) <= len(ranks) / _MOST:
            return False
        reached = self._furthest(ended) - _SHORT
        silent = [rank for rank in ranks - ended if self.steps.get(rank, -math.inf) < reached]
        return len(silent) > self.unnamed.get(stream, 0)

    def is_behind(self, index: int, step: int) -> bool:
        """Whether some peer of the process that printed a line did not come as far as the step that it counts."""
        process = self._process_at(index)
        if process is None:
            return False
        steps = map(self.steps.__getitem__, self._peers(process, self.steps))
        return min(steps, default=step) < step - _SHORT

    def last_of_shape(self, template: Template) -> dict[Process | None, int]:
        """The last line of a shape by each process that is known to print it."""
        stream = template.first[0]
        last: dict[Process | None, int] = {(stream, lines.process): lines.kept[-1] for lines in template.processes}
        words = set(map(words_of, template.samples))
        for process, line in zip(self.of, self.lines, strict=True):
            if line.stream != stream:
                continue
            if words_of(line.text) in words:
                last[process] = max(last.get(process, 0), line.number)
        return last

    def _process_at(self, index: int) -> Process | None:
        """The process that printed a line; None where no processes were looked for."""
        return self.of[index] if index < len(self.of) else None

    def _furthest(self, processes: Iterable[Process]) -> int:
        """The last step of all these processes."""
        return max((self.steps.get(process, 0) for process in processes), default=0)

    def _stopped(self, process: Process, number: int = 0) -> bool:
        """Whether a process stopped on its way, after it had printed the line of this number."""
        if self.ends.get(process, 0) > number:
            return False
        peers = self._peers(process, self.ends)
        if peers and process in self.raised:
            return True
        if process in self.steps:
            return self._furthest(peers) - self.steps[process] > _SHORT
        if not peers:
            return False
        if self.unnamed.get(process[0]):
            return False  # the end of a process that is not known may be its own
        if any(self._went_on_without(process, peer) for peer in peers):
            return True
        if len(peers) >= _PEERS:
            return True
        return self._complained_beside(process, peers)

    def _complained_beside(self, process: Process, peers: Iterable[Process]) -> bool:
        """Whether the last words of a process complain, and its peers are not known to train where it does not."""
        if process not in self.complaints:
            return False
        if process in self.loops:
            return True
        return {*self.loops, *self.steps}.isdisjoint(peers)

    def _went_on_without(self, process: Process, peer: Process) -> bool:
        """Whether the peer, whose loop had begun, made most of its turns when the process made none any more."""
        if process not in self.turns:
            return False
        first, last = self.turns.get(peer, (0, 0))
        return first < self.turns[process][1] < first + (last - first) / _MOST

    def _peers(self, process: Process, among: Iterable[Process]) -> list[Process]:
        return [other for other in among if self._are_peers(other, process)]

    def _are_peers(self, other: Process, process: Process) -> bool:
        """Whether two processes of a stream are ranks of the job, or run the same loop."""
        if other == process:
            return False
        if other[0] != process[0]:
            return False
        if isinstance(other[1], int) and isinstance(process[1], int):
            return True
        if {other, process} <= self.loops.keys():
            return not self.loops[other].isdisjoint(self.loops[process])
        if not self.greetings.get(other, frozenset()).isdisjoint(self.greetings.get(process, frozenset())):
            return True
        return {other, process} <= self.steps.keys()


def _in_stream(stream: Stream, processes: Iterable[Process]) -> set[Process]:
    """Those of the processes that print into the stream."""
    return {process for process in processes if process[0] == stream}


def find_processes(
    evidence: Evidence, says_end: Says, complains: Callable[[Line], bool], newest: Line | None = None
) -> Processes:
    """The processes of the job's own output, and what their last words say.

    evidence: with the steps of the newest launch only.
    says_end: whether a message states an end. complains: whether a line complains that its program does not call mild.
    newest: the line with which that launch begins; None where there is one launch. Nobody waits for the processes of
    earlier ones to state their end.
    """
    alias = _only_ranks(evidence)
    of = tuple(_process_of(line, alias) for line in evidence.lines)
    spoken = _spoken(evidence, of)
    last = {process: lines[-_LAST_WORDS:] for process, lines in spoken.items()}
    found = find_loops(evidence)
    loops = [loop for loop in found.measured if newest is None or _goes_on_in(loop, newest)]
    steps = _steps(evidence, alias) or _counts(evidence, of, loops)
    looped, greetings = _loops(loops, alias), _greetings(evidence.templates, alias)
    endings = [template for template in evidence.templates if says_end(template.text)]
    ends = _ends_by_shape(endings, alias)
    for process, line in _said(last, lambda line: says_end(line.body)):
        ends[process] = max(ends.get(process, 0), line.number)
    complaints = {process for process, _ in _said(last, complains)}
    reached = dict.fromkeys(looped, 1) | steps
    last_progress = _last_progress(evidence, loops)
    return Processes(
        lines=evidence.lines,
        of=of,
        steps=steps,
        loops=looped,
        greetings=greetings,
        ends=ends,
        complaints=frozenset(complaints - ends.keys()),
        unnamed=_unnamed(endings),
        complained=any(map(complains, evidence.job_lines[-_LAST_WORDS:])),
        trained=bool(last_progress),
        turns=_known_turns(loops, alias),
        shared=_shared_last_words(evidence, of, loops, alias),
        silent=frozenset(_silent(last, reached, ends, last_progress)),
        raised=frozenset(_raised(evidence, of, last, loops)) - ends.keys(),
        found=found,
    )


def _goes_on_in(loop: Loop, launch: Line) -> bool:
    """Whether a loop is not of an earlier launch in the same stream. launch: the line with which the newest begins."""
    return loop.stream != launch.stream or loop.last >= launch.number


def _said(last: Mapping[Process, Sequence[Line]], says: Callable[[Line], bool]) -> Iterator[tuple[Process, Line]]:
    """The last lines of processes that say so."""
    for process, lines in last.items():
        for line in filter(says, lines):
            yield process, line


def _only_ranks(evidence: Evidence) -> dict[int | str, int]:
    """The only rank of each node, and of each name in front of other names, that has but one: what it prints without a
    rank is of it."""
    ranks = defaultdict[int | str, set[int]](set)
    for line in evidence.lines:
        if line.rank >= 0:
            for name in filter(None, (line.node, line.label.partition(" ")[0])):
                ranks[name].add(line.rank)
    return single(ranks)


def _process_of(line: Line, alias: _Alias) -> Process | None:
    if not line.stream.from_job:
        return None
    process = alias.get(line.process, line.process)
    if process == -1:
        return (line.stream, f"task {line.task}") if line.task >= 0 else None
    return line.stream, process


def _spoken(evidence: Evidence, of: Iterable[Process | None]) -> dict[Process, list[Line]]:
    """The kept lines of each process that are not empty."""
    spoken = defaultdict[Process, list[Line]](list)
    for line, process in zip(evidence.lines, of, strict=True):
        if process is not None and line.body.strip():
            spoken[process].append(line)
    return spoken


def _known_turns(loops: Iterable[Loop], alias: _Alias) -> dict[Process, tuple[int, int]]:
    """The first and the last line of the loops of each process that its lines name."""
    turns = dict[Process, tuple[int, int]]()
    for loop in loops:
        if loop.process != -1:
            process = loop.stream, alias.get(loop.process, loop.process)
            first, last = turns.get(process, (loop.first, loop.last))
            turns[process] = min(first, loop.first), max(last, loop.last)
    return turns


def _shared_last_words(
    evidence: Evidence, of: Iterable[Process | None], loops: Iterable[Loop], alias: _Alias
) -> dict[Stream, Template]:
    """For each stream, the last shape that each of its processes prints but once, behind the last turn of its loop.

    A process that crashes or is killed stops at something that it had printed before, or that its peers do not print.
    """
    trained, shared = dict(_turns_of_all(_last_turns(loops, alias), of)), dict[Stream, Template]()
    for template in sorted(evidence.templates, key=lambda template: template.last[1]):
        stream = template.last[0]
        if stream in trained and _is_said_once_behind(template, trained[stream], alias):
            shared[stream] = template
    return shared


def _turns_of_all(
    trained: Mapping[Stream, dict[int | str, int]], of: Iterable[Process | None]
) -> Iterator[tuple[Stream, dict[int | str, int]]]:
    """For each stream of several processes in which none but these trained, the last turn of each of them."""
    speaking = defaultdict[Stream, set[int | str]](set)
    for stream, name in filter(None, of):
        speaking[stream].add(name)
    for stream, turns in trained.items():
        if len(speaking[stream]) < _PEERS:
            continue
        if turns.keys() <= speaking[stream]:
            # who prints no loop of its own speaks behind that of its peers
            yield stream, dict.fromkeys(speaking[stream], max(turns.values())) | turns


def _last_turns(loops: Iterable[Loop], alias: _Alias) -> dict[Stream, dict[int | str, int]]:
    """For each stream, the last line of the loops of each process; where ranks share a loop, that of all."""
    last = defaultdict[Stream, dict[int | str, int]](dict)
    for loop in loops:
        if loop.count < _TURNS * len(loop.printers):
            continue
        for name in loop.printers:
            process = alias.get(name, name)
            last[loop.stream][process] = max(last[loop.stream].get(process, 0), loop.last)
    return last


def _is_said_once_behind(template: Template, turns: Mapping[int | str, int], alias: _Alias) -> bool:
    """Whether each process prints the shape once, behind its last turn. Of lines that were not kept it is not known
    who printed them."""
    if template.count != len(turns):
        return False
    said = {alias.get(name, name): number for name, number in _last_by_process(template).items()}
    if len(said) < _PEERS:
        return False
    if not said.keys() <= turns.keys():
        return False
    return all(number > turns[name] for name, number in said.items())


def _last_by_process(template: Template) -> dict[int | str, int]:
    """The last line of the shape by each process that is known to print it; that of all, where ranks share it."""
    if template.processes:
        return {lines.process: lines.kept[-1] for lines in template.processes}
    return dict.fromkeys(template.ranks, template.last[1])


def _ends_by_shape(templates: Iterable[Template], alias: _Alias) -> dict[Process, int]:
    """The processes that are known to print a shape which states an end, and where the last of them does."""
    ends = dict[Process, int]()
    for template in templates:
        for name, number in _last_by_process(template).items():
            process = template.last[0], alias.get(name, name)
            ends[process] = max(ends.get(process, 0), number)
    return ends


def _unnamed(templates: Iterable[Template]) -> dict[Stream, int]:
    """How many lines of these shapes are of no process that is known, where some are."""
    unnamed = Counter[Stream]()
    for template in templates:
        if template.processes:
            known = sum(len(lines.kept) for lines in template.processes)
            unnamed[template.last[0]] += max(template.count - known, 0)
    return unnamed


def _steps(evidence: Evidence, alias: _Alias) -> dict[Process, int]:
    """The last step that each process that counts more than one may have made: one that prints each tenth step may be
    nine further than it says, but no further than its peers are known to be."""
    numbers = defaultdict[Process, set[int]](set)
    for point in evidence.steps:
        if point.process != -1:
            numbers[point.stream, alias.get(point.process, point.process)].add(point.steps_made)
    furthest, reached = max(chain.from_iterable(numbers.values()), default=0), dict[Process, int]()
    for process, steps in numbers.items():
        if len(steps) > _TRAINED:
            before, last = sorted(steps)[-2:]
            reached[process] = min(last + last - before - 1, furthest)
    return reached


def _counts(evidence: Evidence, of: Sequence[Process | None], loops: Iterable[Loop]) -> dict[Process, int]:
    """How far each process counts in a measured loop, where its kept lines show a number that only grows. Of who speaks
    in records, or behind a prefix that only the whole log shows, the last lines may not be kept."""
    counts = dict[Process, int]()
    for by_process in _counted_lines(evidence, of, loops).values():
        column = _counting_column(list(by_process.values()))
        if column is not None:
            for process, turns in by_process.items():
                counts[process] = max(counts.get(process, 0), turns[-1][column])
    return counts


def _counted_lines(
    evidence: Evidence, of: Sequence[Process | None], loops: Iterable[Loop]
) -> dict[str, dict[Process, list[list[int]]]]:
    """Words of a measured loop that counts -> process -> the numbers in each of its lines."""
    words = frozenset[str]().union(*(loop.words for loop in loops if loop.counts))
    rows = defaultdict[str, dict[Process, list[list[int]]]](dict)
    for line, process in zip(evidence.lines, of, strict=True):
        if process is None:
            continue
        if not _is_always_labeled(line):
            continue
        shape = words_of(line.body)
        if shape in words:
            rows[shape].setdefault(process, []).append(whole_numbers(line.body))
    return rows


def _is_always_labeled(line: Line) -> bool:
    """Whether the line names its process in a way that shows in each line, and not in the whole log only."""
    if not line.label:
        return False
    return not line.label.startswith(_SHOWN_LATE)


def _counting_column(rows: Sequence[Sequence[Sequence[int]]]) -> int | None:
    """The first number in the lines of processes that grows from line to line in each of them."""
    if max(map(len, rows)) < _TURNS:
        return None
    for column in range(min(map(len, chain.from_iterable(rows)))):
        if all(_grows(turns, column) for turns in rows):
            return column
    return None


def _grows(turns: Sequence[Sequence[int]], column: int) -> bool:
    return all(before[column] < after[column] for before, after in pairwise(turns))


def _silent(
    last: Mapping[Process, Sequence[Line]],
    reached: Mapping[Process, int],
    ends: Mapping[Process, int],
    trained: Mapping[Stream, int],
) -> Iterator[Process]:
    """The processes that came less far than a peer which trained on, and say last what the program does not call mild
    and none of those prints as its last words.

    reached: the step of each that trains; 1 where only its loop is known. trained: the last line of a loop or step.
    """
    furthest = dict[Stream, int]()
    for (stream, _), step in reached.items():
        furthest[stream] = max(furthest.get(stream, 0), step)
    further = {p for p, step in reached.items() if step >= furthest[p[0]] - _SHORT} | ends.keys()
    usual = set[str]()
    for process in further & last.keys():
        usual.update(words_of(line.body) for line in last[process])
    for process in last.keys() - further:
        line = last[process][-1]
        if line.severity in _MILD:
            continue
        if words_of(line.body) in usual:
            continue
        if str(process[1]).startswith(_BY_PID):
            continue  # a helper, and no rank or numbered machine of the job
        if line.number < trained.get(line.stream, 0):
            yield process


def _raised(
    evidence: Evidence, of: Sequence[Process | None], last: Mapping[Process, Sequence[Line]], loops: Iterable[Loop]
) -> Iterator[Process]:
    """The processes among whose last words is an exception that nobody caught. One in front of all steps is of a launch
    that was tried again."""
    begins = chain(map(attrgetter("line"), evidence.steps), map(attrgetter("first"), loops))
    trained = min(begins, default=0)
    for trace in evidence.tracebacks:
        process, line = of[trace.raised], evidence.lines[trace.raised]
        if process and trace.left_program and line.number > trained and line in last[process]:
            yield process


def _last_progress(evidence: Evidence, loops: Iterable[Loop]) -> dict[Stream, int]:
    """The last line of each stream in which some process trained."""
    last = dict[Stream, int]()
    for point in evidence.steps:
        last[point.stream] = max(last.get(point.stream, 0), point.line)
    for loop in loops:
        last[loop.stream] = max(last.get(loop.stream, 0), loop.last)
    return last


def _greetings(templates: Iterable[Template], alias: _Alias) -> dict[Process, frozenset[str]]:
    """For each process, the shapes that it and others print once."""
    shapes = defaultdict[Process, set[str]](set)
    for template in templates:
        if template.count == len(template.processes) >= _PEERS:
            for lines in template.processes:
                shapes[template.first[0], alias.get(lines.process, lines.process)].add(template.text)
    return {process: frozenset(known) for process, known in shapes.items()}


def _loops(loops: Iterable[Loop], alias: _Alias) -> dict[Process, frozenset[str]]:
    """The shapes of the loops that each process prints."""
    shapes = defaultdict[Process, set[str]](set)
    for loop in loops:
        for name in loop.printers:
            shapes[loop.stream, alias.get(name, name)].add(loop.shape)
    return {process: frozenset(known) for process, known in shapes.items()}
