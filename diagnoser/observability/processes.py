"""Memory, processor time and files of the processes of the service, whichever of them is asked."""

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector

_ENDING = ".pid"
MAIN = "main"
"""Name of the process where there is only one."""


def note(folder: Path, process: str) -> None:
    """That this is the process of that name, from now on."""
    (folder / f"{process}{_ENDING}").write_text(str(os.getpid()))


class ProcessFigures(Collector):
    """``process_...``, as every Prometheus client names it, with the name of the process as a label.

    folder: where processes were noted; None for this process alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, process in sorted(self._processes().items()):
            for family in ProcessCollector(pid=lambda process=process: process, registry=None).collect():  # type: ignore[misc]
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    joined.add_sample(sample.name, {**sample.labels, "process": name}, sample.value)
        yield from families.values()

    def _processes(self) -> dict[str, int]:
        if self._folder is None:
            return {MAIN: os.getpid()}
        return {path.stem: int(path.read_text()) for path in self._folder.glob(f"*{_ENDING}")}
