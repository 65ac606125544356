"""The baseline of a job family: what its last clean runs printed, and what of another run is new against it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnoser.model.evidence import Line
from diagnoser.model.lines import Stream


@dataclass(frozen=True, slots=True)
class CleanRun:
    """What one clean run printed.

    name: ``<job>/<attempt>``.
    lines: of its whole log.
    counts: shape -> lines of it.
    pauses: seconds of the longest silence that it came back from, by what came before (``hang_detection.pauses``).
    """

    name: str
    lines: int
    counts: Mapping[int, int]
    pauses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Baseline:
    """runs: the last clean runs of a job family, each once, oldest first."""

    runs: tuple[CleanRun, ...] = ()


@dataclass(frozen=True, slots=True)
class NewLine:
    """The first line of a shape that is new. count: lines of the shape.

    usual: most that a clean run of this length prints; 0 where none prints it.
    """

    line: Line
    count: int
    usual: int = 0


@dataclass(frozen=True, slots=True)
class Diff:
    """A run compared with the clean runs of its family. runs: how many; 0: none is known.

    new: the most telling first. known: (number, stream) of kept lines that clean runs print as well.
    """

    runs: int = 0
    new: tuple[NewLine, ...] = ()
    known: frozenset[tuple[int, Stream]] = frozenset()


NO_DIFF = Diff()
