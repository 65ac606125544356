"""The folder through which a coordinator and the runner of a batch speak: an order in, results out.

It is on a file system that both see. Nothing in it is ever changed, only added by rename.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diagnoser.evaluations.runner import write
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput
from diagnoser.ports import CommandResult, Order, OrderState, OrderStatus

METRICS = 1000
"""That one trial may have."""
SCORES_BYTES = 1 << 20
UNSEEN_SECONDS = 60.0
"""How long the end of a job that ended well may stay unseen: a shared file system shows files late."""
SUBMITTED, STARTED, CANCELLED, ENDED = "submitted", "started", "cancelled", "ended"
"""Marks: files of a batch. The runner sets the second and the last one."""
ORDER = "order.json"
"""There before a scheduler is asked to run the batch, so that nobody has asked it where this is absent."""
FAULT_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A batch's job as its scheduler knows it. state: ENDED where it ended well, at the time ``ended``. detail: how it
    ended, where that was not well."""

    state: OrderState
    ended: float = 0.0
    detail: str = ""


def write_order(order: Order, copies: CopyLimits, environment: Mapping[str, str]) -> Path:
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / ORDER, {**asdict(order), "copies": asdict(copies), "environment": dict(environment)})
    return folder


def results(folder: Path) -> tuple[CommandResult, ...]:
    found = sorted(folder.glob("[0-9]*.json"), key=lambda path: int(path.stem))
    return tuple(CommandResult(**json.loads(path.read_text())) for path in found)


def mark(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()


def is_marked(folder: Path, *names: str) -> bool:
    return any((folder / name).exists() for name in names)


def status(folder: Path, job: SchedulerJob | None, now: float) -> OrderStatus:
    """Read the status of a batch that a scheduler runs. Its own files come first: schedulers forget jobs, and files
    stay.
    """
    found = results(folder)
    if is_marked(folder, ENDED):
        return OrderStatus(OrderState.ENDED, results(folder))  # read again: only now are all of them there
    if job is None:
        state = OrderState.LOST if is_marked(folder, SUBMITTED, STARTED) else OrderState.UNKNOWN
        return OrderStatus(state, found, "its job is not known any more")
    if job.state is OrderState.ENDED and now - job.ended < UNSEEN_SECONDS:
        return OrderStatus(OrderState.RUNNING, found)
    if job.state is OrderState.PREEMPTED:
        return OrderStatus(OrderState.PREEMPTED, found)
    if job.state in (OrderState.ENDED, OrderState.LOST):
        return OrderStatus(OrderState.LOST, found, f"{job.detail}\n{fault(folder)}".strip())
    return OrderStatus(job.state, found)


def fault(folder: Path) -> str:
    """Read what the runner itself printed, when it died of a fault."""
    with suppress(OSError):
        return (folder / "runner.log").read_text(errors="replace")[-FAULT_LENGTH:].strip()
    return ""


def link_samples(folder: Path, shards: Sequence[Path]) -> None:
    """One folder of exactly the files that these shards wrote, each with the name of its shard before its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        for path in sorted(shard.iterdir()):
            with suppress(FileExistsError):
                (folder / f"{shard.name}-{path.name}").symlink_to(path)


def read_scores(path: Path) -> dict[str, float]:
    """Metric -> value, of a JSON object with a number for each. A score that is not finite, as a loss of a run that
    diverged, is left out. Raises BadInput, also where no other is there."""
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.read(SCORES_BYTES), parse_int=float)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"the scores are no JSON: {error}") from error
    if not isinstance(found, dict) or not 0 < len(found) <= METRICS:
        raise BadInput("the scores are to be a JSON object, with a number for each metric")
    scores: dict[str, float] = {}
    for name, value in found.items():
        if type(value) is not float:
            raise BadInput(f"the score {name[:60]!r} is no number")
        if math.isfinite(value):
            scores[name.encode("utf-8", "replace").decode()] = value
    if not scores:
        raise BadInput("no score is finite")
    return scores
