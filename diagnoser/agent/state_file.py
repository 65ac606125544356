"""Keeps what the agent knows from its last look in one small file, so that a restart neither repeats nor misses
anything.

Losing the file does little harm: lines and events that were sent before count once.
"""

from dataclasses import dataclass, field
from pathlib import Path

import orjson
import structlog

from diagnoser.agent.nodes import NodeStatus
from diagnoser.client.log_file import FileOffset
from diagnoser.model.record_json import RecordJson

VERSION = 2
NODES_KEPT = 100_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LogOffset(FileOffset):
    """Position to which a log has been sent: a file, or a stream of the cluster. job, attempt: whose lines were read
    last; the number of the job is that of a file, which several may write to.

    A stream: time: stamp of the last line, as the cluster wrote it. same: lines with just that stamp. done: there will
    be no more.
    """

    job: int = 0
    attempt: int = 0
    time: str = ""
    same: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """A job as the service has been told of it. job: its id there. started, ended: its present launch.

    output, uid: path and owner of the log file, where there is one. members: parts of the present launch that come and
    go by themselves, such as pods; past: those of earlier launches that can still be seen. earlier_nodes: of the
    launches before. suspended: somebody has stopped it for a while.
    """

    job: str
    attempt: int
    nodes: tuple[str, ...] = ()
    started: bool = False
    ended: bool = False
    output: str = ""
    uid: int = -1
    members: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    earlier_nodes: tuple[str, ...] = ()
    suspended: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the launch has begun, and its end was not reported."""
        return self.started and not self.ended

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """Nodes of all launches that were seen, this one's last; the oldest are forgotten first."""
        return tuple(dict.fromkeys((*self.earlier_nodes, *self.nodes)))[-NODES_KEPT:]


@dataclass(slots=True)
class AgentState:
    """time: of the last look that told everything, in seconds since the epoch. nodes: by name. jobs, logs: by keys that
    the scheduler's own part chooses. returned: node that this agent gives back -> who asked for it,
    until that is reported. waits: why jobs wait, or did, by the keys of jobs. checks: plans that may hold their job."""

    time: float = 0.0
    jobs: dict[str, JobCheckpoint] = field(default_factory=dict)
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    logs: dict[str, LogOffset] = field(default_factory=dict)
    returned: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    version: int = VERSION


_STATE = RecordJson(AgentState)


def load(path: Path, now: float) -> AgentState:
    """A missing or unreadable file gives the state of an agent that starts now."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return AgentState(now)
    except (OSError, ValueError) as error:
        log.warning("state_not_read", path=str(path), why=f"{type(error).__name__}: {error}")
        return AgentState(now)


def save(path: Path, data: bytes) -> None:
    """Replaces the file in one step. data: as ``encode`` gave it. Raises OSError."""
    draft = path.with_suffix(".new")
    draft.write_bytes(data)
    draft.replace(path)


def encode(state: AgentState) -> bytes:
    return orjson.dumps(state)


def decode(data: bytes) -> AgentState:
    """Raises ValueError for anything that ``encode`` did not write."""
    state = _STATE.load(data)
    if state.version != VERSION:
        raise ValueError(f"version {state.version}")
    return state
