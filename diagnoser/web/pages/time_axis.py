"""What the time axis of an attempt draws: lanes of spans and marks on one scale. Values only; the template draws them.

Log lines have the time that the log prints, often in the zone of the cluster; events and plans have the time of the
service. ``ClockShift`` brings both together.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.localize.checkpoints import Checkpoint, reported
from diagnoser.localize.metric_watch import seen_in
from diagnoser.logview.log_timeline import LogTimeline
from diagnoser.model import Attempt, Event, EventKind, Line, Mark, NodeEvent, Plan, Progress, Stage
from diagnoser.structure.sparkline import is_wide, share_between
from diagnoser.web.pages.rank_strip import RankStrip, rank_strip
from diagnoser.web.pages.time_scale import ScalePart, TimeScale, time_scale
from diagnoser.wording.phrases import after, joined
from diagnoser.wording.words import (
    NODE_ACTORS,
    NODE_STATES,
    PLAN_STATES,
    STAGES,
    checkpoint_shape,
    checkpoint_state,
    measure,
    number,
    size,
)

MARKS_MAX = 60
"""Marks of a lane; of more, those nearest to the failure."""
TEXT = 200
"""Characters of a log line in the title of a mark."""
_BUCKETS = 300
_QUARTER, _ZONES = 900.0, 15 * 3600.0
_AROUND = 600.0
"""Seconds before and after the log in which a node's own lines are shown."""
_TICKS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800)
_APART = 0.13
"""Share of the width between two ticks, so that their labels do not meet."""
_IN_A_ROW = (Stage.LAUNCH, Stage.INIT, Stage.DATA, Stage.LOAD, Stage.TRAIN, Stage.FINISH)
"""Stages of which one follows the other. A run is saved and evaluated again and again."""
_MEASURES: tuple[tuple[str, Callable[[Progress], float | None]], ...] = (
    ("Loss", lambda point: point.loss),
    ("Gradient norm", lambda point: point.grad_norm),
    ("Seconds a step", lambda point: point.step_seconds),
)
_NO_EVENTS = frozenset({EventKind.HEARTBEAT, EventKind.CHECKPOINT})
"""Of which the first say nothing, and the second have a lane of their own."""
_CHECKPOINT_KINDS = {
    "verified": "verified checkpoint",
    "durable": "written out, not verified",
    "staged": "not written out yet",
    "bad": "bad checkpoint",
    "chosen": "the plan goes back to it",
}


@dataclass(frozen=True, slots=True)
class CitedLine:
    """A line that the verdict refers to. time: of the log's timeline; of the service for a line of a node's own log.
    role: root, evidence or symptom. what: what it says about the failure."""

    time: float
    role: str
    what: str
    text: str
    url: str
    rank: int = -1
    is_of_node: bool = False


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """log_path: of the viewer. node_lines: of the logs of suspected nodes. rank_nodes: as registered; ranks that have
    no lines are known from it.
    has_failed: whether the verdict says that something went wrong.
    """

    timeline: LogTimeline
    attempt: Attempt
    log_path: str
    cited: Sequence[CitedLine] = ()
    node_lines: Sequence[Line] = ()
    node_events: Sequence[NodeEvent] = ()
    plan: Plan | None = None
    rank_nodes: Mapping[int, str] = field(default_factory=dict)
    has_failed: bool = True


