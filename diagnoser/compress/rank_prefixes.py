"""Ranks of lines whose prefix does not name the rank itself."""

from functools import cached_property
from itertools import chain

import numpy as np

from diagnoser.compress.delta import Delta
from diagnoser.model import Stream


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
        rows = chain.from_iterable(share.rows.values() for share in self._delta.shares.values())
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
