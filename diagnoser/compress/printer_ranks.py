"""Ranks of lines that do not name them, by who prints them: a pod, a container, a numbered service, a process.

A record names its printer, and often says which rank that is; other lines of the same printer do not. What the log
shows of a printer holds for all of its lines. Pods and containers are ranks only where each runs one process.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
from itertools import chain

import numpy as np

from diagnoser.compress.delta import Delta
from diagnoser.compress.record_lines import OpenedLine
from diagnoser.dialects import launchers, mentions
from diagnoser.dialects.mentions import Tells
from diagnoser.dialects.replicas import pod_ranks
from diagnoser.model import Stream
from diagnoser.model.choice import single
from diagnoser.records import stream_names
from diagnoser.records.record import NO_RECORD

_LEAST_SHARE = 0.9
"""Share of the records with a number of their process, from which on it tells processes apart that nothing names."""


class PrinterRanks:
    """The ranks of the printers of a log. lines: with their streams."""

    def __init__(self, lines: Iterable[tuple[Stream, OpenedLine]]) -> None:
        instances = _Printers()
        processes = defaultdict[Stream, _Printers](_Printers)
        nameless = defaultdict[Stream, list[int]](list)
        for stream, line in lines:
            name = line.learned_name or line.process
            if line.instance:
                instances.add(line.instance, line)
            if name:
                processes[stream].add(f"{line.instance}{name}", line)
            elif line.record is not NO_RECORD and not line.instance:
                nameless[stream].append(line.record.number)
        self._of_instances = _ranks_of_instances(instances)
        self._of_processes = {stream: _ranks_of_processes(seen) for stream, seen in processes.items()}
        self._numbered = {stream for stream, numbers in nameless.items() if _tell_apart(numbers)}

    def of(self, stream: Stream, line: OpenedLine) -> int:
        """The rank of who prints a line; -1 where nothing tells."""
        if line.instance in self._of_instances:
            return self._of_instances[line.instance]
        if name := line.learned_name or line.process:
            return self._of_processes.get(stream, {}).get(f"{line.instance}{name}", -1)
        return line.record.number if stream in self._numbered and not line.instance else -1


class _Printers:
    """What the lines of each printer say, by its name."""

    def __init__(self) -> None:
        self.names = set[str]()
        self.sizes = set[int]()
        self.are_agents = False
        self._ranks = defaultdict[str, set[int]](set)
        self._numbers = defaultdict[str, set[int]](set)
        self._processes = defaultdict[str, set[str]](set)

    def add(self, name: str, line: OpenedLine) -> None:
        self.names.add(name)
        if line.rank >= 0:
            self._ranks[name].add(line.rank)
        if line.record.number >= 0:
            self._numbers[name].add(line.record.number)
        if line.process:
            self._processes[name].add(line.process)
        for text in line.texts:
            self.are_agents |= launchers.AGENT.search(text) is not None
            self.sizes.update(mentions.world_sizes(text))
            self.sizes.update(int(rank) + 1 for rank in mentions.named(Tells.FAILED, text))
            self._ranks[name].update(map(int, mentions.named(Tells.SELF, text)))

    @property
    def are_shared(self) -> bool:
        """Whether one of them runs several processes."""
        if any(len(ranks) > 1 for ranks in self._ranks.values()):
            return True
        return any(len(processes) > 1 for processes in self._processes.values())

    @property
    def ranks(self) -> dict[str, int]:
        """The ranks of those that state one."""
        return single(self._ranks)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the printers, where each has one of its own and they count ranks."""
        numbers = single(self._numbers)
        if len(set(numbers.values())) < len(self._numbers):
            return {}
        return numbers if stream_names.count_ranks(set(numbers.values())) else {}


def _ranks_of_instances(seen: _Printers) -> dict[str, int]:
    """Name -> rank; empty where one of them runs several processes, or the log states more ranks than there are."""
    if seen.are_agents:
        return {}
    if seen.are_shared:
        return {}
    if max(seen.sizes, default=0) > len(seen.names):
        return {}
    rule = stream_names.number_rule(seen.names, seen.ranks, seen.sizes)
    numbered = {name: rule.rank(name) for name in seen.names} if rule else {}
    for ranks in (seen.numbers, numbered, pod_ranks(seen.names)):
        if ranks and seen.ranks.items() <= ranks.items():
            return ranks
    return seen.ranks


def _ranks_of_processes(seen: _Printers) -> dict[str, int]:
    """The same of processes, of which each states its own."""
    return {} if seen.are_shared else seen.numbers | seen.ranks


def _tell_apart(numbers: Collection[int]) -> bool:
    """Whether nearly all records have a number, and these count ranks."""
    known = [number for number in numbers if number >= 0]
    if len(known) < _LEAST_SHARE * len(numbers):
        return False
    return stream_names.count_ranks(set(known))


class RankResolver:
    """Resolves voices to ranks from what the whole log shows.

    ``3: [rank7]: ...`` seen anywhere tells that the voice ``3: `` is (also) rank 7. A bare srun label is the rank
    itself unless some label speaks for other ranks or for local ranks of a launcher that runs under srun.
    """

    def __init__(self, delta: Delta) -> None:
        self._known: dict[tuple[Stream, str], int] = {}
        self._nested: dict[Stream, set[str]] = {}
        self._spread: dict[tuple[Stream, int], frozenset[int]] = {}
        self._delta = delta
        for stream, share in delta.shares.items():
            for voice, bits in share.voices.items():
                self._note(stream, voice, bits_of(bits))

    @cached_property
    def _launcher(self) -> bool:
        """Whether a launcher of PyTorch speaks in the log: every line is looked at, and few logs ask."""
        rows = chain.from_iterable(share.rows.ordered() for share in self._delta.shares.values())
        return any(b"torch/distributed/elastic" in row.text for row in rows)

    def _note(self, stream: Stream, voice: str, ranks: list[int]) -> None:
        if len(ranks) == 1:
            self._known[stream, voice] = ranks[0]
        if not voice.startswith("t"):
            return
        if "/" in voice or not {voice}.issuperset(map("t{}".format, ranks)):
            self._nested.setdefault(stream, set()).add(voice)

    def of(self, stream: Stream, voice: str, rank: int) -> int:
        """The rank of a line, -1 when nothing tells."""
        if rank >= 0:
            return rank
        if stream.rank >= 0:
            return stream.rank
        rank_of_voice = self._known.get((stream, voice), -1)
        if rank_of_voice >= 0:
            return rank_of_voice
        if not voice[1:].isdigit():
            return -1
        if voice[0] in "dr":
            return int(voice[1:])
        if voice[0] != "t":
            return -1
        if self._launcher:
            return -1
        return -1 if self._nested.get(stream) else int(voice[1:])

    def spread(self, stream: Stream, codes: int) -> frozenset[int]:
        """The ranks of a bit set of ``rank_code``."""
        if (stream, codes) not in self._spread:
            self._spread[stream, codes] = self._ranks(stream, codes)
        return self._spread[stream, codes]

    def _ranks(self, stream: Stream, codes: int) -> frozenset[int]:
        ranks = set()
        for code in bits_of(codes):
            number, kind = divmod(code, 3)
            voice = ("", f"t{number}", f"t{number // 16}/d{number % 16}")[kind]
            rank = self.of(stream, voice, number if kind == 0 else -1)
            if rank < 0 and kind == 2:
                rank = self._known.get((stream, f"d{number}"), -1)
            if rank >= 0:
                ranks.add(rank)
        return frozenset(ranks)


def bits_of(bits: int) -> list[int]:
    """Numbers of the bits that are set, ascending."""
    octets = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