@dataclass(frozen=True, slots=True)
class AxisMark:
    """Something at one time. x: share of the width. time: seconds since the epoch, or a row of a log without times.
    kind: how it is drawn."""

    x: float
    time: float
    kind: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class AxisSpan:
    left: float
    right: float
    begin: float
    end: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class AxisLane:
    name: str
    spans: tuple[AxisSpan, ...] = ()
    marks: tuple[AxisMark, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class AxisCurve:
    """lines: points of polylines in a box of 1000 by 100. broken: shares of the width where the value was no number.
    summary: the curve in words."""

    name: str
    lines: tuple[str, ...]
    broken: tuple[AxisMark, ...]
    low: float
    high: float
    is_log: bool
    summary: str


@dataclass(frozen=True, slots=True)
class AxisTick:
    """is_main: begins or ends a part of the scale; the others need room. anchor: as of SVG's text-anchor."""

    x: float
    time: float
    anchor: str
    is_main: bool


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """is_timed: False where the log prints no times: the scale then counts its rows, and what is not from the log
    stands in no lane. is_late: the log was sent after the run. root: share of the width at which the root line is.
    shown: what is added to a time of the log to get the true one."""

    parts: tuple[ScalePart, ...]
    ticks: tuple[AxisTick, ...]
    checkpoints: AxisLane
    events: AxisLane
    stages: AxisLane = AxisLane("Stages")
    curve: AxisCurve | None = None
    ranks: RankStrip | None = None
    metrics: AxisLane = AxisLane("Metrics")
    cited: AxisLane = AxisLane("Cited lines")
    plan: AxisLane = AxisLane("Recovery plan")
    root: float | None = None
    is_timed: bool = True
    is_late: bool = False
    shown: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether a time of day alone would not tell when something was."""
        if not self.is_timed:
            return False
        return self.parts[-1].end - self.parts[0].begin > 72_000.0

    @property
    def lanes(self) -> tuple[AxisLane, ...]:
        """Those that are not empty, without curve and ranks."""
        lanes = (self.stages, self.metrics, self.checkpoints, self.cited, self.events, self.plan)
        return tuple(lane for lane in lanes if lane.spans or lane.marks)

    @property
    def checkpoint_kinds(self) -> list[tuple[str, str]]:
        """What the signs in the lane of checkpoints mean, as far as they are there."""
        words = " ".join(mark.kind for mark in self.checkpoints.marks).split()
        return [(f"checkpoint {kind}", name) for kind, name in _CHECKPOINT_KINDS.items() if kind in words]

    @property
    def entries(self) -> list[tuple[str, AxisMark]]:
        entries: list[tuple[str, AxisMark]] = []
        for lane in self.lanes:
            for span in lane.spans:
                entries.append((lane.name, AxisMark(span.left, span.begin, span.kind, span.text)))
            for mark in lane.marks:
                entries.append((lane.name, mark))
        if self.curve:
            for mark in self.curve.broken:
                entries.append((self.curve.name, mark))
        return sorted(entries, key=lambda entry: entry[1].time)


@dataclass(frozen=True, slots=True)
class ClockShift:
    """shown: what is added to a time of the log to get the true one. service: what is subtracted from a time of the
    service to get one of the log; not where it lies within ``own``, the time of a log that was sent after the run."""

    shown: float
    service: float
    own: tuple[float, float] | None = None

    def to_log(self, time: float) -> float:
        if not self.own:
            return time - self.service
        if self.own[0] <= time <= self.own[1]:
            return time
        return time - self.service


def clock_shift(log: LogTimeline, attempt: Attempt) -> ClockShift:
    """The log's last line came when the service received it: what differs is the time zone, or, where all came at once,
    how much later it was sent. Where events of the attempt fall into the log, both clocks are one."""
    first, last = log.received
    lag = last - log.end
    if not last:
        return ClockShift(0.0, 0.0)
    if abs(lag) <= _QUARTER / 2:
        return ClockShift(0.0, 0.0)
    own = log.begin - _AROUND, log.end + _AROUND
    if any(own[0] <= event.time <= own[1] for event in attempt.events):
        return ClockShift(0.0, 0.0)
    if abs(lag) >= _ZONES or last - first < (log.end - log.begin) / 2:
        return ClockShift(0.0, lag, own)
    zone = round(lag / _QUARTER) * _QUARTER
    return ClockShift(zone, zone)


def time_axis(facts: AxisFacts) -> TimeAxis | None:
    """None where the attempt has no line."""
    log = facts.timeline
    if log.end <= log.begin:
        return None
    clock, saved, events, plan = ClockShift(0.0, 0.0), list[AxisMark](), list[AxisMark](), list[AxisMark]()
    if log.is_timed:
        clock = clock_shift(log, facts.attempt)
        saved = _checkpoints(facts.attempt, facts.plan, clock)
        events, plan = _events(facts, clock), _plan(facts.plan, clock)
    cited = []
    for line in facts.cited:  # only a line of a node's own log has a time of the service
        cited.append(replace(line, time=clock.to_log(line.time)) if line.is_of_node else line)
    root = next((line.time for line in cited if line.role == "root"), None)
    failed = None
    if facts.has_failed:
        failed = _failed(log, root, [line.time for line in cited])
    times = [mark.time for mark in (*saved, *events, *plan)]
    scale = time_scale(min([log.begin, *times]), failed, max([log.end, *times]))
    drawn = _Drawn(scale, clock.shown)
    around, root_x = log.end, None
    if root is not None:
        around, root_x = root, scale.x(root)
    return TimeAxis(
        parts=scale.parts,
        ticks=tuple(_ticks(scale, clock.shown)),
        stages=_stages(log, drawn),
        curve=_curve(log, drawn),
        ranks=rank_strip(log, scale, facts.rank_nodes, facts.log_path),
        metrics=drawn.lane("Metrics", _metrics(facts), around),
        checkpoints=drawn.lane("Checkpoints", saved, around),
        cited=drawn.lane("Cited lines", list(map(_cited, cited)), around),
        events=drawn.lane("Events", events, around),
        plan=drawn.lane("Recovery plan", plan, around),
        root=root_x,
        is_timed=log.is_timed,
        is_late=clock.own is not None,
        shown=clock.shown,
    )


def checkpoint_axis(attempt: Attempt, now: float) -> TimeAxis | None:
    """Checkpoints and events of an attempt from its beginning to its end, or to now, without its log. None where no
    checkpoint was reported."""
    clock = ClockShift(0.0, 0.0)
    saved = _checkpoints(attempt, None, clock)
    if not saved:
        return None
    events = [mark for mark in _events_of(attempt, clock) if attempt.opened <= mark.time]
    times = [mark.time for mark in (*saved, *events)]
    scale = time_scale(min([attempt.opened, *times]), None, max([attempt.ended or now, *times]))
    drawn = _Drawn(scale, 0.0)
    return TimeAxis(
        parts=scale.parts,
        ticks=tuple(_ticks(scale, 0.0)),
        checkpoints=drawn.lane("Checkpoints", saved, max(times)),
        events=drawn.lane("Events", events, max(times)),
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Places what has a time of the log on the scale, and gives it its true time."""

    scale: TimeScale
    shown: float

    def mark(self, mark: AxisMark) -> AxisMark:
        return replace(mark, x=self.scale.x(mark.time), time=mark.time + self.shown)

    def lane(self, name: str, marks: Sequence[AxisMark], around: float) -> AxisLane:
        near = sorted(marks, key=lambda mark: abs(mark.time - around))[:MARKS_MAX]
        placed = tuple(map(self.mark, sorted(near, key=lambda mark: mark.time)))
        return AxisLane(name, marks=placed, left_out=len(marks) - len(placed))


def _failed(log: LogTimeline, root: float | None, cited: Sequence[float]) -> tuple[float, float]:
    """From the root line to the last line; without one from the first line that is cited, else the last minute."""
    first = min(cited, default=log.end - 60.0)
    if root is not None:
        first = root
    return min(max(first, log.begin), log.end), log.end


def _cited(line: CitedLine) -> AxisMark:
    name = "root cause" if line.role == "root" else line.role
    if line.what:
        name += f" ({line.what})"
    if line.rank >= 0:
        name += f": rank {line.rank}"
    return AxisMark(0.0, line.time, line.role, f"{name}: {line.text[:TEXT]}", line.url)


def _events(facts: AxisFacts, clock: ClockShift) -> list[AxisMark]:
    """What scheduler, launcher and nodes told, in times of the log."""
    log, marks = facts.timeline, _events_of(facts.attempt, clock)
    low, high = log.begin - _AROUND, log.end + _AROUND
    for line in facts.node_lines:
        time = clock.to_log(line.time)
        if line.mark >= Mark.SEVERITY and low <= time <= high:
            text = f"{line.node} {line.stream.source}: {line.body[:TEXT]}"
            marks.append(AxisMark(0.0, time, "node", text))
    for event in facts.node_events:
        text = f"{event.node} {NODE_STATES[event.kind]} by {NODE_ACTORS[event.by]}{after(': ', event.reason)}"
        marks.append(AxisMark(0.0, clock.to_log(event.time), "node", text))
    return marks


def _events_of(attempt: Attempt, clock: ClockShift) -> list[AxisMark]:
    events = (event for event in attempt.events if event.kind not in _NO_EVENTS)
    return [AxisMark(0.0, clock.to_log(event.time), f"event {event.kind}", _event(event)) for event in events]


def _checkpoints(attempt: Attempt, plan: Plan | None, clock: ClockShift) -> list[AxisMark]:
    """Each stands where it was saved, and looks as what is known of it now."""
    marks = []
    target = plan.rollback if plan else None
    for saved in reported(attempt.events):
        is_chosen = False
        if target and saved.path:
            is_chosen = (target.checkpoint, target.step) == (saved.path, saved.step)
        kind = f"checkpoint {checkpoint_shape(saved)}"
        if is_chosen:
            kind += " chosen"
        marks.append(AxisMark(0.0, clock.to_log(saved.saved), kind, _checkpoint(saved, is_chosen=is_chosen)))
    return marks


def _checkpoint(saved: Checkpoint, *, is_chosen: bool) -> str:
    name = "checkpoint" if saved.step is None else f"step {number(saved.step)}"
    parts = [f"{name}: {checkpoint_state(saved)}", saved.why[:TEXT]]
    if is_chosen:
        parts.append("the plan goes back to it")
    if saved.just_in_time:
        parts.append("saved because the job was about to end")
    if saved.blocked_ms is not None:
        parts.append(f"training stood still for {measure(saved.blocked_ms / 1000)} s")
    if saved.bytes is not None:
        parts.append(size(saved.bytes))
    return joined([*parts, saved.path])


def _event(event: Event) -> str:
    numbers = {"code": event.code, "signal": event.signal, "step": event.step, "rank": event.rank}
    details = [f"{name} {number(value)}" for name, value in numbers.items() if value is not None]
    return event.kind.value + after(": ", joined([*details, event.node, event.reason]))


def _plan(plan: Plan | None, clock: ClockShift) -> list[AxisMark]:
    if plan is None:
        return []
    marks = []
    for change in plan.history:
        what = f"{PLAN_STATES[change.state]}: {change.why} ({change.by})"
        marks.append(AxisMark(0.0, clock.to_log(change.time), f"plan {change.state}", what))
    for step in plan.steps:
        if step.time:
            kind, ended = "plan failed", f"exit {step.exit_code}"
            if step.exit_code is None:
                ended = "could not be started"
            elif step.exit_code == 0:
                kind = "plan step"
            marks.append(AxisMark(0.0, clock.to_log(step.time), kind, f"{step.command[:TEXT]} ({ended})"))
    return marks


def _stages(log: LogTimeline, drawn: _Drawn) -> AxisLane:
    """Each stage lasts until the next one begins; the last until its own last line."""
    spans = [span for span in log.stages if span.stage in _IN_A_ROW]
    shown = []
    for place, span in enumerate(spans, 1):
        end = spans[place].begin if place < len(spans) else span.end
        left, right = drawn.scale.x(span.begin), drawn.scale.x(end)
        kind, name = f"stage {span.stage}", STAGES[span.stage]
        shown.append(AxisSpan(left, right, span.begin + drawn.shown, end + drawn.shown, kind, name))
    marks = []
    for timed in log.progress:
        if timed.point.checkpoint or timed.point.stage is Stage.SAVE:
            step = "" if timed.point.step is None else f" of step {number(timed.point.step)}"
            what = f"checkpoint{step} saved{after(': ', timed.point.checkpoint)}"
            marks.append(AxisMark(0.0, timed.time, "saved", what))
    lane = drawn.lane("Stages", marks, log.end)
    return replace(lane, spans=tuple(shown))


def _metrics(facts: AxisFacts) -> list[AxisMark]:
    """Where the loss or the speed broke, and spikes that passed."""
    timed = sorted(facts.timeline.progress, key=lambda timed: timed.point.line)
    times = {(timed.point.stream, timed.point.line): timed.time for timed in timed}
    marks = []
    for event in seen_in([timed.point for timed in timed], is_running=facts.attempt.ended is None):
        point = event.point
        at = "" if point.step is None else f"step {number(point.step)}: "
        marks.append(AxisMark(0.0, times[point.stream, point.line], f"metric {event.kind}", f"{at}{event.why}"))
    return marks


def _curve(log: LogTimeline, drawn: _Drawn) -> AxisCurve | None:
    """The first of loss, gradient norm and speed that the log prints more than once."""
    for name, value_of in _MEASURES:
        values = []
        for timed in log.progress:
            value = value_of(timed.point)
            if timed.point.stage is Stage.TRAIN and value is not None:
                values.append((timed.time, value, timed.point.step))
        finite = [value for _, value, _ in values if math.isfinite(value)]
        if len(values) > 1 and finite:
            return _drawn_curve(name, values, min(finite), max(finite), drawn)
    return None


def _drawn_curve(
    name: str, values: Sequence[tuple[float, float, int | None]], low: float, high: float, drawn: _Drawn
) -> AxisCurve:
    """Finite values as lines, which end at each value that is not; those are marks.

    low, high: the least and the largest finite value.
    """
    is_log = is_wide(low, high)
    lines, broken, finite = [list[tuple[float, float]]()], list[AxisMark](), list[float]()
    for time, value, step in values:
        if math.isfinite(value):
            finite.append(value)
            height = share_between(value, low, high, is_log=is_log) if low < high else 0.5
            lines[-1].append((drawn.scale.x(time), height))
            continue
        at = "" if step is None else f" at step {number(step)}"
        broken.append(drawn.mark(AxisMark(0.0, time, "broken", f"{name.lower()} is {measure(value)}{at}")))
        if lines[-1]:
            lines.append([])
    summary = (
        f"{name} from {measure(finite[0])} to {measure(finite[-1])}, lowest {measure(low)}, highest {measure(high)}"
    )
    drawn_lines = tuple(_polyline(points) for points in lines if points)
    return AxisCurve(name, drawn_lines, tuple(broken[:MARKS_MAX]), low, high, is_log, summary)


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    """Of many points only the highest and the lowest in each stretch of the width."""
    buckets: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        buckets.setdefault(int(point[0] * _BUCKETS), []).append(point)
    kept: list[tuple[float, float]] = []
    for bucket in buckets.values():
        by_height = sorted(bucket, key=lambda point: point[1])
        kept += sorted({by_height[0], by_height[-1]})
    return " ".join(f"{1000 * x:.1f},{96 - 92 * y:.1f}" for x, y in kept)


def _ticks(scale: TimeScale, shown: float) -> Iterable[AxisTick]:
    """Where each part begins, where the last one ends, and round times between where there is room."""
    last = scale.parts[-1]
    for part in scale.parts:
        yield AxisTick(part.left, part.begin + shown, "start", is_main=True)
        room = int((part.right - part.left) / _APART)
        step = next((step for step in _TICKS if (part.end - part.begin) / step <= room), 0)
        time = math.ceil((part.begin + shown) / step) * step - shown if step else part.end
        while time < part.end:
            if part.left + _APART <= scale.x(time) <= part.right - _APART / 2:
                yield AxisTick(scale.x(time), time + shown, "middle", is_main=False)
            time += step
    yield AxisTick(1.0, last.end + shown, "end", is_main=True)
