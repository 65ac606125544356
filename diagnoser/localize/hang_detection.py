"""Whether a run that is still open hangs: how long nothing advanced, compared with what its stage usually takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from diagnoser.localize.progress import ProgressTimeline
from diagnoser.model import Evidence, Progress, Stage

_PATIENCE = {
    Stage.LAUNCH: 600.0,
    Stage.INIT: 900.0,
    Stage.DATA: 3600.0,
    Stage.LOAD: 1800.0,
    Stage.SAVE: 1800.0,
    Stage.EVAL: 1800.0,
    Stage.FINISH: 900.0,
}
"""Seconds that a stage may be silent when the log shows no earlier stage of its kind: indexing a data set takes
longest; process groups wait 10 to 15 minutes for their members by default."""
_SUSPECTED, _CONFIRMED, _FLOOR = 3.0, 10.0, 60.0
"""Silence, in iterations, before a hang is suspected and confirmed; and the shortest silence in seconds."""
_AS_BEFORE = 3.0
"""Multiple of the longest pause of the same kind that the run has recovered from."""
_NEXT = 10
"""Most steps between two kept points for the time between them to show a pause rather than just many steps."""
_POINTS = 3
"""Timed steps needed to know how long one takes."""


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a live attempt has made no progress in ``stage``, and what is usual there, both in seconds.

    confirmed: so long that it hangs; else it is only late.
    """

    seconds: float
    usual: float
    stage: Stage
    confirmed: bool


def silence(evidence: Evidence, now: float) -> Silence | None:
    """None when the run advances, or the log shows nothing to measure it by.

    In training only steps count, in other stages any line: loading and saving have no common measure.
    """
    points = sorted((point for point in evidence.progress if point.time > 0), key=lambda point: point.time)
    stage = _stage(evidence, points)
    if stage is None:
        return None
    if stage is Stage.TRAIN:
        steps = [point for point in points if point.step is not None]
        if len(steps) < _POINTS:
            return None
        seconds, usual = now - steps[-1].time, _step_seconds(steps)
        late = max(_SUSPECTED * usual, _FLOOR)
        hung = max(_CONFIRMED * usual, _AS_BEFORE * _longest_pause(steps, usual))
    else:
        seconds, usual = now - _newest_time(evidence), _longest_stay(points, stage)
        hung = _AS_BEFORE * usual or _PATIENCE[stage]
        late = max(hung * _SUSPECTED / _CONFIRMED, _FLOOR)
    return Silence(seconds, usual, stage, seconds >= max(hung, _FLOOR)) if seconds >= late else None


def _stage(evidence: Evidence, points: Sequence[Progress]) -> Stage | None:
    """The stage of the newest point or stage sign; training where only steps are shown."""
    timeline = ProgressTimeline(evidence)
    signs = [(timeline.at(phase.last_stream, phase.last), phase.stage) for phase in evidence.phases]
    signs += [(timeline.place_of(point), point.stage) for point in points]
    signs = [(place, stage) for place, stage in signs if place < math.inf]
    return max(signs, key=lambda sign: sign[0])[1] if signs else None


def _newest_time(evidence: Evidence) -> float:
    times = (line.time for line in evidence.lines if line.stream.from_job and line.time > 0)
    return max(times, default=math.inf)


def _step_seconds(steps: Sequence[Progress]) -> float:
    """Seconds per step: what the newest step prints, else the median."""
    if steps[-1].step_seconds:
        return steps[-1].step_seconds
    gaps = [(b.time - a.time) / max(1, _between(a, b)) for a, b in pairwise(steps) if b.time > a.time]
    return median(gaps) if gaps else 0.0


def _longest_pause(steps: Sequence[Progress], usual: float) -> float:
    """The longest time between two steps beyond what the steps take: a checkpoint, an evaluation."""
    pairs = [(a, b) for a, b in pairwise(steps) if _between(a, b) <= _NEXT]
    return max((b.time - a.time - usual * _between(a, b) for a, b in pairs), default=0.0)


def _between(a: Progress, b: Progress) -> int:
    return max(0, (b.step or 0) - (a.step or 0))


def _longest_stay(points: Sequence[Progress], stage: Stage) -> float:
    """The longest earlier stay in a stage, up to the next point of another one; 0.0 where none is shown."""
    return max((b.time - a.time for a, b in pairwise(points) if a.stage is stage is not b.stage), default=0.0)
