"""Whether a run that is still open hangs: how long nothing advanced, compared with the run's own rhythm.

A pause is known by what came before it: the last step, or a line of the stage that the run is in. What a run, or an
earlier one of its family, came back from after as long is no hang.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from statistics import median, median_high

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Baseline, Evidence, Line, Progress, Stage
from diagnoser.model.evidence import numbers_of
from diagnoser.model.job_contract import JobContract
from diagnoser.structure.progress import COUNT_OF_TOTAL

FIRST_STEP = "first_step"
"""The kind of pause before and between the first steps: kernels are compiled, loaders start. Other kinds are stages."""
LONGEST_DOUBT = 3600.0
"""Seconds for which a run that printed what looks fatal may be silent, whatever its rhythm or contract says; and for
which it may print without a step."""
_PATIENCE = {
    Stage.LAUNCH.value: 1800.0,
    Stage.INIT.value: 900.0,
    Stage.DATA.value: 3600.0,
    Stage.LOAD.value: 1800.0,
    Stage.SAVE.value: 1800.0,
    Stage.EVAL.value: 1800.0,
    Stage.FINISH.value: 900.0,
    FIRST_STEP: 3600.0,
}
"""Seconds that a stage may be silent when neither the log nor an earlier run shows how long it takes: indexing a data
set takes longest; process groups wait 10 to 15 minutes for their members by default."""
_REPEATED = (Stage.SAVE, Stage.EVAL)
"""Stages that a run comes back to: its own earlier stays tell how long the next one takes."""
_SUSPECTED, _CONFIRMED = 3.0, 10.0
"""Silence, in usual steps, before a hang is suspected and confirmed."""
_SUSPECTED_FLOOR, _CONFIRMED_FLOOR = 11.0, 60.0
"""Shortest silence in seconds."""
_UNSEEN_FLOOR = 300.0
"""Shortest silence that confirms a hang by itself where no pause of its kind was seen yet: the first evaluation or
checkpoint may begin without a word, and a wrong stop costs more than a late one."""
_LIKE_BEFORE, _AS_BEFORE = 1.5, 3.0
"""Multiples of the longest pause of its kind after which a hang is suspected and confirmed."""
_RECENT = 32
"""Newest pairs of steps that tell the rhythm: it changes with the batch size and the data."""
_POINTS = 3
"""Timed steps needed to know how long one takes; the time between them belongs to the first ones."""
_QUICK = 6
"""Steps that show a rhythm though all came at once: by their own times, in whole seconds perhaps, or durations."""
_READ = 400
"""Characters at the end of a line in which counts are looked for."""
_COUNT = re.compile(COUNT_OF_TOTAL + r"(?! ?(?:s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b)")
"""Not how much of a time is over: that grows where everything stands still, as a clock and an uptime do."""
_WORD = re.compile(r"[^\W\d_]+")
_NOISE = 0.2
"""Share of a long time between two steps that need not be a pause: the steps in between are not all alike."""


@dataclass(frozen=True, slots=True)
class ExpectedSilence:
    """How long a live attempt may be silent where it stands, in seconds.

    ahead: how long before its newest line the last step was made; 0.0 where lines are progress.
    usual: time between two printed steps in training, else the longest silence there that was recovered from; 0.0
        where none is known.
    suspected, confirmed: silence from which a hang is suspected, and certain enough without more evidence.
    in_training: shortest silence that would be suspect while steps are made; 0.0 before their rhythm is known.
    known: whether steps, or an earlier stage of the kind, show how long it may be silent.
    """

    stage: Stage
    ahead: float
    usual: float
    suspected: float
    confirmed: float
    in_training: float
    known: bool = True

    def silence(self, quiet: float) -> "Silence | None":
        """None while a hang is not even suspected. quiet: seconds since the newest line arrived."""
        seconds = quiet + self.ahead
        if seconds < self.suspected:
            return None
        return Silence(seconds, self.usual, self.stage, seconds >= self.confirmed, self.known)

    def next_look(self, quiet: float) -> float:
        """Seconds until the silence becomes suspect, or certain; infinite once it is certain."""
        seconds = quiet + self.ahead
        return min((limit - seconds for limit in (self.suspected, self.confirmed) if limit > seconds), default=math.inf)


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a live attempt has made no progress in ``stage``, and what is usual there, both in seconds.

    confirmed: so long that it hangs; else that is only suspected. known: whether it is known how long a stage like this
    one takes: if not, a rank that all others wait for may be at work, as one that evaluates or builds an index alone.
    """

    seconds: float
    usual: float
    stage: Stage
    confirmed: bool
    known: bool = True


_Pauses = Mapping[str, float]
"""Kind of pause -> seconds of the longest one."""


