"""What a job says of its own checkpoints, and from which of them a launch may go on.

A job owns this evidence: it decides where the job's own next launch begins, and nothing else.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from diagnoser.model import CheckpointPhase, Event, EventKind

EVENTS_MAX = 600
"""Checkpoint events of an attempt from which on the oldest are dropped."""
KEPT = 100
"""Checkpoints of an attempt that are kept then, each with all its events. The newest verified one always is."""
_CHECKS = frozenset({CheckpointPhase.VERIFIED, CheckpointPhase.BAD})
_ORDER: dict[CheckpointPhase | None, int] = {phase: index for index, phase in enumerate((None, *CheckpointPhase))}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that was reported of one checkpoint.

    phase: the last word on it, None where none was named. saved, heard: times of the first and the last report.
    finite: None where nobody said. why: why it is bad, else "".
    """

    path: str
    step: int | None
    phase: CheckpointPhase | None
    saved: float
    heard: float
    blocked_ms: float | None = None
    bytes: int | None = None
    finite: bool | None = None
    just_in_time: bool = False
    why: str = ""

    @property
    def is_bad(self) -> bool:
        if self.finite is False:
            return True
        return self.phase is CheckpointPhase.BAD

    @property
    def is_verified(self) -> bool:
        if self.is_bad:
            return False
        if self.step is None:
            return False
        return self.phase is CheckpointPhase.VERIFIED

    @property
    def is_loadable(self) -> bool:
        """Whether it may be tried where none is verified. A just-in-time one was saved by a job that was failing."""
        if self.is_bad:
            return False
        if self.just_in_time:
            return False
        return self.phase in (None, CheckpointPhase.DURABLE)


_Identity = tuple[int | None, str]
"""Step and path of a checkpoint."""


def reported(events: Iterable[Event]) -> list[Checkpoint]:
    """The checkpoints of one attempt, by the time of their first report."""
    by_identity: dict[_Identity, list[Event]] = {}
    for event in _in_order(events):
        by_identity.setdefault((event.step, event.path), []).append(event)
    return list(map(_merged, by_identity.values()))


def _in_order(events: Iterable[Event]) -> list[Event]:
    """The events about checkpoints, by time."""
    saved = (event for event in events if event.kind is EventKind.CHECKPOINT)
    return sorted(saved, key=lambda event: event.time)


def _merged(events: Sequence[Event]) -> Checkpoint:
    """All events about one checkpoint, by time, as one."""
    first, last = events[0], max(events, key=lambda event: (_ORDER[event.phase], event.time))
    finite = _stated(events, "finite")
    return Checkpoint(
        path=first.path,
        step=first.step,
        phase=last.phase,
        saved=first.time,
        heard=events[-1].time,
        blocked_ms=max(_stated(events, "blocked_ms"), default=None),
        bytes=max(_stated(events, "bytes"), default=None),
        finite=all(finite) if finite else None,
        just_in_time=any(_stated(events, "just_in_time")),
        why=last.reason if last.phase is CheckpointPhase.BAD else "",
    )


def _stated(events: Sequence[Event], name: str) -> list[Any]:
    """What the events say in a field, as far as they do."""
    values = map(attrgetter(name), events)
    return [value for value in values if value is not None]


def on_the_way(
    events: Iterable[Event], earlier: Sequence[Iterable[Event]], first_step: float = math.inf
) -> list[Checkpoint]:
    """Checkpoints that the weights of an attempt went through: its own, and of each attempt before it those from before
    the next one went on. One whose path was written again later is not there any more.

    earlier: events of the attempts before, the oldest first.
    first_step: the first step of the attempt.
    """
    attempts = list(map(reported, _where_saved([*earlier, events])))
    newest: dict[str, Checkpoint] = {}
    for saved in attempts:
        newest |= {checkpoint.path: checkpoint for checkpoint in saved}
    passed, ceiling = list(attempts[-1]), first_step
    for saved in reversed(attempts[:-1]):
        counted = [checkpoint for checkpoint in saved if checkpoint.step is not None]
        passed += (checkpoint for checkpoint in counted if step_of(checkpoint) <= ceiling)
        ceiling = min([ceiling, *map(step_of, counted)])
    return [checkpoint for checkpoint in passed if not checkpoint.path or newest[checkpoint.path] is checkpoint]


def step_of(checkpoint: Checkpoint) -> int:
    """The step, -1 where none is known."""
    return -1 if checkpoint.step is None else checkpoint.step


def _where_saved(attempts: Sequence[Iterable[Event]]) -> list[list[Event]]:
    """The checkpoint events by the attempt that saved: a late check is reported with the attempt that runs then."""
    saved_in: dict[_Identity, int] = {}
    by_attempt: dict[int, list[Event]] = defaultdict(list)
    for number, events in enumerate(attempts):
        for event in _in_order(events):
            identity = event.step, event.path
            if event.phase not in _CHECKS:
                saved_in[identity] = number
            by_attempt[saved_in.setdefault(identity, number)].append(event)
    return list(map(by_attempt.__getitem__, range(len(attempts))))


def to_resume(
    events: Iterable[Event], earlier: Sequence[Iterable[Event]], damaged: Iterable[str] = ()
) -> Checkpoint | None:
    """The newest verified checkpoint that none of these lines names as damaged; None where there is none."""
    lines = list(damaged)
    verified = filter(attrgetter("is_verified"), on_the_way(events, earlier))
    return max((saved for saved in verified if not _is_named(saved.path, lines)), key=step_of, default=None)


def why_bad(path: str, step: int | None, attempts: Sequence[Iterable[Event]]) -> str:
    """Why a job's checkpoint must not be loaded, as it was reported last; "" when nothing speaks against it.

    step: None where only the path is known.
    attempts: the events of the job's attempts, the oldest first.
    """
    last = None
    for checkpoint in chain.from_iterable(map(reported, _where_saved(attempts))):
        if _is_same(checkpoint, path, step):
            last = checkpoint
    if last is None:
        return ""
    if not last.is_bad:
        return ""
    if last.why:
        return last.why
    return "its loss was not finite" if last.finite is False else "no reason was given"


def _is_same(saved: Checkpoint, path: str, step: int | None) -> bool:
    """A line of a log may name the directory alone; then the step has to be the same."""
    if saved.path == path:
        if None in (step, saved.step):
            return True
        return saved.step == step
    if step is None:
        return False
    if saved.step != step:
        return False
    return _name(saved.path) == _name(path) != ""


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _is_named(path: str, lines: Iterable[str]) -> bool:
    name = re.escape(_name(path))
    if not bool(name):
        return False
    return any(re.search(rf"(?<![\w.-]){name}(?![\w-])", line) for line in lines)


def surplus(events: Sequence[Event]) -> Iterator[Event]:
    """The checkpoint events of an attempt that need not be kept."""
    saved = sorted(reported(events), key=lambda checkpoint: (checkpoint.saved, step_of(checkpoint)), reverse=True)
    needed = saved[:KEPT] + sorted(filter(attrgetter("is_verified"), saved), key=step_of)[-1:]
    identities = {(checkpoint.step, checkpoint.path) for checkpoint in needed}
    for event in _in_order(events):
        if (event.step, event.path) not in identities:
            yield event
