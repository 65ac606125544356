"""Which processes of a job ended well, where each of them speaks for itself, and which one its peers left behind.

An end holds for the process that prints it. Where only rank 0 prints, its silent peers may have ended well too: so it
takes several that say so to show that the one that does not has stopped.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diagnoser.model import Evidence, Line, Stream

_PEERS = 2
"""Processes that must state their end before the silence of another one says anything."""
_LAST_WORDS = 4
"""Kept lines of a process, the last ones, in which it states its end."""
_Speaker = tuple[Stream, int | str]


@dataclass(frozen=True, slots=True)
class EndedProcesses:
    """The processes that say that they ended well.

    ends: index of the line in which each says so.
    samples: all lines of one shape that say so, as printed, where not each of them was kept; none where it is unknown
        who printed some of them.
    """

    lines: tuple[Line, ...] = ()
    ends: Mapping[_Speaker, int] = field(default_factory=dict)
    samples: tuple[str, ...] = ()

    def left_behind(self, index: int) -> bool:
        """Whether several peers of the process that printed a line state their end, and it does not after the line."""
        if not self.ends:
            return False
        line = self.lines[index]
        speaker = line.speaker
        if not line.names_process:
            return False
        if self.ends.get(speaker, -1) > index:
            return False
        peers = [other for other in self.ends if other != speaker and other[0] == speaker[0]]
        if len(peers) >= _PEERS:
            return True
        node = line.node
        return bool(node) and len(self.samples) >= _PEERS and not any(node in sample for sample in self.samples)


def ended_processes(evidence: Evidence, says_end: Callable[[str], bool]) -> EndedProcesses:
    """The processes whose last words state their end.

    says_end: whether a message states an end.
    """
    spoken = defaultdict[_Speaker, list[int]](list)
    for index, line in enumerate(evidence.lines):
        if line.stream.from_job and line.names_process and line.body.strip():
            spoken[line.speaker].append(index)
    ends = {}
    for speaker, indices in spoken.items():
        for index in indices[-_LAST_WORDS:]:
            if says_end(evidence.lines[index].body):
                ends[speaker] = index
    return EndedProcesses(tuple(evidence.lines), ends, _all_samples(evidence, says_end))


def _all_samples(evidence: Evidence, says_end: Callable[[str], bool]) -> tuple[str, ...]:
    """The lines of one shape that state an end, where the template has sampled all of them."""
    for template in evidence.templates:
        if template.count == len(template.samples) >= _PEERS and says_end(template.text):
            return template.samples
    return ()