def expected_silence(evidence: Evidence, known: Baseline) -> ExpectedSilence | None:
    """None where the log shows no stage.

    In training only steps count, in other stages any line: loading and saving have no common measure.

    known: the clean runs of the family, which tell of pauses to come.
    """
    stage = _stage(evidence)
    if stage is None:
        return None
    points = _in_order(evidence.progress)
    rhythm = _Rhythm(points)
    own, family = _longest(evidence, rhythm), _of_family(known)
    if not rhythm.steady:
        return _in_stage(stage, rhythm, own, family, 0.0)
    beyond = _longest_of(Stage.TRAIN.value, own, family)
    in_training = max(_SUSPECTED * rhythm.usual, _SUSPECTED_FLOOR, _LIKE_BEFORE * beyond)
    if stage is not Stage.TRAIN:
        return _in_stage(stage, rhythm, own, family, in_training)
    floor = _CONFIRMED_FLOOR if beyond or family else _UNSEEN_FLOOR
    confirmed = max(_CONFIRMED * rhythm.usual, floor, _AS_BEFORE * beyond)
    return ExpectedSilence(stage, _ahead(evidence, points), rhythm.usual, in_training, confirmed, in_training)


def stands_still_after(limit: ExpectedSilence | None) -> float:
    """Seconds of silence from which on a run that printed what looks fatal is not expected to go on: peers of a process
    that died wait for it. limit: None where the log shows no stage."""
    if limit is None:
        return _CONFIRMED_FLOOR
    return min(max(_CONFIRMED_FLOOR, limit.suspected), LONGEST_DOUBT) - limit.ahead


def agreed_silence(limit: ExpectedSilence | None, contract: JobContract) -> ExpectedSilence | None:
    """The expected silence with what the job itself asks for, where it stands before or between its steps."""
    if limit is None:
        return None
    agreed = contract.first_step_within
    if limit.in_training:
        agreed = contract.cadence if limit.stage is Stage.TRAIN else None
    if agreed is None:
        return limit
    return replace(limit, suspected=agreed, confirmed=agreed, known=True)


def _longest_of(kind: str, own: _Pauses, family: _Pauses) -> float:
    return max(own.get(kind, 0.0), family.get(kind, 0.0))


def _in_stage(stage: Stage, rhythm: "_Rhythm", own: _Pauses, family: _Pauses, in_training: float) -> ExpectedSilence:
    """The silence that is expected outside of steady training.

    own, family: longest pauses by kind, of this run and of earlier ones.
    """
    if stage is Stage.TRAIN:
        return _before_rhythm(rhythm, own, family, in_training)
    kind = stage.value
    longest = _longest_of(kind, own, family)
    again = stage in _REPEATED and rhythm.steady and kind in own
    seen = again or kind in family
    confirmed = max(_AS_BEFORE * longest, _UNSEEN_FLOOR if seen else _PATIENCE[kind])
    late = confirmed * _SUSPECTED / _CONFIRMED
    if again:
        late = max(_SUSPECTED * rhythm.usual, _SUSPECTED_FLOOR)
    suspected = max(_LIKE_BEFORE * longest, late)
    return ExpectedSilence(stage, 0.0, longest, suspected, confirmed, in_training, known=seen)


def _before_rhythm(rhythm: "_Rhythm", own: _Pauses, family: _Pauses, in_training: float) -> ExpectedSilence:
    """The silence that is expected in training before the rhythm of its steps is known."""
    longest, seen = _longest_of(FIRST_STEP, own, family), FIRST_STEP in family
    confirmed = max(_AS_BEFORE * longest, _UNSEEN_FLOOR if seen else _PATIENCE[FIRST_STEP])
    late = confirmed * _SUSPECTED / _CONFIRMED
    if rhythm.many:  # worth a look at the runtime, and no more
        seen, late = True, _SUSPECTED_FLOOR
    suspected = max(_LIKE_BEFORE * longest, late)
    return ExpectedSilence(Stage.TRAIN, 0.0, longest, suspected, confirmed, in_training, known=seen)


def pauses(evidence: Evidence) -> Mapping[str, float]:
    """Seconds of the longest silence that a run came back from, by what came before it: a stage or ``FIRST_STEP``."""
    return _longest(evidence, _Rhythm(_in_order(evidence.progress)))


def _longest(evidence: Evidence, rhythm: "_Rhythm") -> dict[str, float]:
    longest: dict[str, float] = defaultdict(float)
    for kind, seconds in (*rhythm.pauses(), *_stays(evidence)):
        longest[kind] = max(longest[kind], seconds)
    return dict(longest)


