"""What the agent has told the service, in one small file, so that a restart neither repeats nor misses anything.

Losing the file does little harm: launches are numbered on from what the service knows, and lines and events that were
sent before count once.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import structlog

from diagnoser.agent.kubernetes.watch import Standing, Tracked

VERSION = 1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a run's log has been sent. lines: so many. time: stamp of the last, as the cluster wrote it. same: lines
    with just that stamp. done: there will be no more."""

    lines: int = 0
    time: str = ""
    same: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """works: by uid of the workload. nodes: by name. marks: by key of the run."""

    works: Mapping[str, Tracked] = field(default_factory=dict)
    nodes: Mapping[str, Standing] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)


def load(path: Path) -> Seen:
    """A file that is absent or cannot be read is an agent that begins now."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return Seen()
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("state_not_read", path=str(path), why=f"{type(error).__name__}: {error}")
        return Seen()


def save(path: Path, seen: Seen) -> None:
    """Replaces the file in one step. Raises OSError."""
    draft = path.with_suffix(".new")
    draft.write_bytes(encode(seen))
    draft.replace(path)


def encode(seen: Seen) -> bytes:
    return orjson.dumps({"version": VERSION, **asdict(seen)})


def decode(data: bytes) -> Seen:
    """Raises ValueError, KeyError or TypeError for anything else than what ``encode`` gave."""
    found = orjson.loads(data)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']}")
    lists = ("nodes", "members", "past")
    works = {
        uid: Tracked(**{**work, **{name: tuple(work[name]) for name in lists}}) for uid, work in found["works"].items()
    }
    nodes = {name: Standing(**node) for name, node in found["nodes"].items()}
    marks = {key: Mark(**mark) for key, mark in found["marks"].items()}
    return Seen(works, nodes, marks)
