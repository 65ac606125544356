"""Who carries the log of a run: one line for one line, in the forms of ``tests.carriers``."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from tests import carriers


@dataclass(frozen=True, slots=True)
class Line:
    """text: without its line end. at: seconds since 1970. process: number of the process that wrote it, from 0."""

    text: str
    at: float
    process: int = 0
    stream: str = "stdout"


ONE_PROCESS = ("plain", "plain", "docker", "cri", "plain", "syslog", "iso")
"""Carriers of runs of one process, in turn."""
SEVERAL = ("srun", "pdsh", "plain", "pod", "mpirun")
"""Carriers of processes that were started one by one, in turn."""
LAUNCHED = ("plain", "cri", "plain", "docker", "iso")
"""Carriers of what a launcher prints for all its processes, in turn."""
_USED = dict.fromkeys((*ONE_PROCESS, *SEVERAL, *LAUNCHED))
CARRIERS = MappingProxyType({name: carriers.CARRIERS.get(name, carriers.PLAIN) for name in _USED})


def carry(lines: Sequence[Line], carrier: str, nodes: Sequence[str]) -> list[str]:
    """The lines as ``carrier`` shows them; ``nodes`` has the node of each process."""
    return [CARRIERS[carrier].write(_spoken(line, nodes[line.process])) for line in lines]


def _spoken(line: Line, node: str) -> carriers.SpokenLine:
    at = datetime.fromtimestamp(line.at, UTC)
    return carriers.SpokenLine(line.text, line.text, line.process, node, at, line.stream, pod=line.process)
