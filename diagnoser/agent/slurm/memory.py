"""What the agent knows from its last look, in one small file, so that a restart neither repeats nor misses anything."""

from dataclasses import asdict
from pathlib import Path

import orjson
import structlog

from diagnoser.agent.slurm.watch import Seen, Standing, Tracked
from diagnoser.agent.tail import Mark

VERSION = 1

log = structlog.get_logger()


def load(path: Path, now: float) -> Seen:
    """A file that is absent or cannot be read is an agent that begins now."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return Seen(now)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("state_not_read", path=str(path), why=f"{type(error).__name__}: {error}")
        return Seen(now)


def save(path: Path, seen: Seen) -> None:
    """Replaces the file in one step. Raises OSError."""
    draft = path.with_suffix(".new")
    draft.write_bytes(encode(seen))
    draft.replace(path)


def encode(seen: Seen) -> bytes:
    return orjson.dumps({"version": VERSION, **asdict(seen)}, option=orjson.OPT_NON_STR_KEYS)


def decode(data: bytes) -> Seen:
    """Raises ValueError, KeyError or TypeError for anything else than what ``encode`` gave."""
    found = orjson.loads(data)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']}")
    jobs = {
        int(number): Tracked(**{**job, "nodes": tuple(job["nodes"]), "mark": Mark(**job["mark"])})
        for number, job in found["jobs"].items()
    }
    nodes = {name: Standing(**node) for name, node in found["nodes"].items()}
    return Seen(found["time"], jobs, nodes)