def _of_family(known: Baseline) -> dict[str, float]:
    """The longest pauses of the clean runs; between two steps what half of the runs came back from, as one odd pause is
    no habit of the family. A stage takes as long as it ever did: caches are cold in few runs."""
    longest: dict[str, float] = {}
    between_steps = list[float]()
    for run in known.runs:
        for kind, seconds in run.pauses.items():
            longest[kind] = max(seconds, longest.get(kind, 0.0))
        if run.pauses:
            between_steps.append(run.pauses.get(Stage.TRAIN, 0.0))
    if between_steps:
        longest[Stage.TRAIN] = median_high(between_steps)
    return longest


@dataclass(frozen=True, slots=True)
class _Advance:
    """The newest step of a moment at which steps were shown."""

    time: float
    step: int


class _Rhythm:
    """How the steps follow each other: those of the rank that prints most of them.

    usual: seconds between two printed steps.
    steady: enough steps were made to tell.
    many: they were made, but whether quickly cannot be told where they came together and print no times.
    """

    def __init__(self, points: Sequence[Progress]) -> None:
        steps = _most_steps(points)
        self._advances = _advances(steps)
        recent = list(pairwise(self._advances))[-_RECENT:]
        self._stride = _median(_between(a.step, b.step) for a, b in recent) or 1.0
        intervals = [b.time - a.time for a, b in recent if _between(a.step, b.step) <= 2 * self._stride]
        self.usual = max(_median(intervals), _median(intervals[-_POINTS:]))  # a run that has slowed down still runs
        self.steady = len(self._advances) >= _POINTS
        self.many = len(numbers_of(steps)) >= _QUICK
        if not self.steady:  # they came together: what they print of themselves
            self.steady = len(numbers_of(filter(_prints_time, steps))) >= _QUICK
            self.usual = max(self.usual, _printed_interval(steps[-_RECENT:]))

    def pauses(self) -> Iterator[tuple[str, float]]:
        """Time between two steps beyond what the steps take: an evaluation, a checkpoint. Of steps that were not kept
        it is the sum."""
        for index, (a, b) in enumerate(pairwise(self._advances)):
            seconds = b.time - a.time
            if index < _POINTS - 1:
                yield FIRST_STEP, seconds
                continue
            beyond = seconds - self.usual * (max(1.0, _between(a.step, b.step) / self._stride) - 1)
            if beyond > max(_NOISE * seconds, 2 * self.usual):
                yield Stage.TRAIN.value, beyond


def _median(values: Iterable[float]) -> float:
    """0.0 without any value."""
    return median(list(values) or [0.0])


def _prints_time(step: Progress) -> bool:
    """Whether a step shows its own time, or how long it took."""
    if bool(step.step_seconds):
        return True
    return step.time != step.received


def training_steps(points: Iterable[Progress]) -> list[Progress]:
    """The points that count a step of the training itself."""
    return [point for point in points if point.step is not None and point.stage is Stage.TRAIN]


def _most_steps(points: Iterable[Progress]) -> list[Progress]:
    """The training steps of the rank that prints most of them."""
    steps_by_rank: dict[int, list[Progress]] = defaultdict(list)
    for point in training_steps(points):
        steps_by_rank[point.rank].append(point)
    return max(steps_by_rank.values(), key=len, default=[])


def _printed_interval(steps: Sequence[Progress]) -> float:
    """Seconds between two printed steps by what they print of one; 0.0 where they print nothing."""
    seconds = map(attrgetter("step_seconds"), steps)
    counts = (_between(a.steps_made, b.steps_made) for a, b in pairwise(steps) if a.step != b.step)
    return _median(filter(None, seconds)) * _median(counts)


def _advances(steps: Sequence[Progress]) -> list[_Advance]:
    """The moments at which steps were shown.

    By their arrival, which is what silence is measured by: a log may be written or shipped in lumps. By their own
    times where too many came at once, as from a file or after an outage.
    """
    arrived = _moments(filter(attrgetter("received"), steps), "received")
    if len(arrived) >= _POINTS:
        return arrived
    return _moments(steps, "time")


def _moments(steps: Iterable[Progress], clock: str) -> list[_Advance]:
    """The moments by a clock: ``received`` or ``time``."""
    moments: list[_Advance] = []
    for point in steps:
        time, step = getattr(point, clock), point.steps_made
        last = moments[-1] if moments else _Advance(-math.inf, -1)
        if time <= last.time:
            moments[-1] = _Advance(last.time, step)
        elif step != last.step:
            moments.append(_Advance(time, step))
    return moments


def _between(a: int, b: int) -> int:
    """Steps from one to the other; a counter that fell back has begun anew."""
    return max(1, b - a)


def _stays(evidence: Evidence) -> Iterator[tuple[str, float]]:
    """Times between two kept lines outside of training: at least as long as the silences there."""
    timeline = ProgressTimeline(evidence)
    stages = deque(sorted(_signs(evidence, timeline), key=lambda sign: sign[0]))
    stage = Stage.TRAIN
    for (place, time), (_, later) in pairwise(_ticks(evidence, timeline)):
        while stages and stages[0][0] <= place:
            _, stage = stages.popleft()
        if stage is Stage.TRAIN:
            continue
        if later >= time:
            yield stage.value, later - time


