"""What a job says of its own checkpoints, and from which of them a launch may go on.

A job owns this evidence: it decides where the job's own next launch begins, and nothing else.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
        return self.phase is CheckpointPhase.BAD or self.finite is False

    @property
    def is_verified(self) -> bool:
        return self.phase is CheckpointPhase.VERIFIED and not self.is_bad and self.step is not None

    @property
    def is_loadable(self) -> bool:
        """Whether it may be tried where none is verified. A just-in-time one was saved by a job that was failing."""
        return self.phase in (None, CheckpointPhase.DURABLE) and not self.is_bad and not self.just_in_time


def reported(events: Iterable[Event]) -> list[Checkpoint]:
    """The checkpoints of one attempt, by the time of their first report."""
    by_identity: dict[tuple[int | None, str], list[Event]] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.kind is EventKind.CHECKPOINT:
            by_identity.setdefault((event.step, event.path), []).append(event)
    return [_merged(told) for told in by_identity.values()]


def _merged(events: Sequence[Event]) -> Checkpoint:
    first, last = events[0], max(events, key=lambda event: (_ORDER[event.phase], event.time))
    finite = [event.finite for event in events if event.finite is not None]
    return Checkpoint(
        path=first.path,
        step=first.step,
        phase=last.phase,
        saved=first.time,
        heard=events[-1].time,
        blocked_ms=max((event.blocked_ms for event in events if event.blocked_ms is not None), default=None),
        bytes=max((event.bytes for event in events if event.bytes is not None), default=None),
        finite=all(finite) if finite else None,
        just_in_time=any(event.just_in_time for event in events),
        why=last.reason if last.phase is CheckpointPhase.BAD else "",
    )


def on_the_way(
    events: Iterable[Event], earlier: Sequence[Iterable[Event]], first_step: float = math.inf
) -> list[Checkpoint]:
    """Checkpoints that the weights of an attempt went through: its own, and of each attempt before it those from before
    the next one went on. One whose path was written again later is not there any more.

    earlier: events of the attempts before, the oldest first. first_step: the first step of the attempt.
    """
    attempts = [reported(told) for told in _where_saved([*earlier, events])]
    newest: dict[str, Checkpoint] = {}
    for saved in attempts:
        newest |= {one.path: one for one in sorted(saved, key=lambda one: one.saved) if one.path}
    found, ceiling = list(attempts[-1]), first_step
    for saved in reversed(attempts[:-1]):
        found += [one for one in saved if one.step is not None and one.step <= ceiling]
        ceiling = min([ceiling, *(one.step for one in saved if one.step is not None)])
    return [one for one in found if not one.path or newest[one.path] is one]


def _where_saved(attempts: Sequence[Iterable[Event]]) -> list[list[Event]]:
    """The checkpoint events by the attempt that saved: a late check is reported with the attempt that runs then."""
    saved_in: dict[tuple[int | None, str], int] = {}
    found: list[list[Event]] = [[] for _ in attempts]
    for number, events in enumerate(attempts):
        own = (event for event in events if event.kind is EventKind.CHECKPOINT)
        for event in sorted(own, key=lambda event: event.time):
            identity = event.step, event.path
            if event.phase not in _CHECKS or identity not in saved_in:
                saved_in[identity] = number
            found[saved_in[identity]].append(event)
    return found


def to_resume(
    events: Iterable[Event], earlier: Sequence[Iterable[Event]], damaged: Iterable[str] = ()
) -> Checkpoint | None:
    """The newest verified checkpoint that none of these lines names as damaged; None where there is none."""
    lines = list(damaged)
    saved = (one for one in on_the_way(events, earlier) if one.is_verified and not _is_named(one.path, lines))
    return max(saved, key=_step, default=None)


def why_bad(path: str, step: int | None, attempts: Sequence[Iterable[Event]]) -> str:
    """Why a job's checkpoint must not be loaded, as it was reported last; "" when nothing speaks against it.

    step: None where only the path is known. attempts: the events of the job's attempts, the oldest first.
    """
    saved = [each for events in _where_saved(attempts) for each in reported(events) if _is_same(each, path, step)]
    if not saved or not saved[-1].is_bad:
        return ""
    return saved[-1].why or ("its loss was not finite" if saved[-1].finite is False else "no reason was given")


def _is_same(saved: Checkpoint, path: str, step: int | None) -> bool:
    """A line of a log may name the directory alone; then the step has to be the same."""
    if saved.path == path:
        return step is None or saved.step in (None, step)
    names = {each.rstrip("/").rpartition("/")[2] for each in (saved.path, path)}
    return step is not None and saved.step == step and len(names) == 1 and "" not in names


def _is_named(path: str, lines: Iterable[str]) -> bool:
    name = path.rstrip("/").rpartition("/")[2]
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for line in lines) if name else False


def _step(saved: Checkpoint) -> int:
    return -1 if saved.step is None else saved.step


def surplus(events: Sequence[Event]) -> Iterator[Event]:
    """The checkpoint events of an attempt that need not be kept."""
    saved = sorted(reported(events), key=lambda one: (one.saved, _step(one)), reverse=True)
    verified = max((one for one in saved if one.is_verified), key=_step, default=None)
    kept = {(one.step, one.path) for one in (*saved[:KEPT], *((verified,) if verified else ()))}
    for event in events:
        if event.kind is EventKind.CHECKPOINT and (event.step, event.path) not in kept:
            yield event
