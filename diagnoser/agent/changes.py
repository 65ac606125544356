"""Messages to the service about a job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from diagnoser.agent.state_file import JobCheckpoint

Body = dict[str, object]
STOPPED = 1
"""Exit code of a launch that failed, or was stopped because something did, when no code was seen."""


@dataclass(frozen=True, slots=True)
class JobRegistration:
    body: Body


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """An event of a launch. ends: it writes no more after it. lines: what the scheduler wrote about the end."""

    attempt: int
    body: Body
    ends: bool = False
    lines: tuple[str, ...] = ()


Changes = list[tuple[JobRegistration | LifecycleEvent, JobCheckpoint]]
"""What to tell, in order; each with what is known of the job once the service has heard it."""


def registration(
    known: JobCheckpoint,
    cluster: str,
    name: str,
    nodes: tuple[str, ...],
    ranks: Mapping[int, str],
    labels: Mapping[str, str],
    tenant: str,
) -> JobRegistration:
    """Make the registration of the launch that is known. ranks: rank -> node, as far as it is known. tenant: only what
    no job can choose."""
    return JobRegistration(
        {
            "id": known.job,
            "attempt": known.attempt,
            "cluster": cluster,
            "name": name[:200],
            "nodes": nodes,
            "rank_nodes": {str(rank): node for rank, node in ranks.items()},
            "tenant": tenant[:200],
            "labels": {label[:200]: value for label, value in labels.items() if value},
        }
    )