def _ticks(evidence: Evidence, timeline: ProgressTimeline) -> list[tuple[float, float]]:
    """Place and time of the job's lines, in order."""
    ticks = []
    for line in evidence.job_lines:
        if line.time > 0:
            ticks.append((timeline.place(line), line.received or line.time))
    return sorted(ticks)


def _stage(evidence: Evidence) -> Stage | None:
    """The stage of the newest point or stage sign; training where only steps are shown."""
    newest, stage = -math.inf, None
    for place, sign in _signs(evidence, ProgressTimeline(evidence)):
        if newest < place < math.inf:
            newest, stage = place, sign
    return stage


def _signs(evidence: Evidence, timeline: ProgressTimeline) -> Iterator[tuple[float, Stage]]:
    """Place and stage of the points, and of the first and last line of each phase."""
    for point in evidence.progress:
        if point.time > 0:
            yield timeline.place_of(point), point.stage
    for phase in evidence.phases:
        yield timeline.at(phase.stream, phase.line), phase.stage
        yield timeline.at(phase.last_stream, phase.last), phase.stage


def _in_order(points: Sequence[Progress]) -> list[Progress]:
    return sorted((point for point in points if point.time > 0), key=lambda point: (point.time, point.line))


def _ahead(evidence: Evidence, points: Sequence[Progress]) -> float:
    """Seconds from the last step to the newest line: by their arrival, else by what they print. 0.0 for up to an hour
    where the run prints what it never did while it trained: an evaluation may begin without a word. Whatever counts
    up to a total beside it is at work for as long as it does."""
    steps = list(_advancing(training_steps(points)))
    lines, clock = evidence.job_lines, "time"
    if len(set(filter(None, map(attrgetter("received"), steps[-_POINTS:])))) == _POINTS:
        clock = "received"
    last = _newest(steps, clock)
    ahead = max(0.0, _newest(lines, clock) - last)
    if ahead < LONGEST_DOUBT and _begins_anew(evidence, steps):
        return 0.0
    return min(ahead, _since_counted([line for line in lines if getattr(line, clock) > last], clock))


def _since_counted(lines: Sequence[Line], clock: str) -> float:
    """Seconds from when a count beside its total last grew to the newest line; infinite where none grows."""
    newest, counts = _newest(lines, clock), defaultdict[object, dict[float, int]](dict)
    for line in lines:
        body, moment = line.body[-_READ:], getattr(line, clock)
        for match in _COUNT.finditer(body):
            named = _WORD.findall(body[: match.start()])[-1:]
            moments = counts[line.speaker, *named, match[2]]
            moments[moment] = max(int(match[1]), moments.get(moment, 0))
    return min((_since_grown(moments, newest) for moments in counts.values()), default=math.inf)


def _since_grown(counts: Mapping[float, int], newest: float) -> float:
    """The same of one count, by the moments at which it was shown; 0.0 where it may grow at any time now. A gauge falls
    as often as it rises; a count that falls far has begun anew, and so has the next part of an evaluation."""
    highest, grown, fallen = -1, list[float](), 0
    for moment, count in sorted(counts.items()):
        if 2 * count < highest:
            highest, grown, fallen = -1, [], 0
        if count > highest:
            highest = count
            grown.append(moment)
        fallen += count < highest
    if len(grown) < _POINTS or fallen > len(grown):
        return math.inf
    since, usual = newest - grown[-1], _median(b - a for a, b in pairwise(grown[-_POINTS:]))
    return 0.0 if since <= _AS_BEFORE * usual else since


def _begins_anew(evidence: Evidence, steps: Sequence[Progress]) -> bool:
    """Whether lines of a new shape came after the last step, again and again: one alone is no work."""
    timeline = ProgressTimeline(evidence)
    last = max(map(timeline.place_of, steps), default=math.inf)
    repeated = (template for template in evidence.templates if template.count >= _POINTS)
    return any(timeline.at(*template.first) > last for template in repeated)


def _advancing(steps: Iterable[Progress]) -> Iterator[Progress]:
    """The points that show another step than the one before of their rank: a bar is drawn again where nothing moves."""
    shown: dict[int, int | None] = {}
    for point in steps:
        if point.step != shown.get(point.rank):
            yield point
        shown[point.rank] = point.step


def _newest(printed: Iterable[Progress | Line], clock: str) -> float:
    """The newest time of lines or steps. clock: ``received`` or ``time``."""
    return max(map(attrgetter(clock), printed), default=0.0)
