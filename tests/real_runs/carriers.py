"""Who carries a log: each puts its own words around every line, one line for one line.

The heads are those that Docker's json-file driver, the CRI, pdsh, syslog, srun and Open MPI write.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Line:
    """text: without its line end. at: seconds since 1970. process: number of the process that wrote it, from 0."""

    text: str
    at: float
    process: int = 0
    stream: str = "stdout"

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


@dataclass(frozen=True, slots=True)
class Carrier:
    """wrap: (line, node of its process) -> the line as carried. names_rank, names_node: the head tells them."""

    wrap: Callable[[Line, str], str]
    names_rank: bool = False
    names_node: bool = False


def _docker(line: Line, node: str) -> str:
    stamp = line.time.strftime("%Y-%m-%dT%H:%M:%S.%f") + "417Z"
    return json.dumps({"log": line.text + "\n", "stream": line.stream, "time": stamp}, ensure_ascii=False)


def _cri(line: Line, node: str) -> str:
    return f"{line.time.strftime('%Y-%m-%dT%H:%M:%S.%f')}417Z {line.stream} F {line.text}"


def _iso(line: Line, node: str) -> str:
    return f"{line.time.strftime('%Y-%m-%dT%H:%M:%S')} {line.text}"


def _syslog(line: Line, node: str) -> str:
    return f"{line.time.strftime('%b %e %H:%M:%S')} {node} train[{4100 + line.process}]: {line.text}"


def _pdsh(line: Line, node: str) -> str:
    return f"{node}: {line.text}"


def _srun(line: Line, node: str) -> str:
    return f"{line.process}: {line.text}"


def _mpirun(line: Line, node: str) -> str:
    return f"[1,{line.process}]<{line.stream}>:{line.text}"


def _pod(line: Line, node: str) -> str:
    return f"[pod/train-worker-{line.process}/trainer] {line.text}"


CARRIERS = MappingProxyType(
    {
        "plain": Carrier(lambda line, node: line.text),
        "docker": Carrier(_docker),
        "cri": Carrier(_cri),
        "iso": Carrier(_iso),
        "syslog": Carrier(_syslog, names_node=True),
        "pdsh": Carrier(_pdsh, names_node=True),
        "srun": Carrier(_srun, names_rank=True),
        "mpirun": Carrier(_mpirun, names_rank=True),
        "pod": Carrier(_pod, names_rank=True),
    }
)
ONE_PROCESS = ("plain", "plain", "docker", "cri", "plain", "syslog", "iso")
"""Carriers of runs of one process, in turn."""
SEVERAL = ("srun", "pdsh", "plain", "pod", "mpirun")
"""Carriers of processes that were started one by one, in turn."""
LAUNCHED = ("plain", "cri", "plain", "docker", "iso")
"""Carriers of what a launcher prints for all its processes, in turn."""


def carry(lines: Sequence[Line], carrier: str, nodes: Sequence[str]) -> list[str]:
    """The lines as ``carrier`` shows them; ``nodes`` has the node of each process."""
    return [CARRIERS[carrier].wrap(line, nodes[line.process]) for line in lines]
